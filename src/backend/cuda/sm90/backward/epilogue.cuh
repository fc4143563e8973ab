// The end of a key tile: dV and dK from registers through shared memory to their tensors.
#pragma once

#include "backend/cuda/sm90/backward/traits.cuh"

namespace rowmax::cuda::sm90 {

// Times `factor`, in 16 bits, to the rows of `tile` (K or V) that belong to this thread's warp.
template <class Row>
ROWMAX_DEVICE void stage_gradient(const float (&gradient)[BackwardTraits<Row>::kGradients],
                                  uint32_t tile, int warpgroup, float factor) {
  using T = BackwardTraits<Row>;
  const int thread = ptx::thread_index() % 128;
  const int row = warpgroup * 64 + thread / 32 * 16 + (thread & 15);  // that this lane addresses
#pragma unroll
  for (int i = 0; i < T::kHeadDim / 16; ++i) {  // 16 columns: chunks 2i and 2i + 1 of 16 bytes
    const float* g = gradient + 8 * i;
    const uint32_t chunk = ((2 * i) & 7) + thread % 32 / 16;
    ptx::stmatrix_x4(
        tile + (i / 4) * T::kKeyPanelBytes + row * kPanelRowBytes + ((chunk ^ (row & 7)) * 16),
        T::pack(g[0] * factor, g[1] * factor), T::pack(g[2] * factor, g[3] * factor),
        T::pack(g[4] * factor, g[5] * factor), T::pack(g[6] * factor, g[7] * factor));
  }
}

// One thread: the 64 staged rows of a warpgroup. Rows past the end of the tensor are left out.
template <class Row>
ROWMAX_DEVICE void copy_gradient(const KeyTile& keys, uint32_t tile, int warpgroup,
                                 const ptx::TensorMap* map, const MapSteps& steps) {
  using T = BackwardTraits<Row>;
#pragma unroll
  for (int panel = 0; panel < T::kPanels; ++panel) {
    ptx::tma_store(map, tile + panel * T::kKeyPanelBytes + warpgroup * 64 * kPanelRowBytes,
                   {panel * kPanelColumns, keys.kv_head * steps.head,
                    keys.k_begin + keys.first_key + 64 * warpgroup, keys.batch * steps.batch});
  }
  ptx::bulk_commit_group();
}

// The 16 rows that this warp staged, those inside the sequence. Rolled: once a sequence.
template <class Row>
ROWMAX_DEVICE void store_gradient_rows(const KeyTile& keys, uint32_t tile, int warpgroup,
                                       const RowOutput& output, int head_dim) {
  using T = BackwardTraits<Row>;
  constexpr int kChunks = T::kHeadDim / 8;  // 16 bytes each
  const int thread = ptx::thread_index() % 128;
  uint16_t* out = static_cast<uint16_t*>(output.data) + keys.batch * output.batch +
                  int64_t{keys.k_begin + keys.first_key} * output.seq + keys.kv_head * output.head;
  __syncwarp();
#pragma unroll 1
  for (int i = thread % 32; i < 16 * kChunks; i += 32) {
    const int row = warpgroup * 64 + thread / 32 * 16 + i / kChunks;
    const int chunk = i % kChunks;
    if (row < keys.rows && 8 * chunk < head_dim) {
      *reinterpret_cast<uint4*>(out + row * output.seq + 8 * chunk) =
          ptx::load_shared_16(tile + (chunk / 8) * T::kKeyPanelBytes + row * kPanelRowBytes +
                              (((chunk & 7) ^ (row & 7)) * 16));
    }
  }
  ptx::fence_proxy_async();  // the copy engine will write here
}

}  // namespace rowmax::cuda::sm90
