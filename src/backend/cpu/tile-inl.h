// The register tiles that every CPU kernel is made of. SIMD lanes are QUERIES, so the running max,
// the sum, the rescale and the masks are vertical and S is held transposed:
//
// clang-format off
//   dot     S^T[key][query]  = sum_d   K[key][d]        * Qt[d][query]
//   rank    O[query][d]     += sum_key P^T[key][query]  * V[key][d]      A: P^T as it was written
//   rank_t  dV[key][d]      += sum_q   P^T[key][query]  * dO[query][d]   the same tile, A by rows
// clang-format on
//
// GCC keeps acc[][] in registers only when every loop over it is unrolled by pragma.
#pragma once

#include <cstdint>

#include ROWMAX_ISA_HEADER

namespace rowmax::cpu::ROWMAX_ISA {

// Out of line on purpose: called once per block, and inlining a dtype switch into every caller only
// costs compile time.
#define ROWMAX_NOINLINE __attribute__((noinline))

ROWMAX_INLINE int64_t imin(int64_t a, int64_t b) { return a < b ? a : b; }
ROWMAX_INLINE int64_t imax(int64_t a, int64_t b) { return a > b ? a : b; }
ROWMAX_INLINE int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

// ---- exp2 ---------------------------------------------------------------------------------------
// exp2(s - m) against an INTEGER reference m (fp32). M = 1.5*2^23 - m is exact, t = s + M rounds s
// to an integer and leaves round(s) - m in the low mantissa bits, f = s - round(s) is exact: no
// subtraction s - m, no rounding error from it, one instruction less. lo = m - 126 clamps, so the
// smallest result is 2^-126. Valid for |m| < kFastReference only; see exp2_checked. U rows are
// interleaved in program order because the chain of about 40 cycles is longer than the scheduler
// reaches. Degree 5: relative error 2.2e-7. NaN in s gives NaN or a finite value: not for NaN.
inline constexpr float kMagic = 12582912.0f;         // 1.5 * 2^23
inline constexpr float kFastReference = 2097152.0f;  // 2^21

template <class V, int U>
ROWMAX_INLINE void exp2_reference(const typename V::R (&s)[U], typename V::R M, typename V::R lo,
                                  typename V::R (&out)[U]) {
  typename V::R t[U];
  typename V::R f[U];
#define ROWMAX_EACH _Pragma("GCC unroll 8") for (int u = 0; u < U; ++u)
  ROWMAX_EACH f[u] = V::max(lo, s[u]);
  ROWMAX_EACH t[u] = V::add(f[u], M);
  ROWMAX_EACH f[u] = V::sub(f[u], V::sub(t[u], M));
  ROWMAX_EACH out[u] = V::fma(V::set1(1.3276471e-3f), f[u], V::set1(9.675541e-3f));
  ROWMAX_EACH out[u] = V::fma(out[u], f[u], V::set1(5.550713e-2f));
  ROWMAX_EACH out[u] = V::fma(out[u], f[u], V::set1(0.2402212f));
  ROWMAX_EACH out[u] = V::fma(out[u], f[u], V::set1(0.69314694f));
  ROWMAX_EACH out[u] = V::fma(out[u], f[u], V::set1(1.0f));
  ROWMAX_EACH out[u] = V::scale_by_exponent(out[u], t[u]);
#undef ROWMAX_EACH
}

// exp2(x) for x <= 1, any value: -inf and x < -126 give 0, NaN gives NaN. The careful form for
// references outside the fast range, for score modifiers and for fp64.
template <class V>
ROWMAX_INLINE typename V::R exp2_checked(typename V::R x) {
  using E = typename V::E;
  using R = typename V::R;
  if constexpr (sizeof(E) == 8) {
    R out;
    E lanes[V::W];
    V::store(lanes, x);
    for (int i = 0; i < V::W; ++i) {
      lanes[i] = __builtin_exp2(lanes[i]);
    }
    out = V::load(lanes);
    return out;
  } else {
    const R in[1] = {x};
    R out[1];
    exp2_reference<V, 1>(in, V::set1(kMagic), V::set1(-126.0f), out);
    out[0] = V::select(V::lt(x, V::set1(-126.0f)), V::zero(), out[0]);
    return V::select(V::eq(x, x), out[0], x);
  }
}

// ---- dot: MR keys x NV vectors of queries -------------------------------------------------------
// One step d of the reduction. The first one multiplies: no zeroing of the accumulators.
template <class V, int NV, int MR, bool first>
ROWMAX_INLINE void dot_step(const typename V::E* q, const typename V::E* const (&k)[MR], int64_t d,
                            typename V::R (&acc)[MR][NV]) {
  typename V::R b[NV];
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) {
    b[v] = V::load(q + v * V::W);
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
    const auto a = V::bcast(k[i] + d);
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      acc[i][v] = first ? V::mul(a, b[v]) : V::fma(a, b[v], acc[i][v]);
    }
  }
}

