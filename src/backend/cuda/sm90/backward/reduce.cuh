// After the main kernel: dQ = scale * its sum, in 16 bits, out of the order of the accumulators
// (see query_gradient.cuh). One CTA a query tile.
#pragma once

#include "backend/cuda/sm90/backward/row_stats.cuh"

namespace rowmax::cuda::sm90 {

template <Element kElement>
ROWMAX_DEVICE uint32_t pack_element(float lo, float hi) {
  if constexpr (kElement == Element::kBF16) {
    return ptx::pack_bf16(lo, hi);
  } else {
    return ptx::pack_f16(lo, hi);
  }
}

// dsink of a head: its tiles of all batch elements.
ROWMAX_DEVICE void reduce_sink(const ReduceParams& params, int head) {
  const QueryTiles& tiles = params.grid.tiles;
  double sum = 0.0;
  for (int batch = 0; batch < params.batch; ++batch) {
    const tile::Extent extent = tile::extent(params.lengths, batch);
    const int first = first_query_tile(tiles, batch, extent.q_begin) + head * tiles.head_step;
    for (int tile = threadIdx.x; tile * tiles.tile_q < extent.q_len; tile += kHelperThreads) {
      sum += params.sink_sums[first + tile];
    }
  }
  sum = sum_of_cta(sum);
  if (threadIdx.x == 0) {
    params.dsinks[head * params.dsink_stride] = static_cast<float>(sum);
  }
}

template <Element kElement>
ROWMAX_DEVICE void reduce_dq(const ReduceParams& params) {
  const int tile_q = params.grid.tiles.tile_q;
  const int chunks = params.grid.columns / 8;
  tile::Extent extent;
  const QueryTile at = query_tile(params.grid, params.lengths, extent);
  if (at.row >= extent.q_len) {
    return;
  }
  const float4* sum =
      reinterpret_cast<const float4*>(params.dq_sum) + at.number * tile_q * chunks * 2;
  uint16_t* out = static_cast<uint16_t*>(params.dq.data) + at.batch * params.dq.batch +
                  at.head * params.dq.head + int64_t{extent.q_begin + at.row} * params.dq.seq;
  const int chunks_of_warp = tile_q / 64 * chunks;
  // A thread: 8 columns of rows `row` and `row` + 8, which four lanes hold.
#pragma unroll 2
  for (int i = threadIdx.x; i < tile_q * chunks / 2; i += kHelperThreads) {
    const int chunk = i % chunks;
    const int group = i / chunks;  // row in its 8, warp, block of 64 rows
    const int warp = group / 8 % 4;
    const int block = group / 32;
    const float4* from =
        sum + (warp * chunks_of_warp + block * chunks + chunk) * 32 + group % 8 * 4;
    uint32_t upper[4];
    uint32_t lower[4];
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      const float4 v = __ldg(from + lane);
      upper[lane] = pack_element<kElement>(v.x * params.scale, v.y * params.scale);
      lower[lane] = pack_element<kElement>(v.z * params.scale, v.w * params.scale);
    }
    const int row = block * 64 + warp * 16 + group % 8;
    if (8 * chunk >= params.head_dim) {
      continue;
    }
    if (at.row + row < extent.q_len) {
      *reinterpret_cast<uint4*>(out + row * params.dq.seq + 8 * chunk) =
          make_uint4(upper[0], upper[1], upper[2], upper[3]);
    }
    if (at.row + row + 8 < extent.q_len) {
      *reinterpret_cast<uint4*>(out + (row + 8) * params.dq.seq + 8 * chunk) =
          make_uint4(lower[0], lower[1], lower[2], lower[3]);
    }
  }
}

template <Element kElement>
__global__ void __launch_bounds__(kHelperThreads)
    reduce_kernel(const __grid_constant__ ReduceParams params) {
  if (static_cast<int>(blockIdx.x) < params.dq_ctas) {
    reduce_dq<kElement>(params);
  } else {
    reduce_sink(params, static_cast<int>(blockIdx.x) - params.dq_ctas);
  }
}

}  // namespace rowmax::cuda::sm90
