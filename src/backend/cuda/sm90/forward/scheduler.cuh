// Which tiles a CTA computes, in which order, and what each consists of.
#pragma once

#include "backend/cuda/sm90/forward/traits.cuh"
#include "backend/cuda/sm90/tile_order.h"

namespace rowmax::cuda::sm90 {

// A tile or, with piece.count > 1, a piece of it.
struct TileWork {
  TilePlace at;
  Piece piece;
};

// Writes a tile that has rows into its slot, field by field: the producer has few registers.
template <class Row>
ROWMAX_DEVICE void decode_tile(const ForwardParams& params, const TileWork& work, TileInfo& tile) {
  using T = Traits<Row>;
  const TileOrder& order = params.order;
  const TilePlace& at = work.at;
  const int head = at.unit * order.pack;
  tile.batch = at.batch;
  tile.head = head;
  tile.kv_head = divide(head, order.heads_per_kv);
  const tile::Extent extent = tile::extent(params.lengths, at.batch);
  tile.q_begin = extent.q_begin;
  tile.k_begin = extent.k_begin;
  tile.k_len = extent.k_len;
  const int position = at.block * order.positions;
  tile.position = position;
  const int rest = extent.q_len - position;
  const int rows = rest < order.positions ? rest : order.positions;
  tile.rows = rows;
  // The copy engine stops at the end of the tensor, which is the end of the sequence only when no
  // lengths are given.
  tile.store_rows =
      (T::kOptions && params.out_f32) || (params.lengths.any && rows < order.positions);
  tile.shift = params.band.top_left ? 0 : extent.k_len - extent.q_len;
  int begin = 0;
  int end = extent.k_len;
  if constexpr (T::kBanded) {
    const RowBand band = resolve_band(params.band, extent.q_len, extent.k_len);
    const KeyRange keys = block_keys(band, position, position + rows, extent.k_len);
    begin = static_cast<int>(keys.begin);
    end = static_cast<int>(keys.end);
    tile.key_end = position + tile::saturate_offset(band.has_hi ? band.hi : kBandLimit) + 1;
    tile.key_begin = position + tile::saturate_offset(band.has_lo ? band.lo : -kBandLimit);
  }
  const KeyBlocks blocks = tile_key_blocks(begin, end, T::kTileK);
  int v_rows = T::kTileK;
  if (begin >= end) {  // no row sees a key: V is zeroed too
    v_rows = 0;
  } else if (params.lengths.any && blocks.end * T::kTileK > extent.k_len) {
    v_rows = extent.k_len - (blocks.end - 1) * T::kTileK;
  }
  tile.block_begin = blocks.begin;
  tile.block_end = blocks.end;
  tile.v_rows = v_rows;
  if constexpr (T::kCuts) {
    tile.pieces = work.piece.count;
    if (work.piece.count > 1) {
      tile.piece = work.piece.index;
      tile.piece_slot = work.piece.slot;
      tile.block_begin = work.piece.blocks.begin;
      tile.block_end = work.piece.blocks.end;
      tile.store_rows = 1;  // by the warp that is last at its rows
    }
  }
  const int64_t first_row = int64_t{extent.q_begin} + position;
  tile.out = at.batch * params.out_rows.batch + first_row * params.out_rows.seq +
             head * params.out_rows.head;
  tile.lse = at.batch * params.lse.batch + first_row * params.lse.seq + head * params.lse.head;
  // Loaded here, a tile ahead: in the consumers' epilogue a sink's latency costs 4-9 % of the
  // kernel.
  if (order.pack == 1 && params.score.sinks != nullptr) {
    tile.sink = params.score.sinks[head * params.score.sink_stride] * ptx::kLog2E;
  }
  if (T::kAlibi && order.pack == 1 && params.score.slopes != nullptr) {
    tile.slope =
        params.score.slope_scale *
        params.score.slopes[at.batch * params.score.slope_batch + head * params.score.slope_head];
  }
}

// What warpgroup `warpgroup` visits of a decoded tile: consumers would spend the time of a third of
// a block on it.
template <class Row>
ROWMAX_DEVICE void decode_loop(const TileOrder& order, TileInfo& tile, int warpgroup) {
  const int first = position_in_tile(order, warpgroup * 64);
  const int last = position_in_tile(order, warpgroup * 64 + 63);
  const EdgeRows keys = {{tile.key_begin + first, tile.key_end + first},
                         {tile.key_begin + last, tile.key_end + last}};
  tile.loops[warpgroup] = loop_blocks({tile.block_begin, tile.block_end}, keys, Traits<Row>::kTileK,
                                      skips_of(Row::kConfig));
}

// The next number of a launch, counted from 0. As many are taken as there are tiles, and whoever
// takes the last of them calls leave_tickets(): the counter is then ready for the next launch
// without a memset node before it. Its upper half tells that a launch is on: a NaN that no
// arithmetic makes, since other plans may have left their floats there. Before the first launch it
// may hold anything else. Two launches at once on one workspace, or lengths that change
// under a launch, may leave it open: nothing then puts it right but a workspace filled anew.
inline constexpr uint64_t kTicketsOpen = uint64_t{0xFFA35E91} << 32;

ROWMAX_DEVICE int take_ticket(uint64_t* counter, bool first) {
  auto* word = reinterpret_cast<unsigned long long*>(counter);
  if (first) {
    unsigned long long seen = *static_cast<volatile unsigned long long*>(word);
    while ((seen >> 32) != (kTicketsOpen >> 32)) {
      const unsigned long long before = atomicCAS(word, seen, kTicketsOpen + 1);
      if (before == seen) {
        return 0;
      }
      seen = before;
    }
  }
  return static_cast<int>(atomicAdd(word, 1ull));
}

ROWMAX_DEVICE void leave_tickets(uint64_t* counter) {
  *static_cast<volatile uint64_t*>(counter) = 0;
}

// The tiles of this CTA, one after the other. All lanes of a warp call it together. The first is
// the CTA's own index; later ones come from the counter, or by turns of the grid. They grow.
template <class Row>
class TileWalk {
 public:
  ROWMAX_DEVICE explicit TileWalk(const ForwardParams& params) : params_(params) {}

