// The end of a tile: a row's state (max, sum, O) becomes a row of O and its LSE.
#pragma once

#include "backend/cuda/ptx/global.cuh"
#include "backend/cuda/sm90/forward/pieces.cuh"
#include "backend/cuda/tile/softmax.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
using RowStateOf = tile::RowState<Traits<Row>::kAlibi>;

// Sink logits of a thread's two rows in log2 units. Both loads are issued before either is used.
ROWMAX_DEVICE void row_sinks(const ForwardParams& params, const TileInfo& tile, int row,
                             float (&sink)[2]) {
  sink[0] = sink[1] = tile.sink;
  if (params.order.pack == 1) {
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = position_in_tile(params.order, row + 8 * r);
    const int head = tile.head + row + 8 * r - position * params.order.pack;
    if (position < tile.rows) {
      sink[r] = params.score.sinks[head * params.score.sink_stride] * ptx::kLog2E;
    }
  }
}

// Offset of tile row `row`, at position `position`, from the tile's first.
ROWMAX_DEVICE int64_t row_offset(const TileOrder& order, const RowOutput& output, int row,
                                 int position) {
  return position * output.seq + (row - position * order.pack) * output.head;
}

// Where a thread's two rows go.
struct RowPlace {
  bool stored[2];
  int64_t out[2];  // offsets in elements
};

ROWMAX_DEVICE RowPlace row_place(const ForwardParams& params, const TileInfo& tile, int row) {
  RowPlace place;
  row = ptx::opaque(row);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = position_in_tile(params.order, row + 8 * r);
    place.stored[r] = position < tile.rows;
    place.out[r] = tile.out + row_offset(params.order, params.out_rows, row + 8 * r, position);
  }
  return place;
}

// Maximum in log2 units and sum of a thread's two rows, the sink included; sum 0: no key and no
// sink.
struct RowSums {
  float max[2];
  float sum[2];
};

// Sums over the quad, the sink's logit in the denominator, and O zeroed in rows without keys,
// whatever it holds. factor[r] is what O is multiplied by.
template <class State, int kOut>
ROWMAX_DEVICE RowSums finish_rows(const ForwardParams& params, const TileInfo& tile, int row,
                                  const State& state, float (&o)[kOut], float (&factor)[2]) {
  RowSums sums;
  bool empty[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(ptx::kFullWarp, sum, 1);
    sum += __shfl_xor_sync(ptx::kFullWarp, sum, 2);
    empty[r] = sum == 0.f;
    sums.sum[r] = sum;
    sums.max[r] = empty[r] ? -ptx::kInfinity : state.subtract[r];
    factor[r] = empty[r] ? 1.f : ptx::rcp(sum);
  }
  if (__any_sync(ptx::kFullWarp, empty[0] || empty[1])) {
#pragma unroll
    for (int i = 0; i < kOut; ++i) {
      o[i] = empty[(i >> 1) & 1] ? 0.f : o[i];
    }
  }
  if (params.score.sinks != nullptr) {
    float sinks[2];
    row_sinks(params, tile, ptx::opaque(row), sinks);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sink = sinks[r];
      const float top = sink > sums.max[r] ? sink : sums.max[r];
      const float scale = sums.max[r] == top ? 1.f : ptx::ex2(sums.max[r] - top);
      sums.sum[r] = sums.sum[r] * scale + (sink == top ? 1.f : ptx::ex2(sink - top));
      sums.max[r] = top;
      factor[r] = scale * ptx::rcp(sums.sum[r]);
      if (top == -ptx::kInfinity) {
        sums.sum[r] = 0.f;
        factor[r] = 1.f;
      }
    }
  }
  return sums;
}

