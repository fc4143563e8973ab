// Which tiles a CTA computes, in which order, and what each consists of.
#pragma once

#include "backend/cuda/sm90/forward/traits.cuh"

namespace rowmax::cuda::sm90 {

// Tile index -> row block and unit. Banded: longest tiles first inside sections of units whose K
// and V fit the L2 cache. Full: the tiles of a unit are neighbours and share its K and V in L2.
struct TilePlace {
  int block;
  int unit;
};

template <class Row>
ROWMAX_DEVICE TilePlace tile_coordinates(const TileOrder& order, int index) {
  if constexpr (Traits<Row>::kBanded) {
    const int full_section = order.section_units * order.blocks;
    int section = index / full_section;
    section = section < order.sections ? section : order.sections - 1;
    const int first = section * order.section_units;
    // The last section takes the remainder: a short section of its own would start its long tiles
    // too late.
    const int units = section == order.sections - 1 ? order.units - first : order.section_units;
    const int rest = index - section * full_section;
    return {order.blocks - 1 - rest / units, first + rest % units};
  } else {
    return {index % order.blocks, index / order.blocks};
  }
}

ROWMAX_DEVICE int saturate_offset(int64_t offset) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  return static_cast<int>(offset < -kLimit ? -kLimit : offset > kLimit ? kLimit : offset);
}

template <class Row>
ROWMAX_DEVICE TileInfo decode_tile(const ForwardParams& params, int index) {
  using T = Traits<Row>;
  const TileOrder& order = params.order;
  const TilePlace at = tile_coordinates<Row>(order, index);
  TileInfo tile = {};
  tile.batch = at.unit / order.units_per_batch;
  tile.head = (at.unit - tile.batch * order.units_per_batch) * order.pack;
  tile.kv_head = tile.head / order.heads_per_kv;
  const tile::Extent extent = tile::extent(params.lengths, tile.batch);
  tile.q_begin = extent.q_begin;
  tile.k_begin = extent.k_begin;
  tile.k_len = extent.k_len;
  tile.position = at.block * order.positions;
  const int rows = extent.q_len - tile.position;
  if (rows <= 0) {
    return tile;
  }
  tile.rows = rows < order.positions ? rows : order.positions;
  // The copy engine stops at the end of the tensor, which is the end of the sequence only when no
  // lengths are given.
  tile.store_rows = params.out_f32 || (params.lengths.any && rows < order.positions);
  tile.shift = params.band.top_left ? 0 : extent.k_len - extent.q_len;
  KeyRange keys = {0, extent.k_len};
  if constexpr (T::kBanded) {
    const RowBand band = resolve_band(params.band, extent.q_len, extent.k_len);
    keys = block_keys(band, tile.position, tile.position + tile.rows, extent.k_len);
    tile.hi = saturate_offset(band.has_hi ? band.hi : kBandLimit);
    tile.lo = saturate_offset(band.has_lo ? band.lo : -kBandLimit);
  }
  tile.block_begin = static_cast<int>(keys.begin) / T::kTileK;
  tile.block_end = (static_cast<int>(keys.end) + T::kTileK - 1) / T::kTileK;
  tile.v_rows = T::kTileK;
  if (keys.begin >= keys.end) {  // no row sees a key: one block, all masked, V zeroed
    tile.block_begin = 0;
    tile.block_end = 1;
    tile.v_rows = 0;
  } else if (params.lengths.any && tile.block_end * T::kTileK > tile.k_len) {
    tile.v_rows = tile.k_len - (tile.block_end - 1) * T::kTileK;
  }
  return tile;
}

// The tiles of this CTA, one after the other. All lanes of a warp call it together.
template <class Row>
class TileWalk {
 public:
  ROWMAX_DEVICE explicit TileWalk(const ForwardParams& params) : params_(params) {}

  // The next tile that has rows, held by the lane whose `mine` is set; false: none is left.
  ROWMAX_DEVICE bool next(TileInfo& tile, bool& mine) {
    const int lane = threadIdx.x % 32;
    if (!params_.lengths.any) {  // every tile has rows
      const int index = index_of(round_++);
      if (index >= params_.order.tiles) {
        return false;
      }
      tile = decode_tile<Row>(params_, index);
      mine = lane == 0;
      return true;
    }
    // Short sequences leave empty tiles: 32 candidates at a time.
    for (;;) {
      if (round_ * static_cast<int>(gridDim.x) >= params_.order.tiles) {
        return false;
      }
      const int index = index_of(round_ + lane);
      tile.rows = 0;
      if (index < params_.order.tiles) {
        tile = decode_tile<Row>(params_, index);
      }
      const unsigned found = __ballot_sync(ptx::kFullWarp, tile.rows > 0);
      if (found != 0) {
        const int first = __ffs(static_cast<int>(found)) - 1;
        mine = lane == first;
        round_ += first + 1;
        return true;
      }
      round_ += 32;
    }
  }

 private:
  // Banded tiles come longest first: alternating directions give every CTA the same sum of lengths.
  ROWMAX_DEVICE int index_of(int round) const {
    const int grid = static_cast<int>(gridDim.x);
    const int place = static_cast<int>(blockIdx.x);
    const bool backwards = Traits<Row>::kBanded && (round & 1) != 0;
    return round * grid + (backwards ? grid - 1 - place : place);
  }

  const ForwardParams& params_;
  int round_ = 0;
};

}  // namespace rowmax::cuda::sm90