  // The same in all lanes.
  ROWMAX_DEVICE TileWork next() {
    if constexpr (T::kCuts) {
      if (params_.cut.ranges > 0) {
        return next_of_cut();
      }
    }
    const TileOrder& order = params_.order;
    const int index = next_index();
    if (params_.lengths.any) {
      const TilePlace at = find(index);
      if (at.batch < 0) {
        leave(index, tiles_before_);
      }
      return whole(at);
    }
    if (index >= order.tiles) {
      leave(index, order.tiles);
      return whole({-1, 0, 0});
    }
    return whole(place(index));
  }

 private:
  using T = Traits<Row>;

  static ROWMAX_DEVICE TileWork whole(const TilePlace& at) { return {at, {0, {0, 0}, 0, 1, 0}}; }

  // Tile `index` where every batch element has the same lengths.
  ROWMAX_DEVICE TilePlace place(int index) const {
    const TileOrder& order = params_.order;
    TilePlace at;
    if constexpr (T::kBanded) {
      at = place_by_length(index, order.sections);
    } else {
      at = place_by_unit(index, order.blocks);
    }
    at.batch = divide(at.unit, order.units_per_batch);
    at.unit -= at.batch * order.units_per_batch.value;
    return at;
  }

  // Ranges of the cut tiles, each with one or two pieces, then the other tiles.
  ROWMAX_DEVICE TileWork next_of_cut() {
    const CutTiles& cut = params_.cut;
    if (range_ >= 0) {
      const Piece piece = piece_of(cut, range_, true);
      range_ = -1;
      if (piece.count > 0) {
        return {place(piece.tile), piece};
      }
    }
    const int index = next_index();
    if (index < cut.ranges) {
      range_ = index;
      const Piece piece = piece_of(cut, index, false);
      return {place(piece.tile), piece};
    }
    const int tile = index - cut.ranges + cut.tiles;
    return whole(tile < params_.order.tiles ? place(tile) : TilePlace{-1, 0, 0});
  }

  ROWMAX_DEVICE int next_index() {
    const int grid = static_cast<int>(gridDim.x);
    const int round = round_++;
    if (params_.counter != nullptr && round > 0) {
      int ticket = 0;
      if (threadIdx.x % 32 == 0) {
        ticket = take_ticket(params_.counter, round == 1);
      }
      return ptx::uniform(ticket) + grid;
    }
    return round * grid + static_cast<int>(blockIdx.x);
  }

  // After the last index of this CTA. As many tickets are taken as there are tiles: each CTA that
  // had a first tile takes one too many.
  ROWMAX_DEVICE void leave(int index, int tiles) const {
    if (params_.counter != nullptr && round_ > 1 && threadIdx.x % 32 == 0 &&
        index - static_cast<int>(gridDim.x) == tiles - 1) {
      leave_tickets(params_.counter);
    }
  }

  // Row blocks of batch element `batch`; none past the last.
  ROWMAX_DEVICE int blocks_of(int batch) const {
    const int positions = params_.order.positions;
    return batch < params_.order.batch
               ? (tile::query_length(params_.lengths, batch) + positions - 1) / positions
               : 0;
  }

  // Tile `index` when every batch element has its own number of tiles: each lane counts those of
  // one batch element; since indices grow, the walk never goes back.
  ROWMAX_DEVICE TilePlace find(int index) {
    const TileOrder& order = params_.order;
    const int lane = threadIdx.x % 32;
    while (first_batch_ < order.batch) {
      const int blocks = blocks_of(first_batch_ + lane);
      int end = blocks * order.units_per_batch.value;  // becomes the tiles of lanes 0 ... lane
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(ptx::kFullWarp, end, distance);
        end += lane >= distance ? before : 0;
      }
      const unsigned later = __ballot_sync(ptx::kFullWarp, tiles_before_ + end > index);
      if (later != 0) {
        const int owner = __ffs(static_cast<int>(later)) - 1;
        const int owner_blocks = __shfl_sync(ptx::kFullWarp, blocks, owner);
        const int begin =
            __shfl_sync(ptx::kFullWarp, end - blocks * order.units_per_batch.value, owner);
        const int rest = index - tiles_before_ - begin;
        TilePlace at;
        if constexpr (T::kBanded) {
          at = place_by_length(
              rest, make_sections<int>(order.units_per_batch.value, owner_blocks,
                                       order.section_units, [](int number) { return number; }));
        } else {
          at = place_by_unit(rest, owner_blocks);
        }
        at.batch = first_batch_ + owner;
        return at;
      }
      tiles_before_ += __shfl_sync(ptx::kFullWarp, end, 31);
      first_batch_ += 32;
    }
    return {-1, 0, 0};
  }

  const ForwardParams& params_;
  int round_ = 0;
  int range_ = -1;        // whose second piece comes next
  int first_batch_ = 0;   // find(): batch elements before it are done
  int tiles_before_ = 0;  // and their tiles
};

}  // namespace rowmax::cuda::sm90
