// One block of keys of a decode item: which keys it holds, their products with the query rows, the
// online softmax, and the product with the values. Rows (query head, position) are folded and
// padded to R = 1, 2, 4 or 8; scores are s[key][R], so that one vector holds W / R keys of R rows
// and the running statistics stay vertical.
#pragma once

#include <cstdint>

#include "backend/cpu/decode_scratch.h"
#include "backend/cpu/pack-inl.h"
#include "backend/cpu/tile-inl.h"

namespace rowmax::cpu::ROWMAX_ISA {

inline constexpr int64_t kLineBytes = 64;
inline constexpr int kDecodeTail = 8;  // row pointers past a block's keys
// Scores of a block, and room for whole vectors.
inline constexpr int kDecodeScores = (kDecodeMaxKeys + 2) * kDecodeMaxRows;

// Keys of a block: 16-bit types take twice as many, so that a block reads the same number of bytes.
ROWMAX_INLINE int64_t decode_block_keys(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 ? kDecodeMaxKeys : kDecodeMaxKeys / 2;
}

// Keys that some row sees, in order. Row pointers are repeated past `count` so that a group of
// products may run over the end.
struct KeyBlock {
  int64_t count = 0;
  bool clean = false;  // every row sees every key
  int64_t key[kDecodeMaxKeys];
  uint8_t visible[kDecodeMaxKeys];  // bit r: row r sees the key
  const char* k[kDecodeMaxKeys + kDecodeTail];
  const char* v[kDecodeMaxKeys + kDecodeTail];
};

// What the products need, the same for all blocks of an item.
template <class E>
struct DecodeOperands {
  const E* q = nullptr;  // (R, q_stride), scaled, zero past D
  E* o = nullptr;        // (R, o_stride), accumulated, zero past Dv
  int64_t q_stride = 0;
  int64_t o_stride = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
};

template <class V, class S>
ROWMAX_INLINE typename V::R load_tail(const typename S::T* p, int64_t count) {
  typename V::E lanes[V::W];
  for (int i = 0; i < V::W; ++i) {
    lanes[i] = i < count ? static_cast<typename V::E>(S::get(p + i)) : typename V::E(0);
  }
  return V::load(lanes);
}

ROWMAX_INLINE void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t x = 0; x < bytes; x += kLineBytes) {
    prefetch_near(row + x);
  }
}

// s[key][R] = q k, W products at a time: min(R, W) rows times the keys that fill the vector. The
// value rows of the same keys are prefetched meanwhile: memory sees two sequential streams.
template <class V, class S, int R>
ROWMAX_NOINLINE void score_block(const DecodeOperands<typename V::E>& x, const KeyBlock& block,
                                 typename V::E* s) {
  using T = typename S::T;
  constexpr int W = V::W;
  constexpr int kRows = R < W ? R : W;
  constexpr int kKeys = W / kRows;
  static_assert(kKeys <= kDecodeTail && W <= 2 * kDecodeMaxRows);
  const int64_t full = x.head_dim / W * W;
  const int64_t value_bytes = x.head_dim_v * static_cast<int64_t>(sizeof(T));
  for (int64_t j = 0; j < block.count; j += kKeys) {
    const T* k[kKeys];
#pragma GCC unroll 8
    for (int u = 0; u < kKeys; ++u) {
      k[u] = reinterpret_cast<const T*>(block.k[j + u]);
      prefetch_row(block.v[j + u], value_bytes);
    }
#pragma GCC unroll 4
    for (int first = 0; first < R; first += kRows) {
      const typename V::E* q = x.q + first * x.q_stride;
      typename V::R acc[W];
#pragma GCC unroll 8
      for (int a = 0; a < W; ++a) {
        acc[a] = V::zero();
      }
      const auto step = [&](int64_t d, const typename V::R(&key)[kKeys])
          __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const auto row = V::load(q + r * x.q_stride + d);
#pragma GCC unroll 8
          for (int u = 0; u < kKeys; ++u) {
            acc[u * kRows + r] = V::fma(row, key[u], acc[u * kRows + r]);
          }
        }
      };
      typename V::R key[kKeys];
      for (int64_t d = 0; d < full; d += W) {
#pragma GCC unroll 8
        for (int u = 0; u < kKeys; ++u) {
          key[u] = load_vector<V, S>(k[u] + d);
        }
        step(d, key);
      }
      if (full < x.head_dim) {
#pragma GCC unroll 8
        for (int u = 0; u < kKeys; ++u) {
          key[u] = load_tail<V, S>(k[u] + full, x.head_dim - full);
        }
        step(full, key);
      }
      V::store(s + j * R + first, V::reduce_rows(acc));
    }
  }
}

