// The producer warpgroup: warp 3 schedules, warp 0 loads K, warp 1 loads V, warp 2 loads Q and
// stores O. Independent loops: nothing to order between Q, K and V.
#pragma once

#include "backend/cuda/sm90/forward/scheduler.cuh"
#include "backend/cuda/sm90/tile_copy.cuh"
#include "backend/cuda/tile/trace.cuh"

namespace rowmax::cuda::sm90 {

// Q of a tile into a buffer, or the rows of warpgroup `part` into the one buffer.
template <class Row>
ROWMAX_DEVICE void load_q(const ForwardParams& params, const SharedMap<Row>& shared,
                          const TileInfo& tile, uint32_t buffer, int part) {
  using T = Traits<Row>;
  const uint32_t full = shared.barrier(kQFull, buffer + part);
  ptx::mbarrier_arrive_expect_tx(full, params.q_load_bytes);
  load_panels<T::kPanels>(shared.q(buffer) + part * (64 * kPanelRowBytes), T::kQPanelBytes,
                          &params.q, full,
                          {0, tile.head * params.q_steps.head,
                           tile.q_begin + tile.position + part * params.q_load_positions,
                           tile.batch * params.q_steps.batch},
                          ptx::kEvictFirst);
}

// Waits for tile number `count` to be decoded.
template <class Row>
ROWMAX_DEVICE void wait_slot(const SharedMap<Row>& shared, uint32_t count) {
  ptx::mbarrier_wait(shared.barrier(kSlotFull, ring_index<kTileSlots>(count)),
                     ring_parity<kTileSlots>(count));
}

// Decodes tile number `count` into its slot. Returns its key blocks, 0 after the last tile; the
// same in all lanes.
template <class Row>
ROWMAX_DEVICE int decode_next(const ForwardParams& params, const SharedMap<Row>& shared,
                              TileWalk<Row>& walk, uint32_t count) {
  using T = Traits<Row>;
  const int lane = threadIdx.x % 32;
  TileInfo& slot = shared.slots[count % kTileSlots];
  const TileWork work = walk.next();
  if (lane == 0) {
    if (work.at.batch >= 0) {
      decode_tile<Row>(params, work, slot);
    } else {
      slot = TileInfo{};  // block_end 0; consumers also compute with the other fields
    }
  }
  __syncwarp();
  if (lane < T::kWarpgroups) {  // those that write
    if (T::kBanded && work.at.batch >= 0) {
      decode_loop<Row>(params.order, slot, lane);
    }
    ptx::mbarrier_arrive(shared.barrier(kSlotFull, ring_index<kTileSlots>(count)));
  }
  return slot.block_end - slot.block_begin;
}

// Warp 3, all lanes. A tile taken from the counter early is one that an idle CTA cannot take, and
// one taken late delays its loads: it is taken when the blocks of the tiles before it that are not
// loaded yet are few. Tiles by index may be taken at any time.
template <class Row>
ROWMAX_DEVICE void schedule(const ForwardParams& params, const SharedMap<Row>& shared) {
  constexpr int kFewBlocks = 2;
  TileWalk<Row> walk(params);
  tile::Trace trace(params.trace, kTraceSchedule, threadIdx.x % 32 == 0);
  const int enough = params.counter == nullptr ? 0x7fffffff : kFewBlocks;
  uint32_t wanted = 0;   // tiles that warp 0 has loaded, but for a few blocks
  int blocks_ahead = 0;  // of the decoded tiles after them
#pragma unroll 1
  for (uint32_t count = 0;; ++count) {
    while (blocks_ahead >= enough || count - wanted >= kTilesAhead) {
      // All lanes wait: a lane that waits alone while others wait for it at a __syncwarp takes
      // issue slots from the consumers, 2-3 % of the whole kernel.
      trace.mark(TraceState::kWaitTile, static_cast<int>(count));
      ptx::mbarrier_wait(shared.barrier(kSlotWanted, ring_index<kTilesAhead + 1>(wanted)),
                         ring_parity<kTilesAhead + 1>(wanted));
      const TileInfo& loaded = shared.slots[wanted % kTileSlots];
      blocks_ahead -= loaded.block_end - loaded.block_begin;
      ++wanted;
    }
    trace.mark(TraceState::kDecode, static_cast<int>(count));
    const int blocks = decode_next<Row>(params, shared, walk, count);
    if (blocks == 0) {
      return;
    }
    blocks_ahead += blocks;
  }
}

// Warp 0, one lane.
template <class Row>
ROWMAX_DEVICE void produce_k(const ForwardParams& params, const SharedMap<Row>& shared) {
  using T = Traits<Row>;
  uint32_t block_count = 0;
  tile::Trace trace(params.trace, kTraceLoadK, true);
#pragma unroll 1
  for (uint32_t count = 0;; ++count) {
    wait_slot<Row>(shared, count);
    const TileInfo& slot = shared.slots[count % kTileSlots];
    const int begin = slot.block_begin;
    const int end = slot.block_end;
    if (end == 0) {
      return;
    }
    const int head = slot.kv_head * params.k_steps.head;
    const int batch = slot.batch * params.k_steps.batch;
    const int first_key = slot.k_begin;
    constexpr int kBlocksAhead = 3;
    const int ask = begin + kBlocksAhead < end ? begin + kBlocksAhead : end - 1;
#pragma unroll 1
    for (int j = end - 1; j >= begin; --j, ++block_count) {
      const uint32_t stage = ring_index<T::kStages>(block_count);
      const uint32_t full = shared.barrier(kKFull, stage);
      trace.mark(TraceState::kWaitStage, j);
      ptx::mbarrier_wait(shared.barrier(kKEmpty, stage), ring_parity<T::kStages>(block_count) ^ 1);
      trace.mark(TraceState::kLoad, j);
      ptx::mbarrier_arrive_expect_tx(full, T::kKBytes);
      load_panels<T::kPanels>(shared.k(stage), T::kKeyPanelBytes, &params.k, full,
                              {0, head, first_key + j * T::kTileK, batch}, ptx::kEvictLast);
      if (j == ask) {
        ptx::mbarrier_arrive(shared.barrier(kSlotWanted, ring_index<kTilesAhead + 1>(count)));
      }
    }
  }
}

// Warp 1, all lanes.
template <class Row>
ROWMAX_DEVICE void produce_v(const ForwardParams& params, const SharedMap<Row>& shared) {
  using T = Traits<Row>;
  const bool leader = threadIdx.x % 32 == 0;
  uint32_t block_count = 0;
  uint32_t zeroed_count = 0;
  tile::Trace trace(params.trace, kTraceLoadV, leader);
#pragma unroll 1
  for (uint32_t count = 0;; ++count) {
    wait_slot<Row>(shared, count);
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
      trace.mark(TraceState::kWaitStage, j);
      ptx::mbarrier_wait(shared.barrier(kVEmpty, stage), ring_parity<T::kStages>(block_count) ^ 1);
      trace.mark(TraceState::kLoad, j);
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
        // P is 0 there, but 0 x NaN of a neighbouring sequence is not.
        zero_rows<T::kTileK, T::kPanelsV>(shared.v(stage), keep);
        if (leader) {
          ptx::mbarrier_arrive(full);
        }
        keep = T::kTileK;
      }
    }
  }
}

