// The item of a decode step and the keys that its rows see.
#pragma once

#include <cstdint>

#include "backend/cpu/decode_block-inl.h"
#include "backend/cpu/keys-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/schedule.h"

namespace rowmax::cpu::ROWMAX_ISA {

// Everything about one item that its blocks share.
struct DecodeItem {
  const AttentionArgs* args;
  SequenceExtent extent;
  TensorRows k;  // of the kv head
  TensorRows v;
  int64_t batch;
  int64_t kv_head;
  int64_t split;
  int count;                         // rows in use
  int rows;                          // padded
  int64_t head[kDecodeMaxRows];      // query head of a row
  int64_t position[kDecodeMaxRows];  // position of a row in its sequence
  KeyRange seen[kDecodeMaxRows];     // by the band
  KeyRange keys;    // of this item: the split, inside the union of the rows' ranges
  KeyRange common;  // seen by every row, as far as the band goes
  bool hides;       // masks, documents or a bias may hide single keys
  bool modifies;    // softcap, bias or ALiBi
};

ROWMAX_NOINLINE inline DecodeItem make_decode_item(const KernelLaunch& launch, int64_t index) {
  const AttentionArgs& args = *launch.args;
  const int64_t group = args.shape.heads_q / args.shape.heads_kv;
  const KeyItem where = key_item(index, args.shape.heads_kv, launch.schedule.splits);
  DecodeItem item;
  item.args = &args;
  item.batch = where.batch;
  item.kv_head = where.kv_head;
  item.split = where.split;
  item.extent = sequence_extent(args, where.batch);
  item.k = key_rows_of(args, args.k, args.shape.head_dim, item.extent, item.batch, item.kv_head);
  item.v = key_rows_of(args, args.v, args.shape.head_dim_v, item.extent, item.batch, item.kv_head);
  const int64_t q_len = item.extent.q_len;
  const int64_t k_len = item.extent.k_len;
  item.count = static_cast<int>(imin(group * q_len, kDecodeMaxRows));
  item.rows = static_cast<int>(padded_decode_rows(item.count));
  item.hides = args.score.mask.data != nullptr || args.score.documents_q.data != nullptr ||
               args.score.bias.data != nullptr;
  item.modifies =
      args.score.softcap > 0.0 || args.score.slopes != nullptr || args.score.bias.data != nullptr;
  item.keys = {0, 0};
  item.common = {0, k_len};
  if (item.count == 0) {
    return item;
  }
  const RowBand band = resolve_band(args.score.band, q_len, k_len);
  for (int r = 0; r < item.count; ++r) {
    item.head[r] = where.kv_head * group + r / q_len;
    item.position[r] = r % q_len;
    item.seen[r] = row_keys(band, item.position[r], k_len);
    item.common.begin = imax(item.common.begin, item.seen[r].begin);
    item.common.end = imin(item.common.end, item.seen[r].end);
  }
  const KeyRange split = split_keys(where.split, launch.schedule.splits, launch.schedule.split_len,
                                    args.shape.seqlen_k);
  const KeyRange any = block_keys(band, 0, q_len, k_len);
  item.keys = {imax(split.begin, any.begin), imin(split.end, any.end)};
  return item;
}

// ---- which keys --------------------------------------------------------------------------------
template <class E>
ROWMAX_INLINE E bias_of(const DecodeItem& item, int row, int64_t key) {
  const BroadcastArg& bias = item.args->score.bias;
  const int64_t offset = item.batch * bias.batch + item.head[row] * bias.head +
                         item.position[row] * bias.row + key * bias.col;
  const void* p = element(static_cast<const void*>(bias.data), bias.dtype, offset);
  return with_storage(
      bias.dtype, [&](auto policy) __attribute__((always_inline)) {
        using S = decltype(policy);
        return to_element<E>(S::get(static_cast<const typename S::T*>(p)));
      });
}

ROWMAX_NOINLINE inline bool row_sees(const DecodeItem& item, int row, int64_t key) {
  if (key < item.seen[row].begin || key >= item.seen[row].end) {
    return false;
  }
  const ScoreArgs& score = item.args->score;
  if (score.mask.data != nullptr) {
    const int64_t offset = item.batch * score.mask.batch + item.head[row] * score.mask.head +
                           item.position[row] * score.mask.row + key * score.mask.col;
    if (static_cast<const uint8_t*>(score.mask.data)[offset] == 0) {
      return false;
    }
  }
  if (score.documents_q.data != nullptr) {
    const DocumentArg& q = score.documents_q;
    const DocumentArg& k = score.documents_k;
    if (q.data[item.batch * q.batch + (item.extent.q_begin + item.position[row]) * q.seq] !=
        k.data[item.batch * k.batch + (item.extent.k_begin + key) * k.seq]) {
      return false;
    }
  }
  return score.bias.data == nullptr || bias_of<double>(item, row, key) != -__builtin_inf();
}

// Fills the next block that some row sees, from *begin on; moves *begin behind it. count == 0: no
// key is left.
ROWMAX_NOINLINE inline void next_key_block(const DecodeItem& item, int64_t size, int64_t* begin,
                                           KeyBlock* block) {
  block->count = 0;
  while (block->count == 0 && *begin < item.keys.end) {
    const int64_t first = *begin;
    const int64_t end = imin(first + size, item.keys.end);
    const unsigned all = (1u << item.count) - 1u;
    const bool inside = !item.hides && item.common.begin <= first && end <= item.common.end;
    block->clean = true;
    const char* k = nullptr;
    const char* v = nullptr;
    int64_t run = 0;  // keys from j on that lie one stride apart
    for (int64_t j = first; j < end; ++j) {
      if (run == 0) {
        run = item.k.run(j, end - j);
        k = item.k.row(j);
        v = item.v.row(j);
      }
      unsigned visible = all;
      for (int r = 0; !inside && r < item.count; ++r) {
        visible &= row_sees(item, r, j) ? all : ~(1u << r);
      }
      if (visible != 0) {
        const int64_t n = block->count++;
        block->key[n] = j;
        block->visible[n] = static_cast<uint8_t>(visible);
        block->k[n] = k;
        block->v[n] = v;
        block->clean = block->clean && visible == all;
      }
      --run;
      k += item.k.stride_bytes;
      v += item.v.stride_bytes;
    }
    *begin = end;
  }
  for (int64_t n = block->count; block->count > 0 && n < block->count + kDecodeTail; ++n) {
    block->k[n] = block->k[block->count - 1];
    block->v[n] = block->v[block->count - 1];
  }
}

}  // namespace rowmax::cpu::ROWMAX_ISA
