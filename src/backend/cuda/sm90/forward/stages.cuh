// Stages of K and V, turns on the tensor cores, decoded tiles: what a consumer warpgroup waits for
// and frees. tests/unit/cuda_rings_test.cpp models it.
#pragma once

#include "backend/cuda/sm90/forward/block.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
class ConsumerStages {
 protected:
  using T = Traits<Row>;

  ROWMAX_DEVICE ConsumerStages(const ForwardParams& params, const SharedMap<Row>& shared,
                               int warpgroup)
      : params_(params),
        shared_(shared),
        lane_(threadIdx.x % 32),
        row_(warpgroup * 64 + (threadIdx.x / 32) % 4 * 16 + lane_ / 4) {}

  ROWMAX_DEVICE const TileInfo& slot(uint32_t count) const {
    return shared_.slots[count % kTileSlots];
  }
  ROWMAX_DEVICE LoopTile load_tile(uint32_t count) const {
    return own_blocks<Row>(slot(count), warpgroup());
  }

  // This warpgroup, from the row: a register less to keep.
  ROWMAX_DEVICE int warpgroup() const { return ptx::opaque(row_) >> 6; }
  ROWMAX_DEVICE void take_turn() const {
    if constexpr (T::kTurns) {
      ptx::bar_sync(kTurnBarrier + warpgroup(), 256);
    }
  }
  ROWMAX_DEVICE void pass_turn() const {
    if constexpr (T::kTurns) {
      const int own = warpgroup();
      ptx::bar_arrive(kTurnBarrier + (own + 1 == T::kWarpgroups ? 0 : own + 1), 256);
    }
  }
  // K or V of block number `block` of this CTA, counted over all tiles; full: kKFull or kVFull.
  ROWMAX_DEVICE void wait(Barrier full, uint32_t block) const {
    const uint32_t stage = ring_index<T::kStages>(block);
    ptx::mbarrier_wait(shared_.barrier(full, stage), ring_parity<T::kStages>(block));
  }
  ROWMAX_DEVICE void release(Barrier empty, uint32_t block) const {
    if (lane_ == 0) {
      ptx::mbarrier_arrive(shared_.barrier(empty, ring_index<T::kStages>(block)));
    }
  }
  // Q of tile `count` is there, or there is no such tile.
  ROWMAX_DEVICE void wait_q(uint32_t count) const {
    const uint32_t part = T::kQLoads == 1 ? 0 : warpgroup();
    ptx::mbarrier_wait(shared_.barrier(kQFull, ring_index<T::kQBuffers>(count) + part),
                       ring_parity<T::kQBuffers>(count));
  }
  // One Q buffer: warp 2 may load this warpgroup's next rows once its warps have read these.
  ROWMAX_DEVICE void free_q() const {
    if (T::kQBuffers == 1 && lane_ == 0) {
      ptx::mbarrier_arrive(shared_.barrier(kQEmpty, warpgroup()));
    }
  }
  // Low word of the descriptor of this warpgroup's Q rows. Made anew for every block: kept, it
  // would become one descriptor for each 16 columns in vector registers.
  ROWMAX_DEVICE uint32_t q_descriptor(uint32_t count) const {
    return ptx::uniform(ptx::descriptor_k_major(shared_.base, T::kShared.q) +
                        warpgroup() * (64 * kPanelRowBytes / 16) +
                        ring_index<T::kQBuffers>(count) * (T::kQBytes / 16));
  }

  // Low words of the descriptors of K and V of a block. The compiler takes block numbers for
  // divergent once blocks are skipped.
  ROWMAX_DEVICE uint32_t k_descriptor(uint32_t block) const {
    const uint32_t low = ptx::descriptor_k_major(shared_.base, T::kShared.k) +
                         ring_index<T::kStages>(block) * (T::kKBytes / 16);
    return T::kSkips ? ptx::uniform(low) : low;
  }
  ROWMAX_DEVICE uint32_t v_descriptor(uint32_t block) const {
    const uint32_t low = ptx::descriptor_mn_major(shared_.base, T::kShared.v, T::kKeyPanelBytes) +
                         ring_index<T::kStages>(block) * (T::kVBytes / 16);
    return T::kSkips ? ptx::uniform(low) : low;
  }

  // Skipped blocks: their stages are freed in order, and every warpgroup takes as many turns.
  template <bool kTakeTurns>
  ROWMAX_DEVICE void skip_keys(int blocks) {
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      wait(kKFull, blocks_ + i);
      if constexpr (kTakeTurns) {
        take_turn();
        pass_turn();
      }
      release(kKEmpty, blocks_ + i);
    }
    blocks_ += blocks;
  }
  // After the first block: V of the skipped ones.
  ROWMAX_DEVICE void skip_values(int blocks) {
#pragma unroll 1
    for (uint32_t block = blocks_ - 1 - blocks; block != blocks_ - 1; ++block) {
      wait(kVFull, block);
      release(kVEmpty, block);
    }
  }

  // Blocks skipped at the end of the last tile, after its last product: its V may be in the stage
  // that another warpgroup's last V comes to. No copy is under way when the CTA ends.
  ROWMAX_DEVICE void finish_skipped(int blocks) {
    skip_keys<true>(blocks);
#pragma unroll 1
    for (int i = blocks; i > 0; --i) {
      wait(kVFull, blocks_ - i);
    }
  }

  const ForwardParams& params_;
  const SharedMap<Row>& shared_;
  const int lane_;
  const int row_;        // first of this thread's two rows in the tile, the other is + 8
  uint32_t blocks_ = 0;  // K blocks used so far
};

}  // namespace rowmax::cuda::sm90
