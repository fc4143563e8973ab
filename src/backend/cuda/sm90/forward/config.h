// Plain data of one row of the forward kernel, and what follows from it: threads, registers and the
// shared-memory map. One source for host and device; no host headers.
#pragma once

#include "backend/cuda/sm90/panels.h"
#include "backend/cuda/sm90/tile_order.h"
#include "kernel_api/mask_class.h"
#include "kernel_api/option_class.h"
#include "problem/band.h"

namespace rowmax::cuda::sm90 {

struct ForwardConfig {
  Element element = Element::kBF16;
  int head_dim = 0;
  int head_dim_v = 0;
  int tile_q = 0;  // query rows of a CTA's tile, 64 a consumer warpgroup
  int tile_k = 0;  // keys of a block, a multiple of 16
  int stages = 2;  // K and V blocks in flight
  int warpgroups = 2;
  MaskClass mask = MaskClass::kBanded;
  // Rows of one option always apply it; rows with all decide at run time, 10 % slower.
  OptionClass options = OptionClass::kNone;
  int early_turn = 0;  // 16-key steps of P V that a warpgroup issues after it has passed the turn
  // Words of P (of tile_k / 4) that a step makes beside the product that reads the block before's.
  int held = 0;
};

inline constexpr int kMaxStages = 4;
inline constexpr int kMaxWarpgroups = 4;

ROWMAX_HOST_DEVICE constexpr int q_bytes(const ForwardConfig& c) {
  return c.tile_q * kPanelRowBytes * panels(c.head_dim);
}
ROWMAX_HOST_DEVICE constexpr int k_bytes(const ForwardConfig& c) {
  return c.tile_k * kPanelRowBytes * panels(c.head_dim);
}
ROWMAX_HOST_DEVICE constexpr int v_bytes(const ForwardConfig& c) {
  return c.tile_k * kPanelRowBytes * panels(c.head_dim_v);
}

// Barriers, a word for ptx::order_after and decoded tiles behind the tiles, see SharedLayout.
inline constexpr int kBarrierBytes = 392;
inline constexpr int kScratchBytes = 8;
inline constexpr int kTileSlotBytes = 160;
// In use at once: two tiles at the consumers, up to kMaxStages + 1 at the loaders, kTilesAhead
// beyond them.
inline constexpr int kTileSlots = 16;
inline constexpr int kTilesAhead = 3;
inline constexpr int kTailBytes = kBarrierBytes + kScratchBytes + kTileSlots * kTileSlotBytes;

// As many Q tiles as fit, if O (staged in its tile's Q buffer) is no wider than Q. With two, the
// next tile's Q arrives under this tile, and its first product runs beside this tile's last one. A
// third lets Q arrive while the O of the tile before is still on its way out. With one, each
// warpgroup's rows of Q are loaded as soon as that warpgroup has read those before, and O goes from
// registers to memory.
inline constexpr int kMaxQBuffers = 4;
ROWMAX_HOST_DEVICE constexpr int q_buffers(const ForwardConfig& c) {
  const int others = c.stages * (k_bytes(c) + v_bytes(c)) + kTailBytes;
  int count = c.head_dim_v <= c.head_dim ? kMaxQBuffers : 1;
  while (count > 1 && count * q_bytes(c) + others > kSharedBytesLimit) {
    --count;
  }
  return count;
}

// Rows of Q that one copy brings.
ROWMAX_HOST_DEVICE constexpr int q_load_rows(const ForwardConfig& c) {
  return q_buffers(c) == 1 ? 64 : c.tile_q;
}

// Byte offsets from the 1024-byte aligned start.
struct SharedLayout {
  int q = 0;
  int k = 0;
  int v = 0;
  int barriers = 0;
  int scratch = 0;
  int slots = 0;
  int bytes = 0;
};

ROWMAX_HOST_DEVICE constexpr SharedLayout shared_layout(const ForwardConfig& c) {
  SharedLayout layout;
  layout.k = layout.q + q_buffers(c) * q_bytes(c);
  layout.v = layout.k + c.stages * k_bytes(c);
  layout.barriers = layout.v + c.stages * v_bytes(c);
  layout.scratch = layout.barriers + kBarrierBytes;
  layout.slots = layout.scratch + kScratchBytes;
  layout.bytes = layout.slots + kTileSlots * kTileSlotBytes;
  return layout;
}

ROWMAX_HOST_DEVICE constexpr int threads(const ForwardConfig& c) {
  return 128 * (c.warpgroups + 1);
}

// Warpgroups leave out blocks above their own rows' diagonal where a tile has more rows than a
// block has keys, and those left of their rows' window where the rings of stages are deep: with two
// stages that loses 5 % at D 64 (measured: docs/kernels/sm90_forward.md).
ROWMAX_HOST_DEVICE constexpr Skips skips_of(const ForwardConfig& c) {
  const bool right = c.mask == MaskClass::kBanded && c.tile_q > c.tile_k;
  return {right && c.stages > 2, right};
}

// setmaxnreg takes from the pool that the CTA got at launch: threads x (65536 / threads rounded
// down to a multiple of 8) registers. Asking for more than the pool hangs.
ROWMAX_HOST_DEVICE constexpr int producer_registers(const ForwardConfig& c) {
  return c.warpgroups <= 2 ? 40 : 32;
}
ROWMAX_HOST_DEVICE constexpr int consumer_registers(const ForwardConfig& c) {
  return c.warpgroups <= 2 ? 232 : c.warpgroups == 3 ? 160 : 112;
}

ROWMAX_HOST_DEVICE constexpr bool is_valid(const ForwardConfig& c) {
  const int pool = (c.warpgroups + 1) * (65536 / threads(c) / 8 * 8);
  return c.warpgroups >= 1 && c.warpgroups <= kMaxWarpgroups && c.tile_q == 64 * c.warpgroups &&
         c.tile_k % 16 == 0 && c.early_turn >= 0 && c.early_turn < c.tile_k / 16 && c.held >= 0 &&
         c.held <= c.tile_k / 4 && c.stages >= 1 && c.stages <= kMaxStages &&
         c.head_dim % 16 == 0 && c.head_dim_v % 16 == 0 &&
         shared_layout(c).bytes <= kSharedBytesLimit &&
         producer_registers(c) + c.warpgroups * consumer_registers(c) <= pool;
}

}  // namespace rowmax::cuda::sm90
