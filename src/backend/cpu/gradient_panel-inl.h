// One query panel against a run of keys in backward: probabilities and dS, both [key][lane], from
// two dot products and the saved row statistics. Shared by the backward and the bias-gradient
// kernels.
//
//   S^T = K Qt      P^T = exp2(S^T - LSE)      dS^T = P^T o (V dOt - delta)
//
// P^T and dS^T as written are the packed operand A of the rank tiles.
#pragma once

#include <cstdint>

#include "backend/cpu/backward_scratch.h"
#include "backend/cpu/keys-inl.h"
#include "backend/cpu/pack-inl.h"
#include "backend/cpu/score-inl.h"
#include "kernel_api/args.h"

namespace rowmax::cpu::ROWMAX_ISA {

// What is the same for every tile of one (batch element, query head).
template <class V>
struct GradientHead {
  ScoreModifier<V> modifier;
  DropoutArgs dropout;
  int64_t bh = 0;  // b * Hq + h
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
};

// Operands and results of one panel. `lanes` = NV * W.
template <class V>
struct GradientPanel {
  using E = typename V::E;
  const E* q;     // (D, lanes), times ScoreModifier::q_factor
  const E* dout;  // (Dv, lanes)
  const E* k;     // (keys, ldk)
  const E* v;     // (keys, ldv)
  int64_t ldk;
  int64_t ldv;
  const E* lse;    // (lanes), log2 units; +inf: P = 0 (no keys, or a sink of +inf)
  const E* delta;  // (lanes), rowsum(dO o O) - dLSE
  bool fast;       // Q is finite and every lse is inside the range of exp2_reference
  bool wants_ds;
  E* p;                     // (keys + kTileMargin, lanes): probabilities, after dropout
  E* ds;                    // (keys + kTileMargin, lanes): gradient of the logits
  Prefetch* keys_ahead;     // stepped by the tiles of the scores
  Prefetch* queries_ahead;  // stepped by the tiles of dP
};

// Buffers of one tile, (tile_k + kTileMargin, widest panel) each.
template <class V>
struct GradientBuffers {
  using E = typename V::E;
  E* modifier;
  E* cap_slope;
  E* keep;
  uint8_t* visible;  // (tile_k): set by panel_probabilities when the modifier is active
};

// Which exponential: against the integer reference (fp32, statistics in its range, no -inf and no
// NaN among the scores), or the careful form.
enum class Exp2Form { kReference, kChecked };

// Probabilities below 2^-100 are flushed to it, not to 2^-126: dS = P * (...) then stays a normal
// number, and denormals are slow.
inline constexpr float kSmallestExponent = -100.0f;

template <class V, Exp2Form kForm, int U>
ROWMAX_INLINE void exp2_rows(const typename V::R (&x)[U], typename V::R (&out)[U]) {
  if constexpr (kForm == Exp2Form::kReference) {
    exp2_reference<V, U>(x, V::set1(kMagic), V::set1(kSmallestExponent), out);
  } else {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      // P <= 1: where |LSE| is huge its rounding alone may put x far above 0. NaN stays NaN.
      out[u] = exp2_checked<V>(V::min(V::zero(), x[u]));
    }
  }
}

// Keys of a tile, counted from its first, that every row sees; the keys before and after are cut by
// an edge of the band. Empty (begin == end == keys) when there are none.
ROWMAX_INLINE KeyRange clean_keys(const RowBand& band, const ScoreTile& tile) {
  const int64_t begin = band.has_lo ? tile.row0 + tile.rows - 1 + band.lo - tile.key0 : 0;
  const int64_t end = band.has_hi ? tile.row0 + band.hi + 1 - tile.key0 : tile.keys;
  const int64_t first = begin < 0 ? 0 : imin(begin, tile.keys);
  const int64_t last = imin(end, tile.keys);
  return first < last ? KeyRange{first, last} : KeyRange{tile.keys, tile.keys};
}

