// The producer warpgroup: warp 3 schedules, warp 0 loads Q and K, warp 1 loads V, warp 2 stores O.
// Independent loops: nothing to order between K and V, and O needs no consumer thread.
#pragma once

#include "backend/cuda/sm90/forward/scheduler.cuh"

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

template <class Row>
ROWMAX_DEVICE void load_q(const ForwardParams& params, const SharedMap<Row>& shared,
                          const TileInfo& tile, uint32_t buffer) {
  using T = Traits<Row>;
  const uint32_t full = shared.barrier(kQFull, buffer);
  ptx::mbarrier_arrive_expect_tx(full, params.q_tile_bytes);
  load_panels<T::kPanels>(shared.q(buffer), T::kQPanelBytes, &params.q, full,
                          {0, tile.head * params.q_steps.head, tile.q_begin + tile.position,
                           tile.batch * params.q_steps.batch},
                          ptx::kEvictFirst);
}

// Warp 3, all lanes. Decodes the next tile while the last blocks of this one are loaded: late,
// since a tile taken from the counter early is one that an idle CTA cannot take (two tiles ahead:
// -10 % at S 16k causal), early enough to hide the latency of the counter and the lengths. A slot's
// last user was done three tiles ago.
template <class Row>
ROWMAX_DEVICE void schedule(const ForwardParams& params, const SharedMap<Row>& shared) {
  using T = Traits<Row>;
  const int lane = threadIdx.x % 32;
  TileWalk<Row> walk(params);
#pragma unroll 1
  for (uint32_t count = 0;; ++count) {
    // All lanes wait: a lane that waits alone while others wait for it at a __syncwarp takes issue
    // slots from the consumers, 2-3 % of the whole kernel.
    ptx::mbarrier_wait(shared.barrier(kSlotWanted, 0), ring_parity<1>(count) ^ 1);
    const TilePlace at = walk.next();
    if (lane == 0) {
      TileInfo& slot = shared.slots[count % kTileSlots];
      if (at.batch >= 0) {
        decode_tile<Row>(params, at, slot);
      } else {
        slot = TileInfo{};  // block_end 0; consumers also compute with the other fields
      }
    }
    __syncwarp();
    if (T::kBanded && at.batch >= 0 && lane < T::kWarpgroups) {
      decode_loop<Row>(params.order, shared.slots[count % kTileSlots], lane);
    }
    __syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive(shared.barrier(kSlotFull, 0));
    }
    if (at.batch < 0) {
      return;
    }
  }
}

// Warp 0, one lane.
template <class Row>
ROWMAX_DEVICE void produce_q_and_k(const ForwardParams& params, const SharedMap<Row>& shared) {
  using T = Traits<Row>;
  uint32_t block_count = 0;
#pragma unroll 1
  for (uint32_t count = 0;; ++count) {
    const uint32_t buffer = ring_index<T::kQBuffers>(count);
    ptx::mbarrier_wait(shared.barrier(kSlotFull, 0), ring_parity<1>(count));
    const TileInfo tile = shared.slots[count % kTileSlots];
    ptx::mbarrier_wait(shared.barrier(kQEmpty, buffer), ring_parity<T::kQBuffers>(count) ^ 1);
    if (tile.block_end == 0) {
      ptx::mbarrier_arrive(shared.barrier(kQFull, buffer));
      return;
    }
    load_q<Row>(params, shared, tile, buffer);
    constexpr int kBlocksAhead = 3;
    const int ask = tile.block_begin + kBlocksAhead < tile.block_end
                        ? tile.block_begin + kBlocksAhead
                        : tile.block_end - 1;
#pragma unroll 1
    for (int j = tile.block_end - 1; j >= tile.block_begin; --j, ++block_count) {
      const uint32_t stage = ring_index<T::kStages>(block_count);
      const uint32_t full = shared.barrier(kKFull, stage);
      ptx::mbarrier_wait(shared.barrier(kKEmpty, stage), ring_parity<T::kStages>(block_count) ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, T::kKBytes);
      load_panels<T::kPanels>(shared.k(stage), T::kKeyPanelBytes, &params.k, full,
                              {0, tile.kv_head * params.k_steps.head, tile.k_begin + j * T::kTileK,
                               tile.batch * params.k_steps.batch},
                              ptx::kEvictLast);
      if (j == ask) {
        ptx::mbarrier_arrive(shared.barrier(kSlotWanted, 0));
      }
    }
  }
}

