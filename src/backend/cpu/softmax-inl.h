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

// Keys [j, j + count) of a stored tile: -inf where a lane does not see a key, and the maxima.
template <class V>
ROWMAX_NOINLINE inline void hide_in_tile(const BandEdges& edges, int64_t j, int64_t count,
                                         int64_t lanes, typename V::E* tile, typename V::E* max) {
  using E = typename V::E;
  for (int64_t l = 0; l < lanes; l += V::W) {
    const auto lane = V::min(V::add(V::iota(), V::set1(static_cast<E>(l))),
                             V::set1(static_cast<E>(edges.last_lane)));
    auto top = V::load(max + l);
    for (int64_t i = 0; i < count; ++i) {
      const auto inside = V::both(V::ge(lane, V::set1(static_cast<E>(j + i - edges.high))),
                                  V::le(lane, V::set1(static_cast<E>(j + i - edges.low))));
      E* p = tile + i * lanes + l;
      const auto x = V::select(inside, V::load(p), V::set1(-E(__builtin_inf())));
      V::store(p, x);
      top = V::max(x, top);
    }
    V::store(max + l, top);
  }
}

// S^T of a panel and n keys; max (lanes): the maxima, NaN passed over. Lanes that do not see a key
// get -inf there. s needs room for one more dot tile. Out of line: the tile needs every register.
template <class V, int NV>
ROWMAX_NOINLINE inline void scores(const typename V::E* qt, const typename V::E* k, int64_t ldk,
                                   int64_t n, int64_t depth, const BandEdges& edges,
                                   Prefetch& keys_ahead, Prefetch& rows_ahead, typename V::E* s,
                                   typename V::E* max) {
  using E = typename V::E;
  using R = typename V::R;
  constexpr int MR = V::tile_rows(NV);
  constexpr int kLanes = NV * V::W;
  // The rows of the last tile past n repeat row n - 1: no harm to a maximum.
  const int64_t clean_end = edges.clean_end == n ? n + MR : edges.clean_end;
  const int64_t clean_begin = edges.clean_begin;
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) {
    V::store(max + v * V::W, V::set1(-E(__builtin_inf())));
  }
  dot_block<V, NV>(
      qt, k, ldk, n, depth, [&](int64_t j, R(&acc)[MR][NV]) __attribute__((always_inline)) {
        E* tile = s + j * kLanes;
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
          for (int v = 0; v < NV; ++v) {
            V::store(tile + i * kLanes + v * V::W, acc[i][v]);
          }
        }
        if (j < clean_begin || j + MR > clean_end) {
          hide_in_tile<V>(edges, j, imin(MR, n - j), kLanes, tile, max);
        } else {
#pragma GCC unroll 4
          for (int v = 0; v < NV; ++v) {
            R top = V::load(max + v * V::W);
#pragma GCC unroll 16
            for (int i = 0; i < MR; ++i) {
              top = V::max(acc[i][v], top);
            }
            V::store(max + v * V::W, top);
          }
        }
        // Here no accumulator lives across the call for a new row.
        keys_ahead.step();
        rows_ahead.step();
      });
}

// How a run of scores becomes probabilities.
enum class Exponent {
  kClean,    // references in the fast range, no NaN payload, nothing hidden; at least 2^-126
  kHidden,   // references in the fast range; -inf gives exactly 0, NaN stays NaN
  kChecked,  // any reference; a lane in the fast range gets the bits of the others
};

template <class V>
ROWMAX_INLINE typename V::M in_fast_range(typename V::R m) {
  return V::both(V::lt(V::set1(-kFastReference), m), V::lt(m, V::set1(kFastReference)));
}

// U rows of one vector column: P = exp2(S - m), sum += P. The sum takes one row after the other, so
// that a lane's bits do not depend on where its neighbours' visible keys end.
template <class V, int U, Exponent kind>
ROWMAX_INLINE void exponentiate(typename V::E* p, int64_t ld, typename V::R m, typename V::R& sum) {
  using R = typename V::R;
  R x[U];
  R out[U];
#pragma GCC unroll 8
  for (int u = 0; u < U; ++u) {
    x[u] = V::load(p + u * ld);
  }
  if constexpr (sizeof(typename V::E) == 4) {
    exp2_reference<V, U>(x, V::sub(V::set1(kMagic), m), V::sub(m, V::set1(126.0f)), out);
    if constexpr (kind != Exponent::kClean) {
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) {
        out[u] = V::select(V::eq(x[u], V::set1(-__builtin_inff())), V::zero(), out[u]);
        out[u] = V::select(V::eq(x[u], x[u]), out[u], x[u]);
      }
    }
    if constexpr (kind == Exponent::kChecked) {
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) {
        out[u] = V::select(in_fast_range<V>(m), out[u], exp2_checked<V>(V::sub(x[u], m)));
      }
    }
  } else {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      out[u] = exp2_checked<V>(V::sub(x[u], m));
    }
  }
