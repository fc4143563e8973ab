// Turns at tiles of dQ (visits.h), kept by one thread beside the query warpgroup: what it waits for
// and its fences of the whole device are not in the way of products and additions.
#pragma once

#include "backend/cuda/ptx/global.cuh"
#include "backend/cuda/sm90/backward/scheduler.cuh"

namespace rowmax::cuda::sm90 {

// Lets the query warpgroup add to the tile of each step when its turn has come, and passes the turn
// on when the additions are issued, or the tile to the converter after the last one. Either may be first: the turn of a step is awaited while the
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
        break;
      }
      // The tile before is done with. Not before these keys are loaded: the arrival would count for
      // that tile.
      ptx::mbarrier_wait(shared_.barrier(kKeysFull), count & 1);
      ptx::mbarrier_arrive(shared_.barrier(kKeysEmpty));
      if (params_.dq_sum != nullptr) {
        keep_steps(slot);
      }
    }
    if (params_.dq_rows.data != nullptr) {
      queue(0, -1, 0);
    }
  }

 private:
  // A step whose additions are under way.
  struct Visit {
    int* turn;  // null: none
    int head;
    int tile;
    bool last;  // in the order of adds
  };

  ROWMAX_DEVICE void keep_steps(const KeyTile& keys) {
    const bool upward = keys.direction > 0;
    place_ = upward ? keys.last_block - keys.block : keys.block;
    Visit before = {};
    StepWalk walk;
    walk.start(keys, params_.group);
#pragma unroll 1
    for (int left = keys.steps; left > 0; --left) {
      const int lowest = lowest_visitor(keys, walk.tile);
      const int highest = highest_visitor(keys, walk.tile);
      const bool first = keys.block == (upward ? highest : lowest);
      const bool last = keys.block == (upward ? lowest : highest);
      int* turn = params_.turns + tile_number(keys, walk.head, walk.tile);
      if (!first) {
        while (ptx::ld_acquire(turn) < place_) {
          if (before.turn != nullptr &&
              ptx::mbarrier_test_wait(added(used_ - 1), parity(used_ - 1))) {
            pass(keys, before);
          }
        }
      }
      const uint32_t slot = ring_index<kTurnSlots>(used_);
      ptx::store_shared_int(shared_.turn_info(slot), first);
      ptx::mbarrier_arrive(shared_.barrier(kTurn, slot));
      finish(keys, before);
      before = {turn, walk.head, walk.tile, last};
      ++used_;
      walk.next(keys);
    }
    finish(keys, before);
  }

  ROWMAX_DEVICE int tile_number(const KeyTile& keys, int head, int tile) const {
    return keys.first_query_tile + head * params_.query_tiles.head_step + tile;
  }

  // Key tiles that visit query tile `tile`: see visits.h.
  ROWMAX_DEVICE int lowest_visitor(const KeyTile& keys, int tile) const {
    return T::kBanded ? first_visitor(keys.band_begin, tile * T::kTileQ, T::kTileK) : 0;
  }
  ROWMAX_DEVICE int highest_visitor(const KeyTile& keys, int tile) const {
    if constexpr (!T::kBanded) {
      return keys.last_block;
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
  ROWMAX_DEVICE void finish(const KeyTile& keys, Visit& before) {
    if (before.turn != nullptr) {
      ptx::mbarrier_wait(added(used_ - 1), parity(used_ - 1));
      pass(keys, before);
    }
  }

  // Passes the turn on; after the last addition the tile goes to the converter.
  ROWMAX_DEVICE void pass(const KeyTile& keys, Visit& visit) {
    ptx::red_max_release(visit.turn, place_ + 1);
    visit.turn = nullptr;
    if (visit.last && params_.dq_rows.data != nullptr) {
      const RowOutput& dq = params_.dq_rows;
      const int row = visit.tile * T::kTileQ;
      const int rest = keys.q_len - row;
      queue(tile_number(keys, visit.head, visit.tile), rest < T::kTileQ ? rest : T::kTileQ,
            keys.batch * dq.batch + visit.head * dq.head + int64_t{keys.q_begin + row} * dq.seq);
    }
  }

  ROWMAX_DEVICE void queue(int number, int rows, int64_t offset) {
    const uint32_t slot = ring_index<kConvertSlots>(queued_);
    ptx::mbarrier_wait(shared_.barrier(kConvertEmpty, slot),
                       ring_parity<kConvertSlots>(queued_) ^ 1);
    shared_.finished(slot) = {number, rows, offset};
    ptx::mbarrier_arrive(shared_.barrier(kConvertFull, slot));
    ++queued_;
  }

  const BackwardParams& params_;
  const BackwardMap<Row>& shared_;
  int place_ = 0;        // of the key tile in the order of adds
  uint32_t used_ = 0;    // steps of this CTA
  uint32_t queued_ = 0;  // tiles of dQ given to the converter
};

}  // namespace rowmax::cuda::sm90
