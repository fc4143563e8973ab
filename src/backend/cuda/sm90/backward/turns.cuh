// Turns at tiles of dQ (visits.h), kept by one thread beside the query warpgroup: what it waits for
// and its fences of the whole device are not in the way of products and additions.
#pragma once

#include "backend/cuda/ptx/global.cuh"
#include "backend/cuda/sm90/backward/scheduler.cuh"

namespace rowmax::cuda::sm90 {

// Lets the query warpgroup add to the tile of each step when its turn has come, and passes the turn
// on when the additions are issued. Either may be first: the turn of a step is awaited while the
// additions of the step before are under way.
template <class Row>
class TurnKeeper {
 public:
  using T = BackwardTraits<Row>;

  ROWMAX_DEVICE TurnKeeper(const BackwardParams& params, const BackwardMap<Row>& shared)
      : params_(params), shared_(shared) {}

  ROWMAX_DEVICE void run() {
#pragma unroll 1
    for (uint32_t count = 0;; ++count) {
      const KeyTile& slot = shared_.tiles[ring_index<kKeyTileSlots>(count)];
      ptx::mbarrier_wait(shared_.barrier(kTileFull, ring_index<kKeyTileSlots>(count)),
                         ring_parity<kKeyTileSlots>(count));
      if (slot.steps < 0) {
        return;
      }
      const int steps = params_.dq_sum != nullptr ? slot.steps : 0;
      const int end = slot.query_end;
      const int tiles = end - slot.query_begin;
      const int band_begin = T::kBanded ? slot.band_begin : 0;
      const int head =
          slot.first_query_tile + slot.kv_head * params_.group * params_.query_tiles.head_step;
      block_ = slot.block;
      // Not before these keys are loaded: the arrival would count for the tile before.
      ptx::mbarrier_wait(shared_.barrier(kKeysFull), count & 1);
      ptx::mbarrier_arrive(shared_.barrier(kKeysEmpty));
      keep_steps(steps, tiles, end, head, band_begin);
    }
  }

 private:
  // Steps of `tiles` query tiles a head, from tile `end` - 1 down; `head`: number of tile 0.
  ROWMAX_DEVICE void keep_steps(int steps, int tiles, int end, int head, int band_begin) {
    int* before = nullptr;  // turn of the step before, its additions under way
    int tile = end;
#pragma unroll 1
    for (; steps > 0; --steps) {
      --tile;
      int* turn = params_.turns + head + tile;
      const int first = T::kBanded ? first_visitor(band_begin, tile * T::kTileQ, T::kTileK) : 0;
      if (block_ != first) {  // somebody adds before
        while (ptx::ld_acquire(turn) < block_) {
          if (before != nullptr && ptx::mbarrier_test_wait(added(used_ - 1), parity(used_ - 1))) {
            pass(before);
            before = nullptr;
          }
        }
      }
      ptx::mbarrier_arrive(shared_.barrier(kTurn, ring_index<kTurnSlots>(used_)));
      finish(before);
      before = turn;
      ++used_;
      if (tile == end - tiles) {
        tile = end;
        head += params_.query_tiles.head_step;
      }
    }
    finish(before);
  }

  ROWMAX_DEVICE uint32_t added(uint32_t step) const {
    return shared_.barrier(kAdded, ring_index<kTurnSlots>(step));
  }
  static ROWMAX_DEVICE uint32_t parity(uint32_t step) { return ring_parity<kTurnSlots>(step); }

  // Waits for the additions of the step before, if they are not passed on yet.
  ROWMAX_DEVICE void finish(int* before) const {
    if (before != nullptr) {
      ptx::mbarrier_wait(added(used_ - 1), parity(used_ - 1));
      pass(before);
    }
  }

  ROWMAX_DEVICE void pass(int* turn) const { ptx::red_max_release(turn, block_ + 1); }

  const BackwardParams& params_;
  const BackwardMap<Row>& shared_;
  int block_ = 0;
  uint32_t used_ = 0;  // steps of this CTA
};

}  // namespace rowmax::cuda::sm90
