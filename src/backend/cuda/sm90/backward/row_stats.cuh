// Before the main kernel: delta = rowsum(dO o O) - dLSE and LSE in log2 units of every row, dQ's
// sums and turns set to their beginning, the ticket zeroed. One CTA a query tile.
#pragma once

#include "backend/cuda/ptx/math.cuh"
#include "backend/cuda/sm90/backward/config.h"
#include "backend/cuda/sm90/backward/helper_kernels.h"
#include "backend/cuda/sm90/backward/params.h"

namespace rowmax::cuda::sm90 {

template <Element kElement>
ROWMAX_DEVICE float2 unpack_element(uint32_t packed) {
  if constexpr (kElement == Element::kBF16) {
    return ptx::unpack_bf16(packed);
  } else {
    return ptx::unpack_f16(packed);
  }
}

// The query tile of a CTA.
struct QueryTile {
  int batch;
  int head;
  int row;         // its first, in the sequence
  int64_t number;  // where its sums and statistics are
};

ROWMAX_DEVICE QueryTile query_tile(const QueryGrid& grid, const tile::LengthArgs& lengths,
                                   tile::Extent& extent) {
  QueryTile at;
  const int head = divide(blockIdx.x, grid.per_head);  // over the batch
  const int tile = static_cast<int>(blockIdx.x) - head * grid.per_head.value;
  at.row = tile * grid.tiles.tile_q;
  at.batch = divide(head, grid.per_batch);
  at.head = head - at.batch * grid.per_batch.value;
  extent = tile::extent(lengths, at.batch);
  at.number = first_query_tile(grid.tiles, at.batch, extent.q_begin) +
              at.head * grid.tiles.head_step + tile;
  return at;
}

template <Element kElement>
ROWMAX_DEVICE float dot_8(const uint4& a, const uint4& b) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w};
  const uint32_t y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = unpack_element<kElement>(x[i]);
    const float2 v = unpack_element<kElement>(y[i]);
    sum = __fmaf_rn(u.x, v.x, sum);
    sum = __fmaf_rn(u.y, v.y, sum);
  }
  return sum;
}

// LSE and delta, for P in units of probability_unit(), of row `row` of a tile, row `sequence_row`
// of its tensors; `product` is its rowsum(dO o O). A row without keys has P = 0 by its LSE,
// whatever its O holds. Returns the row's part of dsink, P of the sink times (dLSE - product).
template <Element kElement>
ROWMAX_DEVICE float store_stats(const RowStatsParams& params, const QueryTile& at, int row,
                                int sequence_row, bool inside, float product, float* stats) {
  float lse = ptx::kInfinity;
  float delta = 0.f;
  float dsink = 0.f;
  if (inside) {
    const auto offset = [&](const RowOutput& rows) {
      return at.batch * rows.batch + at.head * rows.head + sequence_row * rows.seq;
    };
    const float natural = static_cast<const float*>(params.lse.data)[offset(params.lse)];
    if (natural != -ptx::kInfinity) {
      lse = natural * ptx::kLog2E;
      delta = product;
      if (params.dlse.data != nullptr) {
        delta -= static_cast<const float*>(params.dlse.data)[offset(params.dlse)];
      }
      if (params.sink_sums != nullptr) {
        const float sink = params.sinks[at.head * params.sink_stride];
        dsink = -delta * (sink == natural ? 1.f : ptx::ex2((sink - natural) * ptx::kLog2E));
      }
    }
  }
  stats[row] = lse - probability_shift(kElement);
  stats[params.grid.tiles.tile_q + row] = delta * probability_unit(kElement);
  return dsink;
}

// The sum over the CTA, in a fixed order; thread 0 has it.
ROWMAX_DEVICE double sum_of_cta(double value) {
  __shared__ double sums[kHelperThreads / 32];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    value += __shfl_xor_sync(ptx::kFullWarp, value, distance);
  }
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = value;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    value = 0.0;
    for (const double sum : sums) {
      value += sum;
    }
  }
  return value;
}

// dQ's sum of a tile becomes 0.
ROWMAX_DEVICE void clear_sums(const RowStatsParams& params, int64_t number) {
  const int thread = threadIdx.x;
  const int floats = params.grid.tiles.tile_q * params.grid.columns;
  float4* sum = reinterpret_cast<float4*>(params.dq_sum + number * floats);
#pragma unroll 4
  for (int i = thread; i < floats / 4; i += kHelperThreads) {
    sum[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

// What the sum and the turn of a tile are before the main kernel. The first key tile that visits it
// stores, so that only a tile without visitors is cleared, unless all are to be.
ROWMAX_DEVICE void begin_sums(const RowStatsParams& params, const QueryTile& at,
                              const tile::Extent& extent) {
  const int row_end = min(at.row + params.grid.tiles.tile_q, extent.q_len);
  const RowBand band = resolve_band(params.band, extent.q_len, extent.k_len);
  const KeyRange keys = block_keys(band, at.row, row_end, extent.k_len);
  if (params.clears || keys.begin == keys.end) {
    clear_sums(params, at.number);
  }
  if (threadIdx.x == 0) {
    params.turns[at.number] = 0;
  }
}

template <Element kElement>
__global__ void __launch_bounds__(kHelperThreads)
    row_stats_kernel(const __grid_constant__ RowStatsParams params) {
  const int thread = threadIdx.x;
  if (blockIdx.x == 0 && thread == 0) {
    *params.ticket = 0;
  }
  if (params.grid.count == 0) {
    return;
  }
  tile::Extent extent;
  const QueryTile at = query_tile(params.grid, params.lengths, extent);
  if (at.row >= extent.q_len) {
    return;
  }
  if (params.dq_sum != nullptr) {
    begin_sums(params, at, extent);
  }
  const int tile_q = params.grid.tiles.tile_q;
  const int lane = thread & (params.lanes - 1);
  const bool reads = lane * 8 < params.head_dim_v;
  const auto first = [&](const RowOutput& rows) {
    return static_cast<const uint16_t*>(rows.data) + at.batch * rows.batch + at.head * rows.head +
           int64_t{extent.q_begin + at.row} * rows.seq + lane * 8;
  };
  const uint16_t* out = first(params.out);
  const uint16_t* dout = first(params.dout);
  float* stats = params.stats + at.number * 2 * tile_q;
  double dsink = 0.0;
  constexpr int kRows = 4;  // of a thread at a time
  const int stride = kHelperThreads / params.lanes;
#pragma unroll 1
  for (int begin = thread / params.lanes; begin < tile_q; begin += kRows * stride) {
    uint4 a[kRows];
    uint4 b[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = begin + i * stride;
      a[i] = b[i] = make_uint4(0, 0, 0, 0);
      if (reads && row < tile_q && at.row + row < extent.q_len) {
        a[i] = __ldg(reinterpret_cast<const uint4*>(out + row * params.out.seq));
        b[i] = __ldg(reinterpret_cast<const uint4*>(dout + row * params.dout.seq));
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = begin + i * stride;
      float sum = dot_8<kElement>(a[i], b[i]);
      for (int distance = 1; distance < params.lanes; distance *= 2) {
        sum += __shfl_xor_sync(ptx::kFullWarp, sum, distance);
      }
      if (lane == 0 && row < tile_q) {
        dsink += store_stats<kElement>(params, at, row, extent.q_begin + at.row + row,
                                       at.row + row < extent.q_len, sum, stats);
      }
    }
  }
  if (params.sink_sums != nullptr) {
    dsink = sum_of_cta(dsink);
    if (thread == 0) {
      params.sink_sums[at.number] = dsink;
    }
  }
}

}  // namespace rowmax::cuda::sm90