// Scores -> probabilities, in place, for one vector of lanes that starts at lane `lane0`.
// Keys outside `clean` are compared with the band; hidden ones become exactly 0.
template <class V, Exp2Form kForm>
ROWMAX_NOINLINE void exp2_column(const RowBand& band, const ScoreTile& tile, KeyRange clean,
                                 const typename V::E* lse_lanes, int64_t lane0, typename V::E* p) {
  using E = typename V::E;
  using R = typename V::R;
  constexpr int U = 4;
  const int64_t step = tile.lanes;
  const R lse = V::load(lse_lanes);
  const auto edge = [&](int64_t j) __attribute__((always_inline)) {
    const int64_t key = tile.key0 + j;
    const R x[1] = {V::sub(V::load(p + j * step), lse)};
    R out[1];
    exp2_rows<V, kForm, 1>(x, out);
    const R lane = V::add(V::iota(), V::set1(static_cast<E>(lane0)));
    if (band.has_hi) {
      const R low = V::set1(lane_bound<V>(key - band.hi - tile.row0));
      out[0] = V::select(V::ge(lane, low), out[0], V::zero());
    }
    if (band.has_lo) {
      const R high = V::set1(lane_bound<V>(key - band.lo - tile.row0));
      out[0] = V::select(V::le(lane, high), out[0], V::zero());
    }
    V::store(p + j * step, out[0]);
  };
  int64_t j = 0;
  for (; j < clean.begin; ++j) {
    edge(j);
  }
  for (; j + U <= clean.end; j += U) {
    R x[U];
    R out[U];
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      x[u] = V::sub(V::load(p + (j + u) * step), lse);
    }
    exp2_rows<V, kForm, U>(x, out);
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      V::store(p + (j + u) * step, out[u]);
    }
  }
  for (; j < clean.end; ++j) {
    const R x[1] = {V::sub(V::load(p + j * step), lse)};
    R out[1];
    exp2_rows<V, kForm, 1>(x, out);
    V::store(p + j * step, out[0]);
  }
  for (; j < tile.keys; ++j) {
    edge(j);
  }
}

// P^T of one panel before dropout. Returns false when no row sees any of the keys (P is then 0).
template <class V, int NV>
ROWMAX_INLINE bool panel_probabilities(const GradientHead<V>& head, const ScoreTile& tile,
                                       const GradientPanel<V>& x, GradientBuffers<V>* scratch) {
  using E = typename V::E;
  constexpr int MR = V::tile_rows(NV);
  constexpr int kLanes = NV * V::W;
  E* p = x.p;
  dot_block<V, NV>(
      x.q, x.k, x.ldk, tile.keys,
      head.head_dim, [&](int64_t j, typename V::R(&acc)[MR][NV]) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
          for (int v = 0; v < NV; ++v) V::store(p + (j + i) * kLanes + v * V::W, acc[i][v]);
        x.keys_ahead->step();
      });
  KeyRange clean = {0, tile.keys};
  if (head.modifier.any) {
    modify_scores<V>(head.modifier, tile, p, scratch->modifier, scratch->cap_slope,
                     scratch->visible);
    bool seen = false;
    for (int64_t j = 0; j < tile.keys; ++j) {
      seen = seen || scratch->visible[j] != 0;
    }
    if (!seen) {
      return false;
    }
  } else {
    clean = clean_keys(head.modifier.band, tile);
  }
  for (int v = 0; v < NV; ++v) {
    const E* lse = x.lse + v * V::W;
    if constexpr (sizeof(E) == 4) {
      if (x.fast && !head.modifier.any) {
        exp2_column<V, Exp2Form::kReference>(head.modifier.band, tile, clean, lse, v * V::W,
                                             p + v * V::W);
        continue;
      }
    }
    exp2_column<V, Exp2Form::kChecked>(head.modifier.band, tile, clean, lse, v * V::W,
                                       p + v * V::W);
  }
  return true;
}

