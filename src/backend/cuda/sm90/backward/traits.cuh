// What the device code of one row needs to know at compile time.
#pragma once

#include "backend/cuda/ptx/math.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/sync.cuh"
#include "backend/cuda/ptx/tma.cuh"
#include "backend/cuda/ptx/wgmma.cuh"
#include "backend/cuda/sm90/backward/config.h"
#include "backend/cuda/sm90/backward/params.h"
#include "backend/cuda/sm90/tile_copy.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
struct BackwardTraits {
  static constexpr BackwardConfig kConfig = Row::kConfig;
  static_assert(is_valid(kConfig));
  static constexpr BackwardLayout kShared = backward_layout(kConfig);
  static constexpr bool kBanded = kConfig.mask == MaskClass::kBanded;
  static constexpr ptx::Mma kMma =
      kConfig.element == Element::kBF16 ? ptx::Mma::kBF16 : ptx::Mma::kF16;
  static constexpr float kProbabilityUnit = probability_unit(kConfig.element);
  static constexpr int kTileQ = kConfig.tile_q;
  static constexpr int kTileK = kConfig.tile_k;
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kPanels = panels(kHeadDim);
  static constexpr int kStages = kConfig.stages;
  static constexpr int kDsBuffers = kConfig.ds_buffers;
  static constexpr uint32_t kKeyBytes = key_bytes(kConfig);
  static constexpr uint32_t kQueryBytes = query_bytes(kConfig);
  static constexpr uint32_t kDsBytes = ds_bytes(kConfig);
  static constexpr uint32_t kStatsBytes = stats_bytes(kConfig);
  static constexpr uint32_t kKeyPanelBytes = kTileK * kPanelRowBytes;
  static constexpr uint32_t kQueryPanelBytes = kTileQ * kPanelRowBytes;
  static constexpr uint32_t kDsPanelBytes = kTileK * kPanelRowBytes;
  // Registers of a thread of a key warpgroup: S^T or dP^T, the same packed, dK or dV.
  static constexpr int kScores = kTileQ / 2;
  static constexpr int kPacked = kTileQ / 4;
  static constexpr int kGradients = kHeadDim / 2;

  static ROWMAX_DEVICE uint32_t pack(float lo, float hi) {
    if constexpr (kConfig.element == Element::kBF16) {
      return ptx::pack_bf16(lo, hi);
    } else {
      return ptx::pack_f16(lo, hi);
    }
  }
  static ROWMAX_DEVICE float2 unpack(uint32_t packed) {
    if constexpr (kConfig.element == Element::kBF16) {
      return ptx::unpack_bf16(packed);
    } else {
      return ptx::unpack_f16(packed);
    }
  }
};

// mbarriers, 8 bytes each. "Loader" and "turns" are warps of warpgroup 0, "query" is warpgroup 1,
// "key" are warpgroups 2 and 3.
// name          count      arrives                          waits     protects
// kTileFull[2]  1          loader, tile decoded             all       a KeyTile
// kKeysFull     1 + bytes  loader                           all       K and V; an arrival at
//                                                                     kKeysEmpty before it would
//                                                                     count for the tile before
// kKeysLoaded   1 + bytes  loader                           itself    K, V before their last rows
//                                                                     are zeroed; Q, dO likewise
// kKeysEmpty    3          a key warpgroup, dK and dV read  loader    K and V, the KeyTile
//                          from their staging; turns, the
//                          KeyTile read
// kKeysRead     4          query warps, after their last    key       K, in which dK is staged
//                          product
// kFull[4]      1 + bytes  loader                           key       Q, dO, statistics, step info
// kEmpty[4]     8          key warps, after dK of the step  loader    the same
// kDsFull[4]    8          key warps, dS stored             query     dS
// kDsEmpty[4]   4          query warps, after the product   key       dS
// kTurn[2]      1          turns, it has come               query     the tile of dQ, turn info
// kAdded[2]     4          query warps, additions issued    turns     the same
enum BackwardBarrier : int {
  kTileFull = 0,
  kKeysFull = kTileFull + kKeyTileSlots,
  kKeysLoaded,
  kKeysEmpty,
  kKeysRead,
  kFull,
  kEmpty = kFull + kMaxBackwardStages,
  kDsFull = kEmpty + kMaxBackwardStages,
  kDsEmpty = kDsFull + kMaxDsBuffers,
  kTurn = kDsEmpty + kMaxDsBuffers,
  kAdded = kTurn + kTurnSlots,
  kBackwardBarriers = kAdded + kTurnSlots,
};
static_assert(kBackwardBarriers * 8 <= kBackwardBarrierBytes);

// Named barriers: one a key warpgroup (128 threads).
inline constexpr int kKeyGroupBarrier = 1;

// A decoded tile of keys.
struct KeyTile {
  int steps;  // visits of query tiles, over the group's heads; < 0: no more tiles
  int first_key;
  int rows;   // keys of the tile inside the sequence
  int block;  // number of the tile in its sequence
  int batch;
  int kv_head;
  int walk_begin;  // first query tile of a head's walk, and the one after its last
  int walk_end;
  int q_begin;  // of the sequence in the query tensor
  int q_len;
  int k_begin;
  int band_begin;  // row i sees keys [i + band_begin, i + band_end], saturated
  int band_end;
  int store_rows;  // 1: dK, dV are stored row by row, since a copy would write past the sequence
  int first_query_tile;  // number of head 0's first
  int last_block;        // of the sequence
  int direction;         // of the walk: 1 upward, else -1
  int reserved[3];
};
static_assert(sizeof(KeyTile) == kKeyTileBytes);

// A step's info is one int: its first row (a multiple of 64), and in bit w whether warpgroup w
// masks.
inline constexpr int kStepRowMask = ~63;

// Shared-memory addresses of one CTA.
template <class Row>
struct BackwardMap {
  using T = BackwardTraits<Row>;
  uint32_t base;
  KeyTile* tiles;

  ROWMAX_DEVICE explicit BackwardMap(uint8_t* memory)
      : base(ptx::shared_address(memory)),
        tiles(reinterpret_cast<KeyTile*>(memory + T::kShared.key_tiles)) {}
  ROWMAX_DEVICE uint32_t barrier(int name, uint32_t index = 0) const {
    return base + T::kShared.barriers + (name + index) * 8;
  }
  ROWMAX_DEVICE uint32_t k() const { return base + T::kShared.k; }
  ROWMAX_DEVICE uint32_t v() const { return base + T::kShared.v; }
  ROWMAX_DEVICE uint32_t q(uint32_t stage) const {
    return base + T::kShared.stages + stage * (2 * T::kQueryBytes);
  }
  ROWMAX_DEVICE uint32_t dout(uint32_t stage) const { return q(stage) + T::kQueryBytes; }
  ROWMAX_DEVICE uint32_t stats(uint32_t stage) const {
    return base + T::kShared.stats + stage * T::kStatsBytes;
  }
  ROWMAX_DEVICE uint32_t step_info(uint32_t stage) const {
    return base + T::kShared.step_info + stage * 4;
  }
  // Whether the addition of the turn in this slot is the first one, which stores.
  ROWMAX_DEVICE uint32_t turn_info(uint32_t slot) const {
    return base + T::kShared.turn_info + slot * 4;
  }
  ROWMAX_DEVICE uint32_t ds(uint32_t buffer) const {
    return base + T::kShared.ds + buffer * T::kDsBytes;
  }
};

}  // namespace rowmax::cuda::sm90