#pragma GCC unroll 8
  for (int u = 0; u < U; ++u) {
    V::store(p + u * ld, out[u]);
    sum = V::add(sum, out[u]);
  }
}

// P^T = exp2(S^T - m) in place and sums += column sums, over n keys. m and sum (lanes). One vector
// column at a time, and out of line, so that its constants stay in registers.
template <class V, Exponent kind>
ROWMAX_NOINLINE inline void exponentiate_keys(typename V::E* s, int64_t n, int64_t lanes,
                                              const typename V::E* m, typename V::E* sum) {
  constexpr int U = kind == Exponent::kChecked ? 1 : 4;  // two exponentials of four rows spill
  for (int64_t l = 0; l < lanes; l += V::W) {
    typename V::E* p = s + l;
    const typename V::R reference = V::load(m + l);
    typename V::R total = V::load(sum + l);
    int64_t j = 0;
    for (; j + U <= n; j += U, p += U * lanes) {
      exponentiate<V, U, kind>(p, lanes, reference, total);
    }
    for (; j < n; ++j, p += lanes) {
      exponentiate<V, 1, kind>(p, lanes, reference, total);
    }
    V::store(sum + l, total);
  }
}

// Scores as stored by scores(): hidden keys at the edges of the band only.
template <class V>
ROWMAX_INLINE void exponentiate_band(typename V::E* s, int64_t n, int64_t lanes,
                                     const BandEdges& edges, const typename V::E* m,
                                     typename V::E* sum) {
  const int64_t begin = edges.clean_begin;
  const int64_t end = imax(edges.clean_end, begin);
  if (begin > 0) {
    exponentiate_keys<V, Exponent::kHidden>(s, begin, lanes, m, sum);
  }
  exponentiate_keys<V, Exponent::kClean>(s + begin * lanes, end - begin, lanes, m, sum);
  if (end < n) {
    exponentiate_keys<V, Exponent::kHidden>(s + end * lanes, n - end, lanes, m, sum);
  }
}

// Maxima of the lanes over n keys, NaN passed over.
template <class V>
ROWMAX_NOINLINE inline void column_max(const typename V::E* s, int64_t n, int64_t lanes,
                                       typename V::E* max) {
  for (int64_t l = 0; l < lanes; l += V::W) {
    typename V::R top = V::set1(-typename V::E(__builtin_inf()));
    for (int64_t j = 0; j < n; ++j) {
      top = V::max(V::load(s + j * lanes + l), top);
    }
    V::store(max + l, top);
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

// Scores of a run -> probabilities; updates the state. block_max (lanes): maxima over the run.
// `clean`: Q and K are finite and only the band hides keys. Returns whether some lane's reference
// moved.
template <class V, int NV>
ROWMAX_INLINE bool online_softmax(typename V::E* s, int64_t n, const BandEdges& edges,
                                  const typename V::E* block_max, bool clean,
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
    const R top = V::ceil(V::load(block_max + v * W));
    m[v] = V::max(top, old[v]);
    same = same && V::all(V::eq(m[v], old[v]));
    V::store(state.max + v * W, m[v]);
    if constexpr (sizeof(E) == 4) {
      clean = clean && V::all(V::both(V::lt(V::set1(-kFastReference), top),
                                      V::lt(m[v], V::set1(kFastReference))));
      near = near && V::all(V::either(in_fast_range<V>(m[v]), V::eq(m[v], hidden)));
    }
  }
  if constexpr (sizeof(E) == 4) {
    if (clean) {
      if (!same) {
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
          const R factor = exp2_checked<V>(V::sub(old[v], m[v]));
          V::store(state.sum + v * W, V::mul(V::load(state.sum + v * W), factor));
          V::store(state.rescale + v * W, factor);
        }
      }
      exponentiate_band<V>(s, n, NV * W, edges, state.max, state.sum);
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
      exponentiate_keys<V, Exponent::kHidden>(s, n, NV * W, reference, state.sum);
      return !same;
    }
  }
  exponentiate_keys<V, Exponent::kChecked>(s, n, NV * W, reference, state.sum);
  return !same;
}

}  // namespace rowmax::cpu::ROWMAX_ISA
