// Decode: forward for few query rows. An item is one (batch element, kv head) and one key range;
// its G * Sq rows read every key and value once. Several ranges of one sequence leave partial
// states.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/decode_block-inl.h"
#include "backend/cpu/decode_keys-inl.h"
#include "backend/cpu/decode_scratch.h"
#include "backend/cpu/score-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/layout.h"

namespace rowmax::cpu::ROWMAX_ISA {

// ---- scores ------------------------------------------------------------------------------------
// What Q is multiplied with: as in score-inl.h, so that a plain product is a score in log2 units.
ROWMAX_INLINE double query_factor(const ScoreArgs& score) {
  return score.softcap > 0.0 ? score.scale / score.softcap : score.scale * kLog2E;
}

// Products s[key][rows] -> scores in log2 units: the formulas of score-inl.h, one element at a time
// because a block holds rows of several heads and keys that need not be neighbours.
template <class V>
ROWMAX_NOINLINE inline void modify_block(const DecodeItem& item, const KeyBlock& block,
                                         typename V::E* s) {
  using E = typename V::E;
  const ScoreArgs& score = item.args->score;
  if (score.softcap > 0.0) {
    const ScoreTile tile = {0, item.rows, item.rows, 0, block.count};
    apply_softcap<V>(tile, static_cast<E>(score.softcap * kLog2E), s, nullptr);
  }
  const E floor = sizeof(E) == 4 ? E(-3.4028234663852886e38) : E(-1.7976931348623157e308);
  const int64_t diagonal = score.band.top_left ? 0 : item.extent.k_len - item.extent.q_len;
  for (int64_t j = 0; j < block.count; ++j) {
    for (int r = 0; r < item.count; ++r) {
      E x = s[j * item.rows + r];
      if (score.bias.data != nullptr) {  // finite terms keep a finite sum
        E bias = bias_of<E>(item, r, block.key[j]) * E(kLog2E);
        bias = bias < floor ? floor : bias;
        const bool finite = x >= floor;
        x += bias;
        x = finite && x < floor ? floor : x;
      }
      if (score.slopes != nullptr) {
        const E slope = static_cast<E>(
            score.slopes[item.batch * score.slope_batch + item.head[r] * score.slope_head] *
            kLog2E);
        const int64_t offset = item.position[r] + diagonal - block.key[j];
        x -= slope * static_cast<E>(offset < 0 ? -offset : offset);
      }
      s[j * item.rows + r] = x;
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
ROWMAX_NOINLINE inline void store_partial(const KernelLaunch& launch, const DecodeItem& item,
                                          const DecodeState<V>& state, const typename V::E* o,
                                          int64_t o_stride) {
  using E = typename V::E;
  const AttentionArgs& args = *item.args;
  const int64_t rows = flat_query_rows(args);
  const int64_t states = launch.schedule.splits * args.shape.heads_q * rows;
  E* m = reinterpret_cast<E*>(launch.regions[static_cast<int>(Region::kPartialStates)]);
  E* l = m + states;
  E* out = l + states;
  for (int r = 0; r < item.count; ++r) {
    const int64_t row = flat_query_row(args, item.extent, item.batch, item.position[r]);
    const int64_t at = partial_state_index(args.shape.heads_q, rows, item.split, item.head[r], row);
    const E sum = state.sum(r, item.rows);
    // NaN scores leave no maximum; a finite one keeps the state from looking empty.
    m[at] = sum != sum && state.m[r] < 0 ? E(0) : state.m[r];
    l[at] = sum;
    for (int64_t d = 0; d < args.shape.head_dim_v; ++d) {
      out[at * args.shape.head_dim_v + d] = o[r * o_stride + d];
    }
  }
}

template <class V>
ROWMAX_NOINLINE inline void store_result(const DecodeItem& item, const DecodeState<V>& state,
                                         const typename V::E* o, int64_t o_stride) {
  const AttentionArgs& args = *item.args;
  for (int r = 0; r < item.count; ++r) {
    const int64_t row = item.extent.q_begin + item.position[r];
    double m = static_cast<double>(state.m[r]);
    double l = static_cast<double>(state.sum(r, item.rows));
    double weight = 1.0;  // of the keys, once the sink may have raised the reference
    if (args.score.sinks != nullptr) {
      const double sink =
          static_cast<double>(args.score.sinks[item.head[r] * args.score.sink_stride]) * kLog2E;
      const double top = sink > m ? sink : m;
      if (top != -__builtin_inf()) {
        weight = __builtin_exp2(m - top);
        l = l * weight + __builtin_exp2(sink - top);
        m = top;
      }
    }
    const double scale = l == 0.0 ? 0.0 : weight / l;
    const int64_t offset =
        item.batch * args.out.batch + row * args.out.seq + item.head[r] * args.out.head;
    store_row<V>(o + r * o_stride, args.shape.head_dim_v, static_cast<typename V::E>(scale),
                 element(args.out.data, args.out.dtype, offset), args.out.dtype);
    if (args.lse.data != nullptr) {
      const int64_t at =
          item.batch * args.lse.batch + item.head[r] * args.lse.head + row * args.lse.seq;
      const double lse = l == 0.0 ? -__builtin_inf() : (m + __builtin_log2(l)) * kLn2;
      if (args.lse.dtype == DType::kF64) {
        static_cast<double*>(args.lse.data)[at] = lse;
      } else {
        static_cast<float*>(args.lse.data)[at] = static_cast<float>(lse);
      }
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
  E* q = reinterpret_cast<E*>(scratch);
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
  alignas(kLineBytes) E s[kDecodeMaxKeys * kDecodeMaxRows + 2 * kDecodeMaxRows];
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
  if (launch.schedule.splits > 1) {
    store_partial<V>(launch, item, state, o, layout.o_stride);
  } else {
    store_result<V>(item, state, o, layout.o_stride);
  }
}

template <class V>
ROWMAX_INLINE void decode_worker(const KernelLaunch& launch, int worker) {
  char* scratch = launch.thread_scratch + launch.thread_stride * static_cast<size_t>(worker);
  for (;;) {
    const int64_t index = __atomic_fetch_add(launch.next_item, 1, __ATOMIC_RELAXED);
    if (index >= launch.schedule.items) {
      return;
    }
    const DecodeItem item = make_decode_item(launch, index);
    if (item.count > 0) {
      decode_item<V>(launch, item, scratch);
    }
  }
}

}  // namespace rowmax::cpu::ROWMAX_ISA