// qt: (depth, NV*W) packed panel. keys[i]: row pointers; a tail repeats the last row. The first
// eight steps go straight through, so that the unrolled loop has no remainder when depth is a
// multiple of eight: GCC runs a remainder with two accumulators in memory, and depth - 1 left one
// of seven steps in every tile, 6 % of the whole at depth 64.
template <class V, int NV, int MR>
ROWMAX_INLINE void dot_tile(const typename V::E* __restrict qt, const typename V::E* const* keys,
                            int64_t depth, typename V::R (&acc)[MR][NV]) {
  using E = typename V::E;
  constexpr int kLanes = NV * V::W;
  constexpr int kSteps = 8;
  const E* k[MR];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
    k[i] = keys[i];
  }
  dot_step<V, NV, MR, true>(qt, k, 0, acc);
  int64_t d = 1;
  if (depth >= kSteps) {
#pragma GCC unroll 8
    for (int u = 1; u < kSteps; ++u) {
      dot_step<V, NV, MR, false>(qt + u * kLanes, k, u, acc);
    }
    d = kSteps;
  }
#pragma GCC unroll 8
  for (; d < depth; ++d) {
    dot_step<V, NV, MR, false>(qt + d * kLanes, k, d, acc);
  }
}

// n keys (rows of k, stride ldk) against one query panel, MR at a time. epilogue(j, acc) gets each
// tile; rows past n repeat row n - 1, so stores need room for MR - 1 more rows.
template <class V, int NV, class Epilogue>
ROWMAX_INLINE void dot_block(const typename V::E* qt, const typename V::E* k, int64_t ldk,
                             int64_t n, int64_t depth, Epilogue&& epilogue) {
  constexpr int MR = V::tile_rows(NV);
  static_assert(MR - 1 <= kTileMargin, "rows that the last tile stores past n");
  typename V::R acc[MR][NV];
  const typename V::E* rows[MR];
  int64_t j = 0;
  for (; j + MR <= n; j += MR, k += MR * ldk) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      rows[i] = k + i * ldk;
    }
    dot_tile<V, NV, MR>(qt, rows, depth, acc);
    epilogue(j, acc);
  }
  if (j < n) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      rows[i] = k + imin(i, n - 1 - j) * ldk;
    }
    dot_tile<V, NV, MR>(qt, rows, depth, acc);
    epilogue(j, acc);
  }
}

// ---- rank: C[MR][NV*W] = C * scale(row) + sum_j A(row, j) * B[j][NV*W] --------------------------
// What C holds before: nothing, a value to add to, or a value to rescale by scale[row] first.
enum class Accumulate { kFresh, kAdd, kRescale };

// A(i, j) at a + i*row_step + j*step. One span of steps; several spans accumulate in turn.
template <class E>
struct RankOperands {
  const E* a;
  int64_t row_step;
  int64_t step;
  const E* b;  // (n, ldb)
  int64_t ldb;
  int64_t n;
};

template <class V, int MR, int NV>
ROWMAX_INLINE void rank_tile(RankOperands<typename V::E> x, typename V::E* __restrict c,
                             int64_t ldc, const typename V::E* scale, Accumulate mode) {
  typename V::R acc[MR][NV];
  if (mode == Accumulate::kFresh) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[i][v] = V::zero();
  } else if (mode == Accumulate::kRescale) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v)
        acc[i][v] = V::mul(V::load(c + i * ldc + v * V::W), V::bcast(scale + i));
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[i][v] = V::load(c + i * ldc + v * V::W);
  }
#pragma GCC unroll 8
  for (int64_t j = 0; j < x.n; ++j) {
    typename V::R b[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) b[v] = V::load(x.b + v * V::W);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const auto a = V::bcast(x.a + i * x.row_step);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[i][v] = V::fma(a, b[v], acc[i][v]);
    }
    x.a += x.step;
    x.b += x.ldb;
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) V::store(c + i * ldc + v * V::W, acc[i][v]);
}

