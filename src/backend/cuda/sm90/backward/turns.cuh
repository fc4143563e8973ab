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
      // The tile before is done with. Not before these keys are loaded: the arrival would count for
      // that tile.
      ptx::mbarrier_wait(shared_.barrier(kKeysFull), count & 1);
      ptx::mbarrier_arrive(shared_.barrier(kKeysEmpty));
      if (params_.dq_sum != nullptr) {
        keep_steps(slot);
      }
    }
  }

 private:
  ROWMAX_DEVICE void keep_steps(const KeyTile& keys) {
    int* before = nullptr;  // turn of the step before, its additions under way
    place_ = keys.direction > 0 ? keys.last_block - keys.block : keys.block;
    StepWalk walk;
    walk.start(keys, params_.group);
#pragma unroll 1
    for (int left = keys.steps; left > 0; --left) {
      int* turn = params_.turns + keys.first_query_tile +
                  walk.head * params_.query_tiles.head_step + walk.tile;
      const bool first = keys.block == first_in_order(keys, walk.tile);
      if (!first) {
        while (ptx::ld_acquire(turn) < place_) {
          if (before != nullptr && ptx::mbarrier_test_wait(added(used_ - 1), parity(used_ - 1))) {
            pass(before);
            before = nullptr;
          }
        }
      }
      const uint32_t slot = ring_index<kTurnSlots>(used_);
      ptx::store_shared_int(shared_.turn_info(slot), first);
      ptx::mbarrier_arrive(shared_.barrier(kTurn, slot));
      finish(before);
      before = turn;
      ++used_;
      walk.next(keys);
    }
    finish(before);
  }

  // The key tile that adds first to query tile `tile`.
  ROWMAX_DEVICE int first_in_order(const KeyTile& keys, int tile) const {
    if constexpr (!T::kBanded) {
      return 0;
    }
    if (keys.direction < 0) {
      return first_visitor(keys.band_begin, tile * T::kTileQ, T::kTileK);
    }
    int row_end = (tile + 1) * T::kTileQ;
    row_end = row_end < keys.q_len ? row_end : keys.q_len;
    return last_visitor(keys.band_end, row_end, keys.last_block, T::kTileK);
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

  ROWMAX_DEVICE void pass(int* turn) const { ptx::red_max_release(turn, place_ + 1); }

  const BackwardParams& params_;
  const BackwardMap<Row>& shared_;
  int place_ = 0;      // of the key tile in the order of adds
  uint32_t used_ = 0;  // steps of this CTA
};

}  // namespace rowmax::cuda::sm90
