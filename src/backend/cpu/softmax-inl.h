// Scores of one query panel against a run of keys, and the online softmax over them. S^T is
// s[key][lane], lanes = NV * W queries; everything here is vertical.
#pragma once

#include <cstdint>

#include "backend/cpu/keys-inl.h"
#include "backend/cpu/tile-inl.h"

namespace rowmax::cpu::ROWMAX_ISA {

// The band inside a run of keys, relative to its first key: lane L sees key j iff
// low <= j - L <= high. Small numbers: clamped where the band is far away. Keys [clean_begin,
// clean_end) are seen by every lane.
struct BandEdges {
  int64_t low;
  int64_t high;
  int64_t last_lane;  // padding lanes see what the last row sees
  int64_t clean_begin;
  int64_t clean_end;
};

ROWMAX_INLINE BandEdges band_edges(const RowBand& band, int64_t row, int64_t rows, int64_t key,
                                   int64_t n) {
  BandEdges out;
  out.low = band.has_lo ? imax(row + band.lo - key, -rows) : -rows;
  out.high = band.has_hi ? imin(row + band.hi - key, n) : n;
  out.last_lane = rows - 1;
  out.clean_begin = imin(imax(out.low + rows - 1, 0), n);
  out.clean_end = imin(imax(out.high + 1, 0), n);
  return out;
}

// Which of the lanes of vector v see key j.
template <class V>
ROWMAX_INLINE typename V::M lanes_inside(const BandEdges& edges, int64_t j, int v) {
  using E = typename V::E;
  const auto lane = V::min(V::add(V::iota(), V::set1(static_cast<E>(v * V::W))),
                           V::set1(static_cast<E>(edges.last_lane)));
  return V::both(V::ge(lane, V::set1(static_cast<E>(j - edges.high))),
                 V::le(lane, V::set1(static_cast<E>(j - edges.low))));
}

// S^T of a panel and n keys; max: maxima of the lanes, NaN passed over. Lanes that do not see a key
// get -inf there. s needs room for one more dot tile.
template <class V, int NV>
ROWMAX_INLINE void scores(const typename V::E* qt, const typename V::E* k, int64_t ldk, int64_t n,
                          int64_t depth, const BandEdges& edges, Prefetch& keys_ahead,
                          Prefetch& queries_ahead, typename V::E* s, typename V::R (&max)[NV]) {
  using E = typename V::E;
  using R = typename V::R;
  constexpr int MR = V::tile_rows(NV);
  constexpr int kLanes = NV * V::W;
  // The rows of the last tile past n repeat row n - 1 and are masked like it.
  const int64_t clean_end = edges.clean_end == n ? n + MR : edges.clean_end;
  const int64_t clean_begin = edges.clean_begin;
  dot_block<V, NV>(
      qt, k, ldk, n, depth, [&](int64_t j, R(&acc)[MR][NV]) __attribute__((always_inline)) {
        keys_ahead.step();
        queries_ahead.step();
        if (j < clean_begin || j + MR > clean_end) {
#pragma GCC unroll 16
          for (int i = 0; i < MR; ++i) {
            const int64_t key = imin(j + i, n - 1);
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
              acc[i][v] = V::select(lanes_inside<V>(edges, key, v), acc[i][v],
                                    V::set1(-E(__builtin_inf())));
            }
          }
        }
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
          for (int v = 0; v < NV; ++v) {
            V::store(s + (j + i) * kLanes + v * V::W, acc[i][v]);
            max[v] = V::max(acc[i][v], max[v]);
          }
        }
      });
}

// How a run of scores becomes probabilities.
enum class Exponent {
  kClean,    // references in the fast range, no NaN payload, nothing hidden but by the band
  kHidden,   // references in the fast range; -inf gives exactly 0, NaN stays NaN
  kChecked,  // any reference
};

// U rows of one vector column: P = exp2(S - m), sum += P.
template <class V, int U, Exponent kind>
ROWMAX_INLINE void exponentiate(typename V::E* p, int64_t ld, typename V::R m, typename V::R& sum) {
  using R = typename V::R;
  R x[U];
  R out[U];
#pragma GCC unroll 8
  for (int u = 0; u < U; ++u) {
    x[u] = V::load(p + u * ld);
  }
  if constexpr (kind == Exponent::kChecked) {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      out[u] = exp2_checked<V>(V::sub(x[u], m));
    }
  } else {
    const R low = V::sub(m, V::set1(126.0f));
    exp2_reference<V, U>(x, V::sub(V::set1(kMagic), m), low, out);
    if constexpr (kind == Exponent::kHidden) {
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) {
        const R rest = V::select(V::eq(x[u], x[u]), V::zero(), x[u]);
        out[u] = V::select(V::ge(x[u], low), out[u], rest);
      }
    }
  }
#pragma GCC unroll 8
  for (int u = 0; u < U; ++u) {
    sum = V::add(sum, out[u]);
    V::store(p + u * ld, out[u]);
  }
}

