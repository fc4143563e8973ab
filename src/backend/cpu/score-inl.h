// From raw products to scores: softcap, bias, ALiBi, masks, documents, band edges and dropout, in
// the order of docs/semantics.md. Works on a tile s[key][lane] that is still in L1; one pass a
// feature, so that a problem pays only for what it uses. Scores are in log2 units.
#pragma once

#include <cstdint>

#include "backend/cpu/pack-inl.h"
#include "kernel_api/args.h"
#include "problem/band.h"
#include "problem/philox.h"

namespace rowmax::cpu::ROWMAX_ISA {

// The score options of one (batch, query head), resolved once per item.
template <class V>
struct ScoreModifier {
  using E = typename V::E;
  bool any = false;  // false: plain scores, only the band hides keys
  E q_factor = 0;    // what Q is packed with: scale * log2(e), or scale / softcap
  E cap = 0;         // softcap * log2(e); 0: none
  E slope = 0;       // ALiBi slope * log2(e)
  bool alibi = false;
  int64_t diagonal = 0;  // key position that ALiBi compares row 0 with
  RowBand band;
  const void* bias = nullptr;  // at (b, h, 0, 0)
  DType bias_dtype = DType::kF32;
  int64_t bias_row = 0;
  int64_t bias_col = 0;
  const uint8_t* mask = nullptr;  // at (b, h, 0, 0)
  int64_t mask_row = 0;
  int64_t mask_col = 0;
  const int32_t* documents_q = nullptr;  // at row 0 of the sequence
  const int32_t* documents_k = nullptr;
  int64_t documents_q_step = 0;
  int64_t documents_k_step = 0;
};

// Lanes are rows [row0, row0 + rows) of a panel `lanes` wide, keys [key0, key0 + keys); positions
// in the sequence.
struct ScoreTile {
  int64_t row0;
  int64_t rows;
  int64_t lanes;
  int64_t key0;
  int64_t keys;
};

// What Q is multiplied with, so that a plain product is a score in log2 units.
ROWMAX_INLINE double query_factor(const ScoreArgs& score) {
  return score.softcap > 0.0 ? score.scale / score.softcap : score.scale * kLog2E;
}

template <class V>
ROWMAX_NOINLINE inline ScoreModifier<V> make_score_modifier(const AttentionArgs& args,
                                                            const SequenceExtent& extent,
                                                            const RowBand& band, int64_t b,
                                                            int64_t h) {
  using E = typename V::E;
  const ScoreArgs& score = args.score;
  ScoreModifier<V> out;
  out.band = band;
  const bool capped = score.softcap > 0.0;
  out.q_factor = static_cast<E>(query_factor(score));
  out.cap = capped ? static_cast<E>(score.softcap * kLog2E) : E(0);
  if (score.slopes != nullptr) {
    out.alibi = true;
    out.slope = static_cast<E>(score.slopes[b * score.slope_batch + h * score.slope_head] * kLog2E);
    out.diagonal = score.band.top_left ? 0 : extent.k_len - extent.q_len;
  }
  if (score.bias.data != nullptr) {
    out.bias = element(static_cast<const void*>(score.bias.data), score.bias.dtype,
                       b * score.bias.batch + h * score.bias.head);
    out.bias_dtype = score.bias.dtype;
    out.bias_row = score.bias.row;
    out.bias_col = score.bias.col;
  }
  if (score.mask.data != nullptr) {
    out.mask =
        static_cast<const uint8_t*>(score.mask.data) + b * score.mask.batch + h * score.mask.head;
    out.mask_row = score.mask.row;
    out.mask_col = score.mask.col;
  }
  if (score.documents_q.data != nullptr) {
    out.documents_q_step = score.documents_q.seq;
    out.documents_k_step = score.documents_k.seq;
    out.documents_q = score.documents_q.data + b * score.documents_q.batch +
                      extent.q_begin * score.documents_q.seq;
    out.documents_k = score.documents_k.data + b * score.documents_k.batch +
                      extent.k_begin * score.documents_k.seq;
  }
  out.any = capped || out.alibi || out.bias != nullptr || out.mask != nullptr ||
            out.documents_q != nullptr;
  return out;
}

// tanh: odd polynomial below 0.625 (relative error 9e-9 before rounding), 1 - 2 / (e^2x + 1) above.
template <class V>
ROWMAX_INLINE typename V::R tanh_lanes(typename V::R x) {
  using E = typename V::E;
  using R = typename V::R;
  if constexpr (sizeof(E) == 8) {
    E lanes[V::W];
    V::store(lanes, x);
    for (int i = 0; i < V::W; ++i) {
      lanes[i] = __builtin_tanh(lanes[i]);
    }
    return V::load(lanes);
  } else {
    const R a = V::abs(x);
    const R z = V::mul(x, x);
    R p = V::fma(V::set1(-5.704985931515694e-3f), z, V::set1(2.063908614218235e-2f));
    p = V::fma(p, z, V::set1(-5.373971536755562e-2f));
    p = V::fma(p, z, V::set1(1.3331441581249237e-1f));
    p = V::fma(p, z, V::set1(-3.333328068256378e-1f));
    const R small = V::fma(V::mul(x, z), p, x);
    // Beyond 10 the result rounds to 1; the clamp keeps the exponential finite.
    const R twice = V::mul(V::min(a, V::set1(10.0f)), V::set1(static_cast<float>(2.0 * kLog2E)));
    const R e = exp2_checked<V>(twice);
    R big = V::sub(V::set1(1.0f), V::div(V::set1(2.0f), V::add(e, V::set1(1.0f))));
    big = V::select(V::lt(x, V::zero()), V::sub(V::zero(), big), big);
    const R out = V::select(V::lt(a, V::set1(0.625f)), small, big);
    return V::select(V::eq(x, x), out, x);
  }
}

template <class V>
ROWMAX_NOINLINE inline void apply_softcap(const ScoreTile& tile, typename V::E cap,
                                          typename V::E* s, typename V::E* cap_slope) {
  const int64_t count = tile.keys * tile.lanes;
  const auto factor = V::set1(cap);
  for (int64_t x = 0; x < count; x += V::W) {
    const auto t = tanh_lanes<V>(V::load(s + x));
    V::store(s + x, V::mul(t, factor));
    if (cap_slope != nullptr) {
      V::store(cap_slope + x, V::sub(V::set1(1), V::mul(t, t)));
    }
  }
}

// (rows, keys) of a strided operand -> scratch[key][lane]. col is 0 (broadcast along keys) or 1.
template <class V, class S>
ROWMAX_NOINLINE inline void transpose_operand(const typename S::T* src, int64_t row_stride,
                                              int64_t col_stride, const ScoreTile& tile,
                                              typename V::E* scratch) {
  using E = typename V::E;
  src += tile.row0 * row_stride + tile.key0 * col_stride;
  if (col_stride == 1) {
    pack_transposed_as<V, S>(src, row_stride, tile.rows, tile.keys, tile.keys, tile.lanes, E(1),
                             scratch);
    return;
  }
  for (int64_t l = 0; l < tile.lanes; ++l) {
    const E x = l < tile.rows ? to_element<E>(S::get(src + l * row_stride)) : E(0);
    for (int64_t j = 0; j < tile.keys; ++j) {
      scratch[j * tile.lanes + l] = x;
    }
  }
}

// s += bias * log2(e) over `count` elements (whole vectors are read and written), -inf where the
// bias is. A finite product and a finite bias have a finite sum, which saturates at the range of E;
// infinities stay.
template <class V>
ROWMAX_NOINLINE inline void add_bias_values(int64_t count, const typename V::E* bias,
                                            typename V::E* s) {
  using E = typename V::E;
  const E largest = sizeof(E) == 4 ? E(3.4028234663852886e38) : E(1.7976931348623157e308);
  const auto hidden = V::set1(-E(__builtin_inf()));
  const auto floor = V::set1(-largest);
  const auto ceiling = V::set1(largest);
  const auto factor = V::set1(E(kLog2E));
  const auto clamp = [&](auto value) __attribute__((always_inline)) {
    return V::max(floor, V::min(ceiling, value));
  };
  for (int64_t x = 0; x < count; x += V::W) {
    const auto raw = V::load(bias + x);
    const auto product = V::load(s + x);
    auto sum = V::add(product, clamp(V::mul(raw, factor)));
    sum = V::select(V::both(V::ge(product, floor), V::le(product, ceiling)), clamp(sum), sum);
    sum = V::select(V::eq(V::abs(raw), V::sub(V::zero(), hidden)), V::add(product, raw), sum);
    V::store(s + x, V::select(V::eq(raw, hidden), hidden, sum));
  }
}

template <class V>
ROWMAX_NOINLINE inline void add_bias(const ScoreModifier<V>& modifier, const ScoreTile& tile,
                                     typename V::E* s, typename V::E* scratch) {
  with_storage(
      modifier.bias_dtype, [&](auto policy) __attribute__((always_inline)) {
        using S = decltype(policy);
        transpose_operand<V, S>(static_cast<const typename S::T*>(modifier.bias), modifier.bias_row,
                                modifier.bias_col, tile, scratch);
      });
  add_bias_values<V>(tile.keys * tile.lanes, scratch, s);
}

template <class V>
ROWMAX_NOINLINE inline void add_alibi(const ScoreModifier<V>& modifier, const ScoreTile& tile,
                                      typename V::E* s) {
  using E = typename V::E;
  const auto slope = V::set1(-modifier.slope);
  for (int64_t j = 0; j < tile.keys; ++j) {
    const E first = static_cast<E>(tile.row0 + modifier.diagonal - (tile.key0 + j));
    for (int64_t l = 0; l < tile.lanes; l += V::W) {
      E* p = s + j * tile.lanes + l;
      const auto distance = V::abs(V::add(V::iota(), V::set1(first + static_cast<E>(l))));
      V::store(p, V::fma(slope, distance, V::load(p)));
    }
  }
}

// Hides where scratch is -inf.
template <class V>
ROWMAX_INLINE void hide_where_infinite(const ScoreTile& tile, typename V::E* s,
                                       const typename V::E* scratch) {
  const auto hidden = V::set1(-typename V::E(__builtin_inf()));
  for (int64_t x = 0; x < tile.keys * tile.lanes; x += V::W) {
    V::store(s + x, V::select(V::eq(V::load(scratch + x), hidden), hidden, V::load(s + x)));
  }
}

template <class V>
ROWMAX_NOINLINE inline void hide_other_documents(const ScoreModifier<V>& modifier,
                                                 const ScoreTile& tile, typename V::E* s,
                                                 typename V::E* scratch) {
  using E = typename V::E;
  constexpr int kMaxLanes = kPanelVectors * V::W;
  int32_t ids[kMaxLanes];
  for (int64_t l = 0; l < tile.lanes; ++l) {
    const int64_t row = tile.row0 + (l < tile.rows ? l : 0);
    ids[l] = modifier.documents_q[row * modifier.documents_q_step];
  }
  for (int64_t j = 0; j < tile.keys; ++j) {
    const int32_t id = modifier.documents_k[(tile.key0 + j) * modifier.documents_k_step];
    for (int64_t l = 0; l < tile.lanes; ++l) {
      scratch[j * tile.lanes + l] = ids[l] == id ? E(0) : -E(__builtin_inf());
    }
  }
  hide_where_infinite<V>(tile, s, scratch);
}

// A key bound as a lane number that E holds exactly.
template <class V>
ROWMAX_INLINE typename V::E lane_bound(int64_t lane) {
  constexpr int64_t kFar = 1 << 20;
  return static_cast<typename V::E>(lane < -kFar ? -kFar : lane > kFar ? kFar : lane);
}

// Hides keys outside the band and every key of the lanes past `rows`; notes which keys any lane
// sees.
template <class V>
ROWMAX_NOINLINE inline void hide_outside_band(const RowBand& band, const ScoreTile& tile,
                                              typename V::E* s, uint8_t* visible) {
  using E = typename V::E;
  const auto hidden = V::set1(-E(__builtin_inf()));
  const auto last = V::set1(static_cast<E>(tile.rows - 1));
  for (int64_t j = 0; j < tile.keys; ++j) {
    const int64_t key = tile.key0 + j;
    // Visible iff row + lo <= key <= row + hi, that is key - hi - row0 <= lane <= key - lo - row0.
    const auto low = V::set1(band.has_hi ? lane_bound<V>(key - band.hi - tile.row0) : E(0));
    const auto high =
        band.has_lo ? V::min(last, V::set1(lane_bound<V>(key - band.lo - tile.row0))) : last;
    bool seen = false;
    for (int64_t l = 0; l < tile.lanes; l += V::W) {
      E* p = s + j * tile.lanes + l;
      const auto lane = V::add(V::iota(), V::set1(static_cast<E>(l)));
      const auto inside = V::both(V::ge(lane, low), V::le(lane, high));
      const auto x = V::select(inside, V::load(p), hidden);
      V::store(p, x);
      seen = seen || !V::all(V::eq(x, hidden));
    }
    visible[j] = seen ? 1 : 0;
  }
}

// In place: raw products s (keys, lanes) -> scores in log2 units, hidden keys -inf (by select, so
// that NaN in a hidden key's row does not matter). scratch: (keys, lanes). cap_slope: null, or
// receives the softcap's derivative 1 - tanh^2 (only when there is a softcap). visible (keys):
// whether some lane < rows sees the key.
template <class V>
ROWMAX_NOINLINE inline void modify_scores(const ScoreModifier<V>& modifier, const ScoreTile& tile,
                                          typename V::E* s, typename V::E* scratch,
                                          typename V::E* cap_slope, uint8_t* visible) {
  if (modifier.cap != 0) {
    apply_softcap<V>(tile, modifier.cap, s, cap_slope);
  }
  if (modifier.bias != nullptr) {
    add_bias<V>(modifier, tile, s, scratch);
  }
  if (modifier.alibi) {
    add_alibi<V>(modifier, tile, s);
  }
  if (modifier.mask != nullptr) {
    transpose_operand<V, StoredMask>(modifier.mask, modifier.mask_row, modifier.mask_col, tile,
                                     scratch);
    hide_where_infinite<V>(tile, s, scratch);
  }
  if (modifier.documents_q != nullptr) {
    hide_other_documents<V>(modifier, tile, s, scratch);
  }
  hide_outside_band<V>(modifier.band, tile, s, visible);
}

// Philox calls for U32::W rows of a group of eight, from row x of the group on, and one key of a
// group. kept[w][x]: keep_scale or 0 by word w of row x. The scalar form is problem/philox.h.
ROWMAX_INLINE void dropout_lanes(const DropoutArgs& d, int64_t bh, uint32_t first_row, uint32_t key,
                                 int x, float (&kept)[4][8]) {
  using U = U32;
  uint32_t rows[U::W];
  for (int i = 0; i < U::W; ++i) {
    rows[i] = first_row + static_cast<uint32_t>(x + i);
  }
  U::R c0 = U::load(rows);
  U::R c1 = U::set1(key);
  U::R c2 = U::set1(static_cast<uint32_t>(bh));
  U::R c3 = U::set1(static_cast<uint32_t>(d.offset));
  U::R k0 = U::set1(static_cast<uint32_t>(d.seed));
  U::R k1 = U::set1(static_cast<uint32_t>(d.seed >> 32) ^ static_cast<uint32_t>(d.offset >> 32));
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    U::R high0{};
    U::R high1{};
    const U::R low0 = U::multiply(c0, U::set1(0xD2511F53u), high0);
    const U::R low1 = U::multiply(c2, U::set1(0xCD9E8D57u), high1);
    c0 = U::bit_xor(U::bit_xor(high1, c1), k0);
    c2 = U::bit_xor(U::bit_xor(high0, c3), k1);
    c1 = low1;
    c3 = low0;
    k0 = U::add(k0, U::set1(0x9E3779B9u));
    k1 = U::add(k1, U::set1(0xBB67AE85u));
  }
  // A threshold of 2^32 (p = 1) comes with keep_scale = 0, so that 2^32 - 1 serves it too.
  const uint64_t last = 0xffffffffu;
  const U::R threshold = U::set1(static_cast<uint32_t>(d.threshold > last ? last : d.threshold));
  U::store_kept(kept[0] + x, c0, threshold, d.keep_scale);
  U::store_kept(kept[1] + x, c1, threshold, d.keep_scale);
  U::store_kept(kept[2] + x, c2, threshold, d.keep_scale);
  U::store_kept(kept[3] + x, c3, threshold, d.keep_scale);
}

