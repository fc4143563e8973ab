// What the device code of one row needs to know at compile time.
#pragma once

#include "backend/cuda/ptx/math.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/sync.cuh"
#include "backend/cuda/ptx/tma.cuh"
#include "backend/cuda/ptx/wgmma.cuh"
#include "backend/cuda/sm90/forward/config.h"
#include "backend/cuda/sm90/forward/params.h"
#include "backend/cuda/sm90/tile_copy.cuh"
#include "backend/cuda/sm90/tile_order.h"

namespace rowmax::cuda::sm90 {

template <class Row>
struct Traits {
  static constexpr ForwardConfig kConfig = Row::kConfig;
  static_assert(is_valid(kConfig));
  static constexpr SharedLayout kShared = shared_layout(kConfig);
  static constexpr bool kBanded = kConfig.mask == MaskClass::kBanded;
  // Tiles may be cut along keys.
  static constexpr bool kCuts = !kBanded;
  // Warpgroups of a tile visit different blocks.
  static constexpr bool kSkips = skips_of(kConfig).right;
  static constexpr bool kOptions = kConfig.options == OptionClass::kAll;
  static constexpr bool kAlibi = kOptions || kConfig.options == OptionClass::kAlibi;
  static constexpr bool kSoftcap = kOptions || kConfig.options == OptionClass::kSoftcap;
  // One copy of the exponentials in a step, with a jump back: compiles in half the time, up to 4 %
  // slower in rows without options.
  static constexpr bool kJumpsBack = kAlibi || kSoftcap;
  static constexpr ptx::Mma kMma =
      kConfig.element == Element::kBF16 ? ptx::Mma::kBF16 : ptx::Mma::kF16;
  static constexpr int kTileQ = kConfig.tile_q;
  static constexpr int kTileK = kConfig.tile_k;
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kHeadDimV = kConfig.head_dim_v;
  static constexpr int kPanels = panels(kHeadDim);
  static constexpr int kPanelsV = panels(kHeadDimV);
  static constexpr int kWarpgroups = kConfig.warpgroups;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kQBuffers = q_buffers(kConfig);
  // Copies that fill a Q buffer, each with a barrier of its own: one, or one a warpgroup.
  static constexpr int kQLoads = kTileQ / q_load_rows(kConfig);
  static constexpr int kThreads = threads(kConfig);
  static constexpr int kProducerRegisters = producer_registers(kConfig);
  static constexpr int kConsumerRegisters = consumer_registers(kConfig);
  // Warpgroups take turns on the tensor cores: one's softmax runs under the others' products.
  static constexpr bool kTurns = kWarpgroups > 1;
  static constexpr uint32_t kQBytes = q_bytes(kConfig);
  static constexpr uint32_t kKBytes = k_bytes(kConfig);
  static constexpr uint32_t kVBytes = v_bytes(kConfig);
  static constexpr uint32_t kQPanelBytes = kTileQ * kPanelRowBytes;
  static constexpr uint32_t kKeyPanelBytes = kTileK * kPanelRowBytes;
  // Registers of a thread: scores, packed P, O.
  static constexpr int kScores = kTileK / 2;
  static constexpr int kPacked = kTileK / 4;
  static constexpr int kOut = kHeadDimV / 2;
  static constexpr int kHeld = kConfig.held;

