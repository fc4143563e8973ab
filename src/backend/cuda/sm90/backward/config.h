// Plain data of one row of the backward kernel, and what follows from it: registers and the
// shared-memory map. One source for host and device; no host headers.
#pragma once

#include "backend/cuda/sm90/panels.h"
#include "kernel_api/mask_class.h"

namespace rowmax::cuda::sm90 {

struct BackwardConfig {
  Element element = Element::kBF16;
  int head_dim = 0;  // largest of K and V
  int tile_q = 0;    // query rows of a step
  int tile_k = 128;  // keys of a CTA's tile, 64 a key warpgroup
  int stages = 3;    // Q and dO tiles in flight
  int ds_buffers = 2;
  MaskClass mask = MaskClass::kBanded;
};

// Probabilities are rounded to the operand's type times 2^shift: in fp16 those below 2^-14 would
// lose bits, and a key may have no other. No row is fp16 yet: dS needs such a unit too
// (docs/kernels/sm90_backward.md).
ROWMAX_HOST_DEVICE constexpr int probability_shift(Element element) {
  return element == Element::kF16 ? 11 : 0;
}
ROWMAX_HOST_DEVICE constexpr float probability_unit(Element element) {
  return 1.0f / static_cast<float>(1 << probability_shift(element));
}

inline constexpr int kKeyWarpgroups = 2;
inline constexpr int kBackwardThreads = 128 * (kKeyWarpgroups + 2);
// 2 x 208 + 64 + 32 = 4 x 128, what the CTA gets at launch. A product of 64 x 64 takes more than
// 56, and the key warpgroups serialise their products with less than 208.
inline constexpr int kKeyRegisters = 208;
inline constexpr int kQueryRegisters = 64;
inline constexpr int kLoaderRegisters = 32;
static_assert(kLoaderRegisters + kQueryRegisters + kKeyWarpgroups * kKeyRegisters <=
              (kKeyWarpgroups + 2) * (65536 / kBackwardThreads));  // more never returns
inline constexpr int kMaxBackwardStages = 4;
inline constexpr int kMaxDsBuffers = 4;
inline constexpr int kKeyTileSlots = 3;
inline constexpr int kKeyTileBytes = 80;
inline constexpr int kTurnSlots = 2;
inline constexpr int kBackwardBarrierBytes = 224;

// One operand tile: K or V, Q or dO, dS.
ROWMAX_HOST_DEVICE constexpr int key_bytes(const BackwardConfig& c) {
  return c.tile_k * kPanelRowBytes * panels(c.head_dim);
}
ROWMAX_HOST_DEVICE constexpr int query_bytes(const BackwardConfig& c) {
  return c.tile_q * kPanelRowBytes * panels(c.head_dim);
}
ROWMAX_HOST_DEVICE constexpr int ds_bytes(const BackwardConfig& c) {
  return c.tile_k * kPanelRowBytes * panels(c.tile_q);
}
// LSE and delta of a query tile.
ROWMAX_HOST_DEVICE constexpr int stats_bytes(const BackwardConfig& c) { return 2 * c.tile_q * 4; }

// Byte offsets from the 1024-byte aligned start.
struct BackwardLayout {
  int k = 0;
  int v = 0;
  int stages = 0;  // Q, then dO of each
  int ds = 0;
  int stats = 0;
  int barriers = 0;
  int key_tiles = 0;
  int step_info = 0;  // one int a stage
  int turn_info = 0;  // one int a slot
  int scratch = 0;    // nobody reads it
  int bytes = 0;
};

ROWMAX_HOST_DEVICE constexpr BackwardLayout backward_layout(const BackwardConfig& c) {
  BackwardLayout layout;
  layout.v = layout.k + key_bytes(c);
  layout.stages = layout.v + key_bytes(c);
  layout.ds = layout.stages + c.stages * 2 * query_bytes(c);
  layout.stats = layout.ds + c.ds_buffers * ds_bytes(c);
  layout.barriers = layout.stats + c.stages * stats_bytes(c);
  layout.key_tiles = layout.barriers + kBackwardBarrierBytes;
  layout.step_info = layout.key_tiles + kKeyTileSlots * kKeyTileBytes;
  layout.turn_info = layout.step_info + kMaxBackwardStages * 4;
  layout.scratch = layout.turn_info + kTurnSlots * 4;
  layout.bytes = layout.scratch + 16;
  return layout;
}

ROWMAX_HOST_DEVICE constexpr bool is_valid(const BackwardConfig& c) {
  return (c.head_dim == 64 || c.head_dim == 128) && (c.tile_q == 64 || c.tile_q == 128) &&
         c.tile_k == 64 * kKeyWarpgroups && c.stages >= 2 && c.stages <= kMaxBackwardStages &&
         c.ds_buffers >= 1 && c.ds_buffers <= kMaxDsBuffers &&
         (c.head_dim == 64 || c.tile_q == 64) &&  // parts of a dQ product, see query_gradient.cuh
         backward_layout(c).bytes <= kSharedBytesLimit;
}

}  // namespace rowmax::cuda::sm90
