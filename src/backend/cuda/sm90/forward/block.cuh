// Which key blocks a warpgroup visits, and what happens to a block of scores before the softmax.
// `row` is the first of a thread's two rows in the tile, `lane` its lane; both opaque, so that
// nothing made from them is kept across the loop.
#pragma once

#include "backend/cuda/sm90/forward/epilogue.cuh"
#include "backend/cuda/sm90/forward/tile_order.h"
#include "backend/cuda/tile/mask.cuh"
#include "backend/cuda/tile/score.cuh"

namespace rowmax::cuda::sm90 {

// Key blocks of a tile that one warpgroup visits, `skipped` fewer than the tile has: those are
// above its rows' diagonal. Uniform.
struct LoopTile {
  int block_begin;
  int block_end;  // 0: no more tiles
  int skipped;
};

template <class Row>
ROWMAX_DEVICE LoopTile own_blocks(const ForwardParams& params, const TileInfo& tile,
                                  int warpgroup) {
  using T = Traits<Row>;
  static_assert(!T::kBanded || (T::kTileQ - 64 + T::kTileK - 1) / T::kTileK <= T::kStages,
                "V of the tile before is kept while blocks are skipped");
  const int end = ptx::uniform(tile.block_end);
  if constexpr (T::kBanded) {
    const int begin = ptx::uniform(tile.block_begin);
    const int last_row = position_in_tile(params.order, warpgroup * 64 + 63);
    const int own_end = own_block_end(tile.position + last_row + tile.hi, {begin, end}, T::kTileK);
    const int skipped = ptx::uniform(end - own_end);
    return {begin, end - skipped, skipped};
  }
  return {0, end, 0};
}

// Sign of the scale, softcap, ALiBi: run-time options of key block j.
template <class Row>
ROWMAX_DEVICE void change_scores(const ForwardParams& params, const TileInfo& tile, int j, int row,
                                 int lane, float (&s)[Traits<Row>::kScores]) {
  const ScoreParams& score = params.score;
  if (score.multiply != 1.f) {
    tile::multiply(s, score.multiply);
  }
  if (score.softcap != 0.f) {
    tile::softcap(s, score.softcap);
  }
  if (score.slopes == nullptr) {
    return;
  }
  float slope[2];
  float distance[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = position_in_tile(params.order, row + 8 * r);
    const int head = tile.head + row + 8 * r - at * params.order.pack;
    slope[r] = tile.slope;
    if (params.order.pack != 1 && at < tile.rows) {
      slope[r] = score.slope_scale *
                 score.slopes[tile.batch * score.slope_batch + head * score.slope_head];
    }
    distance[r] = static_cast<float>(tile.position + at + tile.shift - j * Traits<Row>::kTileK -
                                     2 * (lane & 3));
  }
  tile::add_alibi(s, slope, distance);
}

// Masks key block j where some row of this warp needs it.
template <class Row>
ROWMAX_DEVICE void mask_scores(const ForwardParams& params, const TileInfo& tile, int j, int row,
                               int lane, float (&s)[Traits<Row>::kScores]) {
  using T = Traits<Row>;
  const int key = j * T::kTileK;
  int end = tile.k_len;  // first key that the warp's first row may not see
  if constexpr (T::kBanded) {
    const int first_row = position_in_tile(params.order, row - lane / 4);
    const int band_end = tile.position + first_row + tile.hi + 1;
    end = band_end < end ? band_end : end;
  }
  if (key + T::kTileK > end) {
    int limit[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      limit[r] = tile.k_len - 1;
      if constexpr (T::kBanded) {
        const int last = tile.position + position_in_tile(params.order, row + 8 * r) + tile.hi;
        limit[r] = last < limit[r] ? last : limit[r];
      }
      limit[r] -= key + 2 * (lane & 3);
    }
    tile::mask_above(s, limit);
  }
  if constexpr (T::kBanded) {
    const int last_row = position_in_tile(params.order, row - lane / 4 + 15);
    if (key < tile.position + last_row + tile.lo) {
      int limit[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        limit[r] = tile.position + position_in_tile(params.order, row + 8 * r) + tile.lo - key -
                   2 * (lane & 3);
      }
      tile::mask_below(s, limit);
    }
  }
}

}  // namespace rowmax::cuda::sm90
