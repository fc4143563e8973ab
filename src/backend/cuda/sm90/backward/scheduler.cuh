// Which key tiles a CTA computes, in which order, and what each consists of.
#pragma once

#include "backend/cuda/sm90/backward/traits.cuh"
#include "backend/cuda/sm90/backward/visits.h"

namespace rowmax::cuda::sm90 {

// Writes key tile `block` of a kv head into its slot; false: it holds no keys of the sequence.
template <class Row>
ROWMAX_DEVICE bool decode_key_tile(const BackwardParams& params, const TilePlace& at, bool upward,
                                   KeyTile& tile) {
  using T = BackwardTraits<Row>;
  const tile::Extent extent = tile::extent(params.lengths, at.batch);
  const int first_key = at.block * T::kTileK;
  const int rest = extent.k_len - first_key;
  if (rest <= 0) {
    return false;
  }
  const int rows = rest < T::kTileK ? rest : T::kTileK;
  RowBand band;
  if constexpr (T::kBanded) {
    band = resolve_band(params.band, extent.q_len, extent.k_len);
    tile.band_begin = tile::saturate_offset(band.has_lo ? band.lo : -kBandLimit);
    tile.band_end = tile::saturate_offset(band.has_hi ? band.hi : kBandLimit);
  }
  const TileRange visits =
      visited_tiles(band, first_key, first_key + rows, extent.q_len, T::kTileQ);
  tile.steps = (visits.end - visits.begin) * params.group;
  tile.first_key = first_key;
  tile.rows = rows;
  tile.block = at.block;
  tile.batch = at.batch;
  tile.kv_head = at.unit;
  tile.direction = upward ? 1 : -1;
  tile.walk_begin = upward ? visits.begin : visits.end - 1;
  tile.walk_end = upward ? visits.end : visits.begin - 1;
  tile.last_block = (extent.k_len - 1) / T::kTileK;
  tile.q_begin = extent.q_begin;
  tile.q_len = extent.q_len;
  tile.k_begin = extent.k_begin;
  tile.first_query_tile = first_query_tile(params.query_tiles, at.batch, extent.q_begin);
  // The copy engine stops at the end of the tensor, which is the end of the sequence only when no
  // lengths are given.
  tile.store_rows = params.lengths.any && rows < T::kTileK;
  return true;
}

// The next key tile by ticket, whose order is that of the numbers inside a head: see visits.h. One
// lane of a warp. Tickets are taken by CTAs that run, so whoever waits for a lower number waits for
// a CTA that is at work on it, however many run at once.
template <class Row>
ROWMAX_DEVICE void next_key_tile(const BackwardParams& params, KeyTile& tile) {
#pragma unroll 1
  for (;;) {
    const int index = atomicAdd(params.ticket, 1);
    if (index >= params.tiles) {
      tile.steps = -1;
      return;
    }
    TilePlace at = place_by_length(index, params.sections);
    const bool upward = BackwardTraits<Row>::kBanded && at.unit < params.upward_units;
    if (!upward) {
      at.block = params.sections.blocks - 1 - at.block;
    }
    at.batch = divide(at.unit, params.units_per_batch);
    at.unit -= at.batch * params.units_per_batch.value;
    if (decode_key_tile<Row>(params, at, upward, tile)) {
      return;
    }
  }
}

// The steps of a key tile: query heads of its group one after the other, of each the query tiles
// from the last to the first, or upward. In a band with a window, and upward without one, key tiles
// that start together come to a query tile one after the other in the order of their start.
struct StepWalk {
  int head;
  int tile;

  ROWMAX_DEVICE void start(const KeyTile& keys, int group) {
    head = keys.kv_head * group;
    tile = keys.walk_begin;
  }
  ROWMAX_DEVICE void next(const KeyTile& keys) {
    tile += keys.direction;
    if (tile == keys.walk_end) {
      tile = keys.walk_begin;
      ++head;
    }
  }
};

}  // namespace rowmax::cuda::sm90