// p *= keep, element by element, with the weights kept scaled by 1 / (1 - p). keep (keys, lanes):
// null, or receives the factors. Lanes past `rows` are left alone.
template <class V>
ROWMAX_NOINLINE inline void apply_dropout(const DropoutArgs& d, int64_t bh, const ScoreTile& tile,
                                          typename V::E* p, typename V::E* keep) {
  using E = typename V::E;
  const int64_t i0 = tile.row0 + d.row_base;
  const int64_t i1 = i0 + tile.rows;
  const int64_t j0 = tile.key0 + d.col_base;
  const int64_t j1 = j0 + tile.keys;
  static_assert(8 % U32::W == 0, "a group of eight rows is whole vectors");
  float kept[4][8];
  for (int64_t rb = i0 >> 4; rb <= (i1 - 1) >> 4; ++rb) {
    for (int64_t kb = j0 >> 4; kb <= (j1 - 1) >> 4; ++kb) {
      for (int y = 0; y < 8; ++y) {
        for (int x = 0; x < 8; x += U32::W) {
          dropout_lanes(d, bh, static_cast<uint32_t>(rb * 8), static_cast<uint32_t>(kb * 8 + y), x,
                        kept);
        }
        for (int w = 0; w < 4; ++w) {
          const int64_t j = kb * 16 + (w & 1) * 8 + y;
          const int64_t i = rb * 16 + (w >> 1) * 8;
          const int64_t begin = imax(i, i0);
          const int64_t end = imin(i + 8, i1);
          if (j < j0 || j >= j1 || begin >= end) {
            continue;
          }
          const int64_t at = (j - j0) * tile.lanes - i0;
          if (end - begin == 8) {
#pragma GCC unroll 8
            for (int x = 0; x < 8; ++x) {
              p[at + i + x] *= static_cast<E>(kept[w][x]);
            }
          } else {
            for (int64_t x = begin; x < end; ++x) {
              p[at + x] *= static_cast<E>(kept[w][x - i]);
            }
          }
          for (int64_t x = begin; keep != nullptr && x < end; ++x) {
            keep[at + x] = static_cast<E>(kept[w][x - i]);
          }
        }
      }
    }
  }
}

}  // namespace rowmax::cpu::ROWMAX_ISA