// Staged O is on its way when this runs.
ROWMAX_DEVICE void store_lse(const ForwardParams& params, const TileInfo& tile, int row,
                             const RowSums& sums) {
  if (params.lse.data == nullptr || (threadIdx.x & 3) != 0) {
    return;
  }
  row = ptx::opaque(row);
  float* lse = static_cast<float*>(params.lse.data) + tile.lse;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = position_in_tile(params.order, row + 8 * r);
    if (position < tile.rows) {
      lse[row_offset(params.order, params.lse, row + 8 * r, position)] =
          sums.sum[r] == 0.f ? -ptx::kInfinity : (sums.max[r] + ptx::lg2(sums.sum[r])) * ptx::kLn2;
    }
  }
}

// 4 x 4 transposes in a quad, kCount at once: their shuffles do not wait for each other. Lane t
// gives v[k] = its columns of chunk k and gets all four lanes' columns of chunk t, 16 bytes of one
// row.
template <int kCount>
ROWMAX_DEVICE void transpose_quads(uint32_t (&v)[kCount][4]) {
  const bool odd = (threadIdx.x & 1) != 0;
  const bool high = (threadIdx.x & 2) != 0;
#pragma unroll
  for (int i = 0; i < 2 * kCount; ++i) {
    uint32_t& a = v[i / 2][2 * (i % 2)];
    uint32_t& b = v[i / 2][2 * (i % 2) + 1];
    const uint32_t got = __shfl_xor_sync(ptx::kFullWarp, odd ? a : b, 1);
    a = odd ? got : a;
    b = odd ? b : got;
  }
#pragma unroll
  for (int i = 0; i < 2 * kCount; ++i) {
    uint32_t& a = v[i / 2][i % 2];
    uint32_t& b = v[i / 2][i % 2 + 2];
    const uint32_t got = __shfl_xor_sync(ptx::kFullWarp, high ? a : b, 2);
    a = high ? got : a;
    b = high ? b : got;
  }
}

// O in fp32 from registers.
template <class Row>
ROWMAX_DEVICE void store_f32(const ForwardParams& params, const RowPlace& place,
                             const float (&o)[Traits<Row>::kOut], const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < Traits<Row>::kHeadDimV / 8; ++j) {
    const int column = 8 * j + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (place.stored[r] && column < params.head_dim_v) {
        float* out = static_cast<float*>(params.out_rows.data) + place.out[r] + column;
        *reinterpret_cast<float2*>(out) =
            make_float2(o[4 * j + 2 * r] * factor[r], o[4 * j + 2 * r + 1] * factor[r]);
      }
    }
  }
}

// O from registers, rows outside the sequence left alone.
template <class Row>
ROWMAX_DEVICE void store_direct(const ForwardParams& params, const TileInfo& tile,
                                float (&o)[Traits<Row>::kOut], RowStateOf<Row>& state, int row) {
  using T = Traits<Row>;
  if (!gather_pieces<Row>(params, tile, o, state)) {
    return;
  }
  float factor[2];
  const RowSums sums = finish_rows(params, tile, row, state, o, factor);
  const RowPlace place = row_place(params, tile, row);
  store_lse(params, tile, row, sums);
  if (T::kOptions && params.out_f32) {
    store_f32<Row>(params, place, o, factor);
    return;
  }
  // Two rows of 32 columns a group. Stores under a predicate: with branches between them every
  // group would wait for its own shuffles.
  constexpr int kGroups = T::kHeadDimV / 32;
  constexpr int kBatch = kGroups % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int first = 0; first < kGroups; first += kBatch) {
    uint32_t v[2 * kBatch][4];
#pragma unroll
    for (int i = 0; i < 2 * kBatch; ++i) {
      const int r = i % 2;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int at = 4 * (4 * (first + i / 2) + k) + 2 * r;
        v[i][k] = T::pack(o[at] * factor[r], o[at + 1] * factor[r]);
      }
    }
    transpose_quads(v);
