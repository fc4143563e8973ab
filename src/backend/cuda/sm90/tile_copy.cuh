// Tiles in shared memory: panels brought by the copy engine, rings of stages.
#pragma once

#include "backend/cuda/ptx/math.cuh"
#include "backend/cuda/ptx/tma.cuh"
#include "backend/cuda/sm90/panels.h"

namespace rowmax::cuda::sm90 {

// Copies kPanelCount panels of 64 columns; columns beyond the head dim arrive as zeros.
template <int kPanelCount>
ROWMAX_DEVICE void load_panels(uint32_t destination, uint32_t panel_bytes,
                               const ptx::TensorMap* map, uint32_t barrier, ptx::TileCoordinates at,
                               uint64_t hint) {
#pragma unroll
  for (int panel = 0; panel < kPanelCount; ++panel) {
    at.dim = panel * kPanelColumns;
    ptx::tma_load(destination + panel * panel_bytes, map, barrier, at, hint);
  }
}

// Rows [first, kRows) of a tile become zero. All lanes of a warp, after the tile has arrived.
template <int kRows, int kPanelCount>
ROWMAX_DEVICE void zero_rows(uint32_t tile, int first) {
  const int bytes = (kRows - first) * kPanelRowBytes;
#pragma unroll 1
  for (int panel = 0; panel < kPanelCount; ++panel) {
    const uint32_t start = tile + panel * (kRows * kPanelRowBytes) + first * kPanelRowBytes;
#pragma unroll 1
    for (int offset = (threadIdx.x % 32) * 16; offset < bytes; offset += 32 * 16) {
      ptx::store_shared_zero_16(start + offset);
    }
  }
  ptx::fence_proxy_async();
  __syncwarp();
}

// Index and parity of use `count` of a ring of kSize barriers.
template <int kSize>
ROWMAX_DEVICE uint32_t ring_index(uint32_t count) {
  return kSize == 1 ? 0 : count % kSize;
}
template <int kSize>
ROWMAX_DEVICE uint32_t ring_parity(uint32_t count) {
  return (count / kSize) & 1;
}

}  // namespace rowmax::cuda::sm90