// dS^T of one panel. `weights`: P before dropout (may be x.ds itself). A hidden key has P = 0 and
// may have a NaN in V: the select makes its dS exactly 0. keep: null without dropout.
template <class V, int NV>
ROWMAX_INLINE void panel_logit_gradients(const GradientHead<V>& head, const ScoreTile& tile,
                                         const GradientPanel<V>& x, const typename V::E* weights,
                                         const typename V::E* keep, bool has_hidden) {
  using R = typename V::R;
  constexpr int MR = V::tile_rows(NV);
  constexpr int kLanes = NV * V::W;
  const auto* delta = x.delta;
  auto* ds = x.ds;
  dot_block<V, NV>(
      x.dout, x.v, x.ldv, tile.keys,
      head.head_dim_v, [&](int64_t j, R(&acc)[MR][NV]) __attribute__((always_inline)) {
        const int64_t at = j * kLanes;
        if (!has_hidden) {
#pragma GCC unroll 16
          for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
              const int64_t e = at + i * kLanes + v * V::W;
              const R t = V::sub(acc[i][v], V::load(delta + v * V::W));
              V::store(ds + e, V::mul(V::load(weights + e), t));
            }
          return;
        }
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
          for (int v = 0; v < NV; ++v) {
            const int64_t e = at + i * kLanes + v * V::W;
            R t = acc[i][v];
            if (keep != nullptr) {
              t = V::mul(t, V::load(keep + e));
            }
            t = V::sub(t, V::load(delta + v * V::W));
            const R w = V::load(weights + e);
            V::store(ds + e, V::select(V::eq(w, V::zero()), w, V::mul(w, t)));
          }
      });
}

// Zeroes rows [begin, end) of a (keys, lanes) tile.
template <class V>
ROWMAX_INLINE void zero_rows(typename V::E* tile, int64_t lanes, int64_t begin, int64_t end) {
  for (int64_t x = begin * lanes; x < end * lanes; x += V::W) {
    V::store(tile + x, V::zero());
  }
}

// P (after dropout) and dS of one panel. Returns false when no row sees any of the keys: both are
// then not written.
template <class V, int NV>
ROWMAX_NOINLINE inline bool panel_gradients(const GradientHead<V>& head, const ScoreTile& tile,
                                            const GradientPanel<V>& x,
                                            GradientBuffers<V>* scratch) {
  using E = typename V::E;
  if (!panel_probabilities<V, NV>(head, tile, x, scratch)) {
    return false;
  }
  const KeyRange clean = clean_keys(head.modifier.band, tile);
  bool has_hidden = head.modifier.any || !x.fast || clean.begin != 0 || clean.end != tile.keys;
  const E* weights = x.p;
  const E* keep = nullptr;
  if (head.dropout.on) {
    // dS needs P as it was, dV needs P * keep: the first waits in ds.
    const size_t bytes = static_cast<size_t>(tile.keys * tile.lanes) * sizeof(E);
    __builtin_memcpy(x.ds, x.p, bytes);
    __builtin_memset(scratch->keep, 0, bytes);
    // The last dot tile reads past the keys too.
    zero_rows<V>(x.ds, tile.lanes, tile.keys, tile.keys + kTileMargin);
    zero_rows<V>(scratch->keep, tile.lanes, tile.keys, tile.keys + kTileMargin);
    apply_dropout<V>(head.dropout, head.bh, tile, x.p, scratch->keep);
    weights = x.ds;
    keep = scratch->keep;
    has_hidden = true;
  }
  if (x.wants_ds) {
    panel_logit_gradients<V, NV>(head, tile, x, weights, keep, has_hidden);
  }
  return true;
}

template <class V>
ROWMAX_INLINE bool panel_gradients(int vectors, const GradientHead<V>& head, const ScoreTile& tile,
                                   const GradientPanel<V>& x, GradientBuffers<V>* scratch) {
  switch (vectors) {
    case 3:
      return panel_gradients<V, 3>(head, tile, x, scratch);
    case 2:
      return panel_gradients<V, 2>(head, tile, x, scratch);
    default:
      return panel_gradients<V, 1>(head, tile, x, scratch);
  }
}

// Sum of dS * |row + diagonal - key|: dslope of a tile, but for the sign. In fp64.
template <class V>
ROWMAX_NOINLINE inline double distance_sum(const ScoreTile& tile, int64_t diagonal,
                                           const typename V::E* ds) {
  double sum = 0.0;
  for (int64_t j = 0; j < tile.keys; ++j) {
    const int64_t first = tile.row0 + diagonal - (tile.key0 + j);
    for (int64_t l = 0; l < tile.rows; ++l) {
      const int64_t distance = first + l < 0 ? -(first + l) : first + l;
      sum += static_cast<double>(ds[j * tile.lanes + l]) * static_cast<double>(distance);
    }
  }
  return sum;
}

}  // namespace rowmax::cpu::ROWMAX_ISA