// Rows [begin, end) of one vector column.
template <class V, Exponent kind>
ROWMAX_INLINE void exponentiate_rows(typename V::E* s, int64_t ld, int64_t begin, int64_t end,
                                     typename V::R m, typename V::R& sum) {
  constexpr int U = 4;
  int64_t j = begin;
  for (; j + U <= end; j += U) {
    exponentiate<V, U, kind>(s + j * ld, ld, m, sum);
  }
  for (; j < end; ++j) {
    exponentiate<V, 1, kind>(s + j * ld, ld, m, sum);
  }
}

// P^T = exp2(S^T - m) in place and sums += column sums, scores stored by scores() with the band at
// the edges. One vector column at a time so that its constants stay in registers.
template <class V, int NV>
ROWMAX_INLINE void softmax_clean(typename V::E* s, int64_t n, const BandEdges& edges,
                                 const typename V::R (&m)[NV], typename V::R (&sum)[NV]) {
  constexpr int kLanes = NV * V::W;
  const int64_t begin = edges.clean_begin;
  const int64_t end = imax(edges.clean_end, begin);
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) {
    typename V::E* column = s + v * V::W;
    typename V::R total = sum[v];
    exponentiate_rows<V, Exponent::kHidden>(column, kLanes, 0, begin, m[v], total);
    exponentiate_rows<V, Exponent::kClean>(column, kLanes, begin, end, m[v], total);
    exponentiate_rows<V, Exponent::kHidden>(column, kLanes, end, n, m[v], total);
    sum[v] = total;
  }
}

// The same for any scores. m and sum (lanes) in memory.
template <class V, Exponent kind>
ROWMAX_NOINLINE inline void softmax_any(typename V::E* s, int64_t n, int64_t lanes,
                                        const typename V::E* m, typename V::E* sum) {
  for (int64_t l = 0; l < lanes; l += V::W) {
    typename V::R total = V::load(sum + l);
    exponentiate_rows<V, kind>(s + l, lanes, 0, n, V::load(m + l), total);
    V::store(sum + l, total);
  }
}

// Maxima of the lanes over n keys, NaN passed over.
template <class V, int NV>
ROWMAX_INLINE void column_max(const typename V::E* s, int64_t n, typename V::R (&max)[NV]) {
  for (int64_t j = 0; j < n; ++j, s += NV * V::W) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      max[v] = V::max(V::load(s + v * V::W), max[v]);
    }
  }
}

// Running state of a panel: m (integers, or -inf before the first visible key) and l, in memory,
// and the factors that O has to be rescaled with.
template <class V>
struct PanelState {
  typename V::E* max;
  typename V::E* sum;
  typename V::E* rescale;
};

// Scores of a run -> probabilities; updates the state. `block_max`: maxima over the run. `clean`:
// Q and K are finite and only the band hides keys. Returns whether some lane's reference moved.
template <class V, int NV>
ROWMAX_INLINE bool online_softmax(typename V::E* s, int64_t n, const BandEdges& edges,
                                  const typename V::R (&block_max)[NV], bool clean,
                                  const PanelState<V>& state) {
  using E = typename V::E;
  using R = typename V::R;
  constexpr int W = V::W;
  const R hidden = V::set1(-E(__builtin_inf()));
  R old[NV];
  R m[NV];
  bool same = true;
  bool near = sizeof(E) == 4;  // references are in the fast range or -inf
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) {
    old[v] = V::load(state.max + v * W);
    const R top = V::ceil(block_max[v]);
    m[v] = V::max(top, old[v]);
    same = same && V::all(V::eq(m[v], old[v]));
    V::store(state.max + v * W, m[v]);
    if constexpr (sizeof(E) == 4) {
      const R fast = V::set1(kFastReference);
      const R floor = V::set1(-kFastReference);
      clean = clean && V::all(V::both(V::lt(floor, top), V::lt(m[v], fast)));
      near = near &&
             V::all(V::both(V::either(V::lt(floor, m[v]), V::eq(m[v], hidden)), V::lt(m[v], fast)));
    }
  }
  if constexpr (sizeof(E) == 4) {
    if (clean) {
      R sum[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        sum[v] = V::load(state.sum + v * W);
        if (!same) {
          const R x[1] = {old[v]};
          R factor[1];
          exp2_reference<V, 1>(x, V::sub(V::set1(kMagic), m[v]), V::sub(m[v], V::set1(126.0f)),
                               factor);
          sum[v] = V::mul(sum[v], factor[0]);
          V::store(state.rescale + v * W, factor[0]);
        }
      }
      softmax_clean<V, NV>(s, n, edges, m, sum);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        V::store(state.sum + v * W, sum[v]);
      }
      return !same;
    }
  }
  E reference[NV * W];
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) {
    const R finite = V::select(V::eq(m[v], hidden), V::zero(), m[v]);
    V::store(reference + v * W, finite);
    if (!same) {
      const R factor = exp2_checked<V>(V::sub(old[v], finite));
      V::store(state.rescale + v * W, factor);
      V::store(state.sum + v * W, V::mul(V::load(state.sum + v * W), factor));
    }
  }
  if constexpr (sizeof(E) == 4) {
    if (near) {
      softmax_any<V, Exponent::kHidden>(s, n, NV * W, reference, state.sum);
      return !same;
    }
  }
  softmax_any<V, Exponent::kChecked>(s, n, NV * W, reference, state.sum);
  return !same;
}

}  // namespace rowmax::cpu::ROWMAX_ISA