// O[R][NV * W] at column d: rescaled, plus p[key][R] times the values. `next` is the key block
// whose rows are prefetched meanwhile.
template <class V, class S, int R, int NV>
ROWMAX_INLINE void accumulate_columns(const DecodeOperands<typename V::E>& x, const KeyBlock& block,
                                      const KeyBlock& next, const typename V::E* p,
                                      const typename V::E* alpha, int64_t d, int64_t width) {
  using T = typename S::T;
  constexpr int W = V::W;
  constexpr int64_t kPieceBytes = NV * W * static_cast<int64_t>(sizeof(T));
  typename V::R acc[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      acc[r][v] = V::load(x.o + r * x.o_stride + d + v * W);
      if (alpha != nullptr) {
        acc[r][v] = V::mul(acc[r][v], V::bcast(alpha + r));
      }
    }
  }
  const int64_t begin = d * static_cast<int64_t>(sizeof(T));
  const int64_t prefetches = begin < x.head_dim * static_cast<int64_t>(sizeof(T)) ? next.count : 0;
  for (int64_t j = 0; j < block.count; ++j) {
    const T* value = reinterpret_cast<const T*>(block.v[j]) + d;
    typename V::R b[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      b[v] = width == NV * W ? load_vector<V, S>(value + v * W) : load_tail<V, S>(value, width);
    }
    if (j < prefetches) {
#pragma GCC unroll 4
      for (int64_t y = 0; y < kPieceBytes; y += kLineBytes) {
        prefetch_near(next.k[j] + begin + y);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto weight = V::bcast(p + j * R + r);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        acc[r][v] = V::fma(weight, b[v], acc[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      V::store(x.o + r * x.o_stride + d + v * W, acc[r][v]);
    }
  }
}

// O = O * alpha (null: 1) + P V over the keys of the block.
template <class V, class S, int R>
ROWMAX_NOINLINE void accumulate_block(const DecodeOperands<typename V::E>& x, const KeyBlock& block,
                                      const KeyBlock& next, const typename V::E* p,
                                      const typename V::E* alpha) {
  constexpr int W = V::W;
  constexpr int NV = R <= 2 ? 4 : R <= 4 ? 2 : 1;  // 4 to 8 accumulators, 16 registers
  int64_t d = 0;
  for (; d + NV * W <= x.head_dim_v; d += NV * W) {
    accumulate_columns<V, S, R, NV>(x, block, next, p, alpha, d, NV * W);
  }
  for (; d + W <= x.head_dim_v; d += W) {
    accumulate_columns<V, S, R, 1>(x, block, next, p, alpha, d, W);
  }
  if (d < x.head_dim_v) {
    accumulate_columns<V, S, R, 1>(x, block, next, p, alpha, d, x.head_dim_v - d);
    d += W;
  }
  const int64_t size = static_cast<int64_t>(sizeof(typename S::T));
  for (int64_t j = 0; d < x.head_dim && j < next.count; ++j) {
    prefetch_row(next.k[j] + d * size, (x.head_dim - d) * size);
  }
}

// The two products for one dtype and row count, chosen once per item.
template <class V>
struct BlockProducts {
  using E = typename V::E;
  void (*score)(const DecodeOperands<E>& x, const KeyBlock& block, E* s) = nullptr;
  void (*accumulate)(const DecodeOperands<E>& x, const KeyBlock& block, const KeyBlock& next,
                     const E* p, const E* alpha) = nullptr;
};

template <class V, class S>
ROWMAX_INLINE BlockProducts<V> products_of(int rows) {
  switch (rows) {
    case 1:
      return {score_block<V, S, 1>, accumulate_block<V, S, 1>};
    case 2:
      return {score_block<V, S, 2>, accumulate_block<V, S, 2>};
    case 4:
      return {score_block<V, S, 4>, accumulate_block<V, S, 4>};
    default:
      return {score_block<V, S, 8>, accumulate_block<V, S, 8>};
  }
}

template <class V>
ROWMAX_INLINE BlockProducts<V> block_products(DType dtype, int rows) {
  if constexpr (sizeof(typename V::E) == 8) {
    return products_of<V, StoredF64>(rows);
  } else {
    switch (dtype) {
      case DType::kBF16:
        return products_of<V, StoredBF16>(rows);
      case DType::kF16:
        return products_of<V, StoredF16>(rows);
      default:
        return products_of<V, StoredF32>(rows);
    }
  }
}

// ---- softmax -----------------------------------------------------------------------------------
// Running statistics of R rows in log2 units, repeated to fill a vector when R < W; then a lane of
// `l` holds the sum over its own share of the keys. `m` is an integer, or -inf before the first
// key.
template <class V>
struct DecodeState {
  using E = typename V::E;
  static constexpr int kLanes = kDecodeMaxRows > V::W ? int{kDecodeMaxRows} : V::W;
  E m[kLanes];
  E l[kLanes];
  E alpha[kLanes];  // exp2(old m - new m) of the last block

  ROWMAX_INLINE void reset() {
    for (int i = 0; i < kLanes; ++i) {
      m[i] = -static_cast<E>(__builtin_inf());
      l[i] = 0;
      alpha[i] = 1;
    }
  }
  // Sum of a row over its lanes.
  ROWMAX_INLINE E sum(int row, int rows) const {
    E total = l[row];
    for (int i = row + rows; i < V::W; i += rows) {
      total += l[i];
    }
    return total;
  }
};

// Vectors [first, count) with the given step of s become p = exp2(s - m); returns their sum.
// References outside the range of exp2_reference, hidden keys (-inf) and NaN take the careful form;
// lanes with a reference in the range then get the bits of the fast form, where p is at least
// 2^-126 for any finite score.
template <class V>
ROWMAX_INLINE typename V::R weights(typename V::E* s, int64_t first, int64_t count, int64_t step,
                                    typename V::R m, bool careful) {
  constexpr int W = V::W;
  auto sum = V::zero();
  if constexpr (sizeof(typename V::E) == 4) {
    if (!careful) {
      const auto M = V::sub(V::set1(kMagic), m);
      const auto lo = V::sub(m, V::set1(126.0f));
      int64_t i = first;
      for (; i + 3 * step < count; i += 4 * step) {
        typename V::R x[4];
        typename V::R p[4];
#pragma GCC unroll 4
        for (int u = 0; u < 4; ++u) {
          x[u] = V::load(s + (i + u * step) * W);
        }
        exp2_reference<V, 4>(x, M, lo, p);
#pragma GCC unroll 4
        for (int u = 0; u < 4; ++u) {
          V::store(s + (i + u * step) * W, p[u]);
          sum = V::add(sum, p[u]);
        }
      }
      for (; i < count; i += step) {
        const typename V::R x[1] = {V::load(s + i * W)};
        typename V::R p[1];
        exp2_reference<V, 1>(x, M, lo, p);
        V::store(s + i * W, p[0]);
        sum = V::add(sum, p[0]);
      }
      return sum;
    }
  }
  for (int64_t i = first; i < count; i += step) {
    const auto x = V::load(s + i * W);
    auto p = exp2_checked<V>(V::sub(x, m));
    if constexpr (sizeof(typename V::E) == 4) {
      const typename V::R in[1] = {x};
      typename V::R near[1];
      exp2_reference<V, 1>(in, V::sub(V::set1(kMagic), m), V::sub(m, V::set1(126.0f)), near);
      near[0] = V::select(V::eq(x, V::set1(-__builtin_inff())), V::zero(), near[0]);
      near[0] = V::select(V::eq(x, x), near[0], x);
      p = V::select(V::lt(V::abs(m), V::set1(kFastReference)), near[0], p);
    }
    V::store(s + i * W, p);
    sum = V::add(sum, p);
  }
  return sum;
}

// Scores s[count][rows], -inf where hidden, become weights; the state moves on. s has room for a
// vector more. Returns whether O must be rescaled by state.alpha.
template <class V>
ROWMAX_NOINLINE inline bool softmax_block(typename V::E* s, int64_t count, int rows,
                                          DecodeState<V>* state) {
  using E = typename V::E;
  constexpr int W = V::W;
  constexpr int kMaxVectors = DecodeState<V>::kLanes / W;
  const E infinity = static_cast<E>(__builtin_inf());
  const int vectors = rows > W ? rows / W : 1;  // of one key or key group
  const int64_t used = count * rows;
  const int64_t padded = round_up(used, vectors * W);
  for (int64_t i = used; i < padded; ++i) {
    s[i] = s[i - rows];  // the last key again: neither the maximum nor the check below changes
  }
  typename V::R m[kMaxVectors];
  auto finite = V::zero();  // x * 0 is NaN for a non-finite x
  for (int v = 0; v < vectors; ++v) {
    m[v] = V::load(state->m + v * W);
    for (int64_t i = v; i < padded / W; i += vectors) {
      const auto x = V::load(s + i * W);
      m[v] = V::max(x, m[v]);
      finite = V::fma(x, V::zero(), finite);
    }
  }
  for (int64_t i = used; i < padded; ++i) {
    s[i] = -infinity;
  }
  bool careful = sizeof(E) == 8 || !V::all(V::eq(finite, V::zero()));
  bool moved = false;
  for (int v = 0; v < vectors; ++v) {
    E lanes[W];
    V::store(lanes, V::ceil(m[v]));
    for (int i = 0; i < W; ++i) {  // lanes of one row share its maximum
      for (int u = i % rows; u < W; u += rows) {
        lanes[i] = lanes[u] > lanes[i] ? lanes[u] : lanes[i];
      }
    }
    m[v] = V::load(lanes);
    moved = moved || !V::all(V::eq(m[v], V::load(state->m + v * W)));
    careful = careful || !V::all(V::lt(V::abs(m[v]), V::set1(static_cast<E>(kFastReference))));
  }
  for (int v = 0; v < vectors; ++v) {
    const auto old = V::load(state->m + v * W);
    // A row that has seen no key has m = -inf: any finite reference gives its hidden keys p = 0.
    const auto reference = V::select(V::eq(m[v], V::set1(-infinity)), V::zero(), m[v]);
    const auto alpha = exp2_checked<V>(V::sub(old, reference));
    const auto sum = weights<V>(s, v, padded / W, vectors, reference, careful);
    V::store(state->m + v * W, m[v]);
    V::store(state->alpha + v * W, alpha);
    // When m stays, alpha is 1 by value; -inf then keeps l = 0, +inf makes it NaN as it must.
    V::store(state->l + v * W, V::fma(V::load(state->l + v * W), alpha, sum));
  }
  return moved;
}

}  // namespace rowmax::cpu::ROWMAX_ISA