  static ROWMAX_DEVICE uint32_t pack(float lo, float hi) {
    if constexpr (kConfig.element == Element::kBF16) {
      return ptx::pack_bf16(lo, hi);
    } else {
      return ptx::pack_f16(lo, hi);
    }
  }
};

// mbarriers, 8 bytes each. Those that come in rings have a phase each time their turn comes.
// name            count          arrives                        waits           protects
// kSlotFull[16]   1 a warpgroup  warp 3                         warps 0, 1, 2   a decoded tile
// kSlotWanted[4]  1              warp 0, 3 blocks early         warp 3          the tile ahead
// kQFull[4]       1 + bytes      warp 2                         consumers       Q, tile slot; of a
//                                                                               Q buffer, or of a
//                                                                               warpgroup's rows
// kQEmpty[4]      4              consumer warps, after their    warp 2          a warpgroup's rows
//                                last product of Q                              of the one buffer
// kOFull[4]       4 a warpgroup  consumer warps, O staged       warp 2          O in Q's buffer
// kKFull, kVFull  1 + bytes      warps 0, 1                     consumers       K, V stage
// kKEmpty, ...    4 a warpgroup  consumers, after their wait    warps 0, 1      K, V stage
// kVLoaded        1 + bytes      warp 1                         warp 1          V before its last
//                                                                               rows are zeroed
enum Barrier : int {
  kQFull = 0,
  kOFull = kQFull + kMaxQBuffers,
  kQEmpty = kOFull + kMaxQBuffers,
  kVLoaded = kQEmpty + kMaxWarpgroups,
  kSlotFull,
  kSlotWanted = kSlotFull + kTileSlots,
  kKFull = kSlotWanted + kTilesAhead + 1,
  kKEmpty = kKFull + kMaxStages,
  kVFull = kKEmpty + kMaxStages,
  kVEmpty = kVFull + kMaxStages,
  kBarrierCount = kVEmpty + kMaxStages,
};
static_assert(kBarrierCount * 8 <= kBarrierBytes);

// Named barriers: one a warpgroup for its turn (256 threads: the owner syncs, its predecessor
// arrives), one a warpgroup for itself (128 threads).
inline constexpr int kTurnBarrier = 1;
inline constexpr int kGroupBarrier = 8;

// A decoded tile: the loaders get it by kSlotFull, the consumers by kQFull.
struct TileInfo {
  LoopBlocks loops[kMaxWarpgroups];  // banded
  int64_t out;   // offset of O's row of the first position and head, in elements
  int64_t lse;   // and of its LSE
  int position;  // first query position
  int rows;      // query positions inside the sequence
  int head;      // first of `pack` query heads
  int batch;
  int kv_head;
  int block_begin;  // key blocks, at least one
  int block_end;    // 0: no more tiles
  int k_len;
  int key_begin;  // the tile's first position sees keys [key_begin, key_end), the next one those
  int key_end;    // one further; before clipping to the sequence
  int q_begin;    // of the sequence in the query tensor
  int k_begin;
  int v_rows;      // rows of the last V block that are kept; the others are zeroed. kTileK: all
  int store_rows;  // 1: O is stored row by row, since a copy would write past the sequence
  int shift;       // ALiBi distance is |i + shift - j|
  float sink;      // of the tile's head in log2 units; set when its rows are of one head (pack = 1)
  float slope;     // of the tile's head, in units of s; likewise
  int pieces;      // of the tile, cut along keys; 1: it is whole
  int piece;       // this one
  int piece_slot;  // of the tile's first piece
};
static_assert(sizeof(TileInfo) == kTileSlotBytes);

// Query position of tile row `row`, relative to the tile's first: row / pack.
ROWMAX_DEVICE int position_in_tile(const TileOrder& order, int row) {
  return (row * order.inverse_pack) >> kInversePackShift;
}

// Shared-memory addresses of one CTA.
template <class Row>
struct SharedMap {
  using T = Traits<Row>;
  uint32_t base;
  TileInfo* slots;

  ROWMAX_DEVICE explicit SharedMap(uint8_t* memory)
      : base(ptx::shared_address(memory)),
        slots(reinterpret_cast<TileInfo*>(memory + T::kShared.slots)) {}
  ROWMAX_DEVICE uint32_t barrier(int name, int index) const {
    return base + T::kShared.barriers + (name + index) * 8;
  }
  ROWMAX_DEVICE uint32_t q(uint32_t buffer) const {
    return base + T::kShared.q + buffer * T::kQBytes;
  }
  ROWMAX_DEVICE uint32_t k(uint32_t stage) const {
    return base + T::kShared.k + stage * T::kKBytes;
  }
  ROWMAX_DEVICE uint32_t v(uint32_t stage) const {
    return base + T::kShared.v + stage * T::kVBytes;
  }
};

}  // namespace rowmax::cuda::sm90
