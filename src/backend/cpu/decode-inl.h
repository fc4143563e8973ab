// Decode: forward for few query rows. An item is one (batch element, kv head) and one key range;
// its G * Sq rows read every key and value once. Several ranges of one sequence leave partial
// states.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/decode_block-inl.h"
#include "backend/cpu/decode_keys-inl.h"
#include "backend/cpu/decode_scratch.h"
#include "backend/cpu/output-inl.h"
#include "backend/cpu/score-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/layout.h"

namespace rowmax::cpu::ROWMAX_ISA {

// ---- scores ------------------------------------------------------------------------------------
// Products s[key][rows] -> scores in log2 units, as score-inl.h does for a tile of one head: a
// block holds rows of several heads and keys that need not be neighbours.
template <class V>
ROWMAX_NOINLINE inline void modify_block(const DecodeItem& item, const KeyBlock& block,
                                         typename V::E* s) {
  using E = typename V::E;
  const ScoreArgs& score = item.args->score;
  const int64_t count = block.count * item.rows;
  if (score.softcap > 0.0) {
    const ScoreTile tile = {0, item.rows, item.rows, 0, block.count};
    apply_softcap<V>(tile, static_cast<E>(score.softcap * kLog2E), s, nullptr);
  }
  if (score.bias.data != nullptr) {
    E bias[kDecodeScores];
    for (int64_t x = 0; x < round_up(count, V::W); ++x) {
      const int r = static_cast<int>(x % item.rows);
      bias[x] = x < count && r < item.count ? bias_of<E>(item, r, block.key[x / item.rows]) : E(0);
    }
    add_bias_values<V>(count, bias, s);
  }
  if (score.slopes == nullptr) {
    return;
  }
  const int64_t diagonal = score.band.top_left ? 0 : item.extent.k_len - item.extent.q_len;
  for (int r = 0; r < item.count; ++r) {
    const E slope = static_cast<E>(
        score.slopes[item.batch * score.slope_batch + item.head[r] * score.slope_head] * kLog2E);
    for (int64_t j = 0; j < block.count; ++j) {
      const int64_t offset = item.position[r] + diagonal - block.key[j];
      s[j * item.rows + r] -= slope * static_cast<E>(offset < 0 ? -offset : offset);
    }
  }
}

// Hidden (row, key) pairs of a block become -inf, whatever the product was.
template <class E>
ROWMAX_NOINLINE inline void hide_pairs(const DecodeItem& item, const KeyBlock& block, E* s) {
  for (int64_t j = 0; j < block.count; ++j) {
    for (int r = 0; r < item.rows; ++r) {
      if ((block.visible[j] >> r & 1) == 0) {
        s[j * item.rows + r] = -static_cast<E>(__builtin_inf());
      }
    }
  }
}

template <class E>
ROWMAX_NOINLINE inline void drop_weights(const DecodeItem& item, const KeyBlock& block, E* p) {
  const DropoutArgs& dropout = item.args->dropout;
  for (int64_t j = 0; j < block.count; ++j) {
    for (int r = 0; r < item.count; ++r) {
      const int64_t bh = item.batch * item.args->shape.heads_q + item.head[r];
      const bool kept = dropout_keeps(dropout, bh, item.position[r], block.key[j]);
      E& weight = p[j * item.rows + r];
      weight = kept ? weight * static_cast<E>(dropout.keep_scale) : E(0);
    }
  }
}

// Q (rows, q_stride), scaled; zero in the padding.
template <class V>
ROWMAX_NOINLINE inline void load_queries(const DecodeItem& item, int64_t q_stride,
                                         typename V::E* q) {
  using E = typename V::E;
  const TensorArg& from = item.args->q;
  const E factor = static_cast<E>(query_factor(item.args->score));
  for (int r = 0; r < item.rows; ++r) {
    int64_t d = 0;
    if (r < item.count) {
      const int64_t offset = item.batch * from.batch + item.head[r] * from.head +
                             (item.extent.q_begin + item.position[r]) * from.seq;
      const void* row = element(static_cast<const void*>(from.data), from.dtype, offset);
      with_storage(
          from.dtype, [&](auto policy) __attribute__((always_inline)) {
            using S = decltype(policy);
            for (; d < item.args->shape.head_dim; ++d) {
              q[r * q_stride + d] =
                  static_cast<E>(S::get(static_cast<const typename S::T*>(row) + d)) * factor;
            }
          });
    }
    for (; d < q_stride; ++d) {
      q[r * q_stride + d] = 0;
    }
  }
}

// ---- results -----------------------------------------------------------------------------------
template <class V>
ROWMAX_NOINLINE inline void store_rows_of(const KernelLaunch& launch, const DecodeItem& item,
                                          const DecodeState<V>& state, typename V::E* o,
                                          int64_t o_stride) {
  using E = typename V::E;
  const AttentionArgs& args = *item.args;
  const int64_t splits = launch.schedule.splits;
  const PartialStates<E> states(args, launch.regions[static_cast<int>(Region::kPartialStates)],
                                splits);
  for (int r = 0; r < item.count; ++r) {
    const E sum = state.sum(r, item.rows);
    if (splits > 1) {
      const int64_t flat = flat_query_row(args, item.extent, item.batch, item.position[r]);
      store_partial_row<V>(states, states.index(item.split, item.head[r], flat), state.m[r], sum,
                           o + r * o_stride);
    } else {
      finish_row<V>(args, item.extent, {item.batch, item.head[r], item.position[r]}, state.m[r],
                    sum, o + r * o_stride);
    }
  }
}

// ---- one item ----------------------------------------------------------------------------------
template <class V>
ROWMAX_NOINLINE inline void decode_item(const KernelLaunch& launch, const DecodeItem& item,
                                        char* scratch) {
  using E = typename V::E;
  const ShapeArgs& shape = item.args->shape;
  const DecodeScratch layout =
      decode_scratch(item.count, shape.head_dim, shape.head_dim_v, V::W, sizeof(E));
  E* q = reinterpret_cast<E*>(scratch + layout.q);
  E* o = reinterpret_cast<E*>(scratch + layout.o);
  load_queries<V>(item, layout.q_stride, q);
  for (int64_t x = 0; x < item.rows * layout.o_stride; ++x) {
    o[x] = 0;
  }
  const DecodeOperands<E> operands = {
      q, o, layout.q_stride, layout.o_stride, shape.head_dim, shape.head_dim_v};
  const BlockProducts<V> products = block_products<V>(item.args->k.dtype, item.rows);
  const int64_t size = decode_block_keys(item.args->k.dtype);

  DecodeState<V> state;
  state.reset();
  alignas(kLineBytes) E s[kDecodeScores];
  KeyBlock blocks[2];
  int64_t begin = item.keys.begin;
  int at = 0;
  next_key_block(item, size, &begin, &blocks[at]);
  while (blocks[at].count > 0) {
    const KeyBlock& block = blocks[at];
    KeyBlock& next = blocks[1 - at];
    products.score(operands, block, s);
    if (item.modifies) {
      modify_block<V>(item, block, s);
    }
    if (!block.clean) {
      hide_pairs(item, block, s);
    }
    const bool moved = softmax_block<V>(s, block.count, item.rows, &state);
    if (item.args->dropout.on) {
      drop_weights(item, block, s);
    }
    next_key_block(item, size, &begin, &next);
    products.accumulate(operands, block, next, s, moved ? state.alpha : nullptr);
    at = 1 - at;
  }
  store_rows_of<V>(launch, item, state, o, layout.o_stride);
}

template <class V>
ROWMAX_INLINE void decode_worker(const KernelLaunch& launch, int worker) {
  char* scratch = launch.thread_scratch + launch.thread_stride * static_cast<size_t>(worker);
  for_each_item(launch, launch.schedule.items, [&](int64_t index) {
    const DecodeItem item = make_decode_item(launch, index);
    if (item.count > 0) {
      decode_item<V>(launch, item, scratch);
    }
  });
}

}  // namespace rowmax::cpu::ROWMAX_ISA