// Rows [first, kTileK) of a V block become zero: P is 0 there, but 0 x NaN of a neighbouring
// sequence is not. All lanes of a warp.
template <class Row>
ROWMAX_DEVICE void zero_v_rows(uint32_t block, int first) {
  using T = Traits<Row>;
  const int bytes = (T::kTileK - first) * kPanelRowBytes;
#pragma unroll 1
  for (int panel = 0; panel < T::kPanelsV; ++panel) {
    const uint32_t start = block + panel * T::kKeyPanelBytes + first * kPanelRowBytes;
#pragma unroll 1
    for (int offset = (threadIdx.x % 32) * 16; offset < bytes; offset += 32 * 16) {
      ptx::store_shared_zero_16(start + offset);
    }
  }
  ptx::fence_proxy_async();
  __syncwarp();
}

// Warp 1, all lanes.
template <class Row>
ROWMAX_DEVICE void produce_v(const ForwardParams& params, const SharedMap<Row>& shared) {
  using T = Traits<Row>;
  const bool leader = threadIdx.x % 32 == 0;
  uint32_t block_count = 0;
  uint32_t zeroed_count = 0;
#pragma unroll 1
  for (uint32_t count = 0;; ++count) {
    ptx::mbarrier_wait(shared.barrier(kQFull, ring_index<T::kQBuffers>(count)),
                       ring_parity<T::kQBuffers>(count));
    const TileInfo tile = shared.slots[count % kTileSlots];
    if (tile.block_end == 0) {
      return;
    }
    int keep = tile.v_rows;
#pragma unroll 1
    for (int j = tile.block_end - 1; j >= tile.block_begin; --j, ++block_count) {
      const uint32_t stage = ring_index<T::kStages>(block_count);
      const bool zero = keep < T::kTileK;
      const uint32_t full = shared.barrier(kVFull, stage);
      const uint32_t loaded = zero ? shared.barrier(kVLoaded, 0) : full;
      ptx::mbarrier_wait(shared.barrier(kVEmpty, stage), ring_parity<T::kStages>(block_count) ^ 1);
      if (leader) {
        ptx::mbarrier_arrive_expect_tx(loaded, T::kVBytes);
        load_panels<T::kPanelsV>(shared.v(stage), T::kKeyPanelBytes, &params.v, loaded,
                                 {0, tile.kv_head * params.v_steps.head,
                                  tile.k_begin + j * T::kTileK, tile.batch * params.v_steps.batch},
                                 ptx::kEvictLast);
      }
      __syncwarp();
      if (zero) {
        ptx::mbarrier_wait(loaded, zeroed_count & 1);
        ++zeroed_count;
        zero_v_rows<Row>(shared.v(stage), keep);
        if (leader) {
          ptx::mbarrier_arrive(full);
        }
        keep = T::kTileK;
      }
    }
  }
}

// Warp 2, one lane; only with two Q buffers. Stores the O that consumers staged in the tile's Q
// buffer and hands the buffer back to warp 0.
template <class Row>
ROWMAX_DEVICE void store_out(const ForwardParams& params, const SharedMap<Row>& shared) {
  using T = Traits<Row>;
#pragma unroll 1
  for (uint32_t count = 0;; ++count) {
    const uint32_t buffer = ring_index<T::kQBuffers>(count);
    ptx::mbarrier_wait(shared.barrier(kQFull, buffer), ring_parity<T::kQBuffers>(count));
    const TileInfo tile = shared.slots[count % kTileSlots];
    if (tile.block_end == 0) {
      break;
    }
    ptx::mbarrier_wait(shared.barrier(kOFull, buffer), ring_parity<T::kQBuffers>(count));
    if (!tile.store_rows) {
#pragma unroll
      for (int panel = 0; panel < T::kPanelsV; ++panel) {
        ptx::tma_store(&params.out, shared.q(buffer) + panel * T::kQPanelBytes,
                       {panel * kPanelColumns, tile.head, tile.q_begin + tile.position,
                        tile.batch * params.out_steps.batch});
      }
      ptx::bulk_commit_group();
      ptx::bulk_wait_group_read<0>();
    }
    ptx::mbarrier_arrive(shared.barrier(kQEmpty, buffer));
  }
  ptx::bulk_wait_group<0>();
}

}  // namespace rowmax::cuda::sm90