#pragma unroll
    for (int i = 0; i < 2 * kBatch; ++i) {
      const int column = 32 * (first + i / 2) + 8 * (threadIdx.x & 3);
      const uint16_t* out =
          static_cast<uint16_t*>(params.out_rows.data) + place.out[i % 2] + column;
      ptx::st_v4_if(place.stored[i % 2] && column < params.head_dim_v, out, v[i]);
    }
  }
}

// The 16 rows that this warp staged at `start`, those inside the sequence, to memory. Rolled: it
// runs once a sequence, and its code lies between the parts of the loop over tiles.
template <class Row>
ROWMAX_DEVICE void store_staged_rows(const ForwardParams& params, const TileInfo& tile,
                                     uint32_t start, int first_row) {
  using T = Traits<Row>;
  constexpr int kChunks = T::kHeadDimV / 8;  // 16 bytes each
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < 16 * kChunks; i += 32) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    const int position = position_in_tile(params.order, first_row + row);
    if (position < tile.rows && 8 * chunk < params.head_dim_v) {
      uint16_t* out = static_cast<uint16_t*>(params.out_rows.data) + tile.out +
                      row_offset(params.order, params.out_rows, first_row + row, position) +
                      8 * chunk;
      *reinterpret_cast<uint4*>(out) =
          ptx::load_shared_16(start + (chunk / 8) * T::kQPanelBytes + row * kPanelRowBytes +
                              (((chunk & 7) ^ (row & 7)) * 16));
    }
  }
}

// O -> 16 bits -> the tile's own Q buffer, each warp into the 16 rows that only it has read; warp 2
// copies it out. Partial tiles of a sequence go row by row instead.
template <class Row>
ROWMAX_DEVICE void store_staged(const ForwardParams& params, const SharedMap<Row>& shared,
                                float (&o)[Traits<Row>::kOut], RowStateOf<Row>& state, int row,
                                uint32_t count) {
  using T = Traits<Row>;
  const TileInfo& tile = shared.slots[count % kTileSlots];
  const uint32_t buffer = ring_index<T::kQBuffers>(count);
  const int lane = ptx::opaque(threadIdx.x % 32);
  if (!gather_pieces<Row>(params, tile, o, state)) {
    if (lane == 0) {
      ptx::mbarrier_arrive(shared.barrier(kOFull, buffer));
    }
    return;
  }
  float factor[2];
  const RowSums sums = finish_rows(params, tile, row, state, o, factor);
  if (T::kOptions && params.out_f32) {
    store_f32<Row>(params, row_place(params, tile, row), o, factor);
  } else {
    const int first_row = row - lane / 4;  // of this warp
    const uint32_t start = shared.q(buffer) + first_row * kPanelRowBytes;
    const int staged_row = lane & 15;  // that this lane addresses
#pragma unroll
    for (int i = 0; i < T::kHeadDimV / 16; ++i) {  // 16 columns: chunks 2i and 2i + 1 of 16 bytes
      const uint32_t chunk = ((2 * i) & 7) + lane / 16;
      ptx::stmatrix_x4(start + (i / 4) * T::kQPanelBytes + staged_row * kPanelRowBytes +
                           ((chunk ^ (staged_row & 7)) * 16),
                       T::pack(o[8 * i] * factor[0], o[8 * i + 1] * factor[0]),
                       T::pack(o[8 * i + 2] * factor[1], o[8 * i + 3] * factor[1]),
                       T::pack(o[8 * i + 4] * factor[0], o[8 * i + 5] * factor[0]),
                       T::pack(o[8 * i + 6] * factor[1], o[8 * i + 7] * factor[1]));
    }
    if (ptx::uniform(tile.store_rows)) {  // uniform: a divergent path here would serialise wgmma
      __syncwarp();
      store_staged_rows<Row>(params, tile, start, first_row);
    }
    ptx::fence_proxy_async();
  }
  __syncwarp();
  if (lane == 0) {
    ptx::mbarrier_arrive(shared.barrier(kOFull, buffer));
  }
  store_lse(params, tile, row, sums);
}

}  // namespace rowmax::cuda::sm90