// Height of the next tile when `left` rows remain and the full tile has M: pieces keep at least
// M - 2 rows where they can, so that enough accumulators are independent.
ROWMAX_INLINE int next_tile_height(int64_t left, int M) {
  const int r = static_cast<int>(left % M);
  if (left >= M && (r == 0 || r >= M - 2 || left >= 2 * M)) {
    return M;
  }
  if (left == 2 * (M - 2)) {
    return M - 2;
  }
  return left >= M - 1 ? M - 1 : left >= M - 2 ? M - 2 : left >= 2 ? 2 : 1;
}

// Rows [0, rows) of a rank update.
template <class V, int NV>
inline void rank_rows(int64_t rows, RankOperands<typename V::E> x, typename V::E* c, int64_t ldc,
                      const typename V::E* scale, Accumulate mode) {
  constexpr int M = V::tile_rows(NV);
  while (rows > 0) {
    const int h = next_tile_height(rows, M);
    if (h == M) {
      rank_tile<V, M, NV>(x, c, ldc, scale, mode);
    } else if (h == M - 1) {
      rank_tile<V, M - 1, NV>(x, c, ldc, scale, mode);
    } else if (h == M - 2) {
      rank_tile<V, M - 2, NV>(x, c, ldc, scale, mode);
    } else if (h == 2) {
      rank_tile<V, 2, NV>(x, c, ldc, scale, mode);
    } else {
      rank_tile<V, 1, NV>(x, c, ldc, scale, mode);
    }
    x.a += h * x.row_step;
    c += h * ldc;
    scale = mode == Accumulate::kRescale ? scale + h : scale;
    rows -= h;
  }
}

// ---- cutting widths into panels -----------------------------------------------------------------
// A panel of `vectors` vectors that starts at lane or column `begin`.
struct Panel {
  int32_t begin;
  int32_t vectors;
};

// Vectors of the next panel when `left` remain: 3, the rest in 2s; one single vector only where the
// width is that small or odd.
ROWMAX_INLINE int next_panel_vectors(int64_t left) {
  static_assert(kPanelVectors == 3, "calls by panel width list 3, 2 and 1");
  return left >= 5 || left == 3 ? 3 : left >= 2 ? 2 : 1;
}

// Cuts ceil(width / W) vectors into panels. Returns the number of panels.
template <class V>
ROWMAX_INLINE int cut_panels(int64_t width, Panel* out) {
  int64_t vectors = (width + V::W - 1) / V::W;
  int count = 0;
  int32_t begin = 0;
  while (vectors > 0) {
    const int take = next_panel_vectors(vectors);
    out[count++] = {begin, take};
    begin += take * V::W;
    vectors -= take;
  }
  return count;
}

// Column panels of an operand `width` wide; padded() columns in all.
template <class V>
struct Columns {
  Panel panels[kMaxHeadDim / (2 * V::W) + 2];
  int count;
  int64_t width;
  explicit ROWMAX_INLINE Columns(int64_t columns)
      : count(cut_panels<V>(columns, panels)), width(columns) {}
  ROWMAX_INLINE int64_t padded() const { return round_up(width, V::W); }
};

// C[rows][all columns] = C * scale + A B over n steps. b: column panels of `capacity` rows each
// (see pack_columns), entered at row `b_row`.
template <class V>
inline void rank_all(const Columns<V>& columns, int64_t rows, RankOperands<typename V::E> x,
                     int64_t capacity, int64_t b_row, typename V::E* c, int64_t ldc,
                     const typename V::E* scale, Accumulate mode) {
  const typename V::E* b = x.b;
  for (int p = 0; p < columns.count; ++p) {
    const int64_t begin = columns.panels[p].begin;
    const int vectors = columns.panels[p].vectors;
    x.ldb = vectors * V::W;
    x.b = b + begin * capacity + b_row * x.ldb;
    if (vectors == 3) {
      rank_rows<V, 3>(rows, x, c + begin, ldc, scale, mode);
    } else if (vectors == 2) {
      rank_rows<V, 2>(rows, x, c + begin, ldc, scale, mode);
    } else {
      rank_rows<V, 1>(rows, x, c + begin, ldc, scale, mode);
    }
  }
}

}  // namespace rowmax::cpu::ROWMAX_ISA
