// The item of a decode step and the keys that its rows see.
#pragma once

#include <cstdint>

#include "backend/cpu/decode_block-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/schedule.h"

namespace rowmax::cpu::ROWMAX_ISA {

// Everything about one item that its blocks share.
struct DecodeItem {
  const AttentionArgs* args;
  SequenceExtent extent;
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

// Walks key positions to addresses; a page table costs one division a block.
struct KeyCursor {
  const AttentionArgs* args;
  int64_t base_k;
  int64_t base_v;
  int64_t page;  // column of the block table
  int64_t slot;

  ROWMAX_INLINE KeyCursor(const DecodeItem& item, int64_t key) : args(item.args) {
    const SequenceArgs& sequence = args->sequence;
    base_k = item.kv_head * args->k.head;
    base_v = item.kv_head * args->v.head;
    if (sequence.block_table != nullptr) {
      page = key / sequence.page_size;
      slot = key % sequence.page_size;
      enter_page(item);
    } else {
      page = 0;
      slot = item.extent.k_begin + key;
      base_k += item.batch * args->k.batch;
      base_v += item.batch * args->v.batch;
    }
  }
  ROWMAX_INLINE void enter_page(const DecodeItem& item) {
    const SequenceArgs& sequence = args->sequence;
    const int64_t id = sequence.block_table[item.batch * sequence.table_stride + page];
    base_k = item.kv_head * args->k.head + id * args->k.batch;
    base_v = item.kv_head * args->v.head + id * args->v.batch;
  }
  // Must not be called past the last key: the next table entry may be anything.
  ROWMAX_INLINE void advance(const DecodeItem& item) {
    ++slot;
    if (args->sequence.block_table != nullptr && slot == args->sequence.page_size) {
      slot = 0;
      ++page;
      enter_page(item);
    }
  }
  ROWMAX_INLINE const char* k() const {
    return static_cast<const char*>(element(static_cast<const void*>(args->k.data), args->k.dtype,
                                            base_k + slot * args->k.seq));
  }
  ROWMAX_INLINE const char* v() const {
    return static_cast<const char*>(element(static_cast<const void*>(args->v.data), args->v.dtype,
                                            base_v + slot * args->v.seq));
  }
};

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
    KeyCursor cursor(item, first);
    for (int64_t j = first; j < end; ++j) {
      unsigned visible = all;
      for (int r = 0; !inside && r < item.count; ++r) {
        visible &= row_sees(item, r, j) ? all : ~(1u << r);
      }
      if (visible != 0) {
        const int64_t n = block->count++;
        block->key[n] = j;
        block->visible[n] = static_cast<uint8_t>(visible);
        block->k[n] = cursor.k();
        block->v[n] = cursor.v();
        block->clean = block->clean && visible == all;
      }
      if (j + 1 < end) {
        cursor.advance(item);
      }
    }
    *begin = end;
  }
  for (int64_t n = block->count; block->count > 0 && n < block->count + 8; ++n) {
    block->k[n] = block->k[block->count - 1];
    block->v[n] = block->v[block->count - 1];
  }
}

}  // namespace rowmax::cpu::ROWMAX_ISA