// Loads Q of tile number `count`, or warpgroup `part`'s rows of it, or tells the consumers that
// there is none: false.
template <class Row>
ROWMAX_DEVICE bool produce_q(const ForwardParams& params, const SharedMap<Row>& shared,
                             uint32_t count, int part) {
  using T = Traits<Row>;
  const uint32_t buffer = ring_index<T::kQBuffers>(count);
  wait_slot<Row>(shared, count);
  const TileInfo& tile = shared.slots[count % kTileSlots];
  if (tile.block_end == 0) {
    ptx::mbarrier_arrive(shared.barrier(kQFull, buffer + part));
    return false;
  }
  load_q<Row>(params, shared, tile, buffer, part);
  return true;
}

template <class Row>
ROWMAX_DEVICE bool is_decoded(const SharedMap<Row>& shared, uint32_t count) {
  return ptx::mbarrier_try_wait(shared.barrier(kSlotFull, ring_index<kTileSlots>(count)),
                                ring_parity<kTileSlots>(count));
}

template <class Row>
ROWMAX_DEVICE bool is_staged(const SharedMap<Row>& shared, uint32_t count) {
  using T = Traits<Row>;
  return ptx::mbarrier_try_wait(shared.barrier(kOFull, ring_index<T::kQBuffers>(count)),
                                ring_parity<T::kQBuffers>(count));
}

// Stores the O of tile number `count` that consumers staged in the tile's Q buffer.
template <class Row>
ROWMAX_DEVICE void store_out(const ForwardParams& params, const SharedMap<Row>& shared,
                             uint32_t count) {
  using T = Traits<Row>;
  const uint32_t buffer = ring_index<T::kQBuffers>(count);
  ptx::mbarrier_wait(shared.barrier(kOFull, buffer), ring_parity<T::kQBuffers>(count));
  const TileInfo& tile = shared.slots[count % kTileSlots];
  if (tile.store_rows) {
    return;
  }
#pragma unroll
  for (int panel = 0; panel < T::kPanelsV; ++panel) {
    ptx::tma_store(&params.out, shared.q(buffer) + panel * T::kQPanelBytes,
                   {panel * kPanelColumns, tile.head, tile.q_begin + tile.position,
                    tile.batch * params.out_steps.batch});
  }
  ptx::bulk_commit_group();
  ptx::bulk_wait_group_read<0>();
}

// Warp 2, one lane: what goes through the Q buffers. With several of them O leaves from its tile's
// buffer before another Q arrives there.
template <class Row>
ROWMAX_DEVICE void move_q_and_out(const ForwardParams& params, const SharedMap<Row>& shared) {
  using T = Traits<Row>;
  if constexpr (T::kQBuffers == 1) {
    bool loads = true;
    for (uint32_t count = 0; loads; ++count) {
#pragma unroll 1
      for (int part = 0; part < T::kQLoads; ++part) {
        ptx::mbarrier_wait(shared.barrier(kQEmpty, part), ring_parity<1>(count) ^ 1);
        loads = produce_q<Row>(params, shared, count, part);
      }
    }
    return;
  }
  bool more = produce_q<Row>(params, shared, 0, 0);
  uint32_t loaded = more ? 1 : 0;
  uint32_t stored = 0;
#pragma unroll 1
  while (more || stored < loaded) {
    const bool may_load = more && loaded < stored + T::kQBuffers;
    if (may_load && (stored == loaded || is_decoded<Row>(shared, loaded))) {
      more = produce_q<Row>(params, shared, loaded, 0);
      loaded += more ? 1 : 0;
    } else if (!may_load || is_staged<Row>(shared, stored)) {  // O does not wait for the next tile
      store_out<Row>(params, shared, stored);
      ++stored;
    }
  }
  ptx::bulk_wait_group<0>();
}

}  // namespace rowmax::cuda::sm90
