// After the main kernel: dQ = scale * its sum, in 16 bits, where the main kernel leaves this to a
// step of its own, and dsinks. One CTA a query tile, and one a head of dsinks.
#pragma once

#include "backend/cuda/sm90/backward/dq_rows.cuh"
#include "backend/cuda/sm90/backward/row_stats.cuh"

namespace rowmax::cuda::sm90 {

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
  const DqRows tile = {
      reinterpret_cast<const float4*>(params.dq_sum) + at.number * tile_q * chunks * 2,
      static_cast<uint16_t*>(params.dq.data) + at.batch * params.dq.batch +
          at.head * params.dq.head + int64_t{extent.q_begin + at.row} * params.dq.seq,
      params.dq.seq,
      extent.q_len - at.row,
      params.head_dim,
      params.scale,
  };
#pragma unroll 2
  for (int i = threadIdx.x; i < tile_q * chunks / 2; i += kHelperThreads) {
    convert_rows<kElement>(tile, i, tile_q, chunks,
                           [](const float4* address) { return __ldg(address); });
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
