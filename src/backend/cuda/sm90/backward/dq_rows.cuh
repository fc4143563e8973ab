// From the sum of a tile of dQ, in the order of the accumulators (see query_gradient.cuh), to rows
// of dQ in 16 bits.
#pragma once

#include "backend/cuda/ptx/math.cuh"
#include "backend/cuda/sm90/panels.h"

namespace rowmax::cuda::sm90 {

template <Element kElement>
ROWMAX_DEVICE uint32_t pack_element(float lo, float hi) {
  if constexpr (kElement == Element::kBF16) {
    return ptx::pack_bf16(lo, hi);
  } else {
    return ptx::pack_f16(lo, hi);
  }
}

// A tile of dQ: `rows` of its rows are inside the sequence, `head_dim` of its columns in the tensor.
struct DqRows {
  const float4* sum;
  uint16_t* out;  // its first row
  int64_t stride;
  int rows;
  int head_dim;
  float scale;
};

// Item `i` of tile_q * chunks / 2: scale * sum in chunk i % chunks of 8 columns, of rows `row` and
// `row` + 8, which four lanes held. `load` reads a float4.
template <Element kElement, class Load>
ROWMAX_DEVICE void convert_rows(const DqRows& tile, uint32_t i, uint32_t tile_q, uint32_t chunks,
                                const Load& load) {
  const uint32_t chunk = i % chunks;
  const uint32_t group = i / chunks;  // row in its 8, warp, block of 64 rows
  const uint32_t warp = group / 8 % 4;
  const uint32_t block = group / 32;
  const float4* from = tile.sum +
                       (warp * (tile_q / 64 * chunks) + block * chunks + chunk) * 32 +
                       group % 8 * 4;
  uint32_t upper[4];
  uint32_t lower[4];
#pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    const float4 v = load(from + lane);
    upper[lane] = pack_element<kElement>(v.x * tile.scale, v.y * tile.scale);
    lower[lane] = pack_element<kElement>(v.z * tile.scale, v.w * tile.scale);
  }
  const int row = static_cast<int>(block * 64 + warp * 16 + group % 8);
  if (8 * static_cast<int>(chunk) >= tile.head_dim) {
    return;
  }
  uint16_t* out = tile.out + row * tile.stride + 8 * chunk;
  if (row < tile.rows) {
    *reinterpret_cast<uint4*>(out) = make_uint4(upper[0], upper[1], upper[2], upper[3]);
  }
  if (row + 8 < tile.rows) {
    *reinterpret_cast<uint4*>(out + 8 * tile.stride) =
        make_uint4(lower[0], lower[1], lower[2], lower[3]);
  }
}

}  // namespace rowmax::cuda::sm90
