// Which key blocks a warpgroup visits, and what happens to a block of scores before the softmax.
// `row` is the first of a thread's two rows in the tile, `lane` its lane; both opaque, so that
// nothing made from them is kept across the loop.
#pragma once

#include "backend/cuda/sm90/forward/epilogue.cuh"
#include "backend/cuda/sm90/tile_order.h"
#include "backend/cuda/tile/mask.cuh"
#include "backend/cuda/tile/score.cuh"

namespace rowmax::cuda::sm90 {

// Key blocks of a tile that one warpgroup visits. Uniform.
struct LoopTile {
  int block_begin;
  int block_end;  // 0: no more tiles
  int skipped;    // blocks from block_end to the tile's end, and those left of the tile before
};

template <class Row>
ROWMAX_DEVICE LoopTile own_blocks(const TileInfo& tile, int warpgroup) {
  using T = Traits<Row>;
  static_assert(!T::kSkips || (T::kTileQ - 64 + T::kTileK - 1) / T::kTileK <= T::kStages,
                "V of the tile before is kept while blocks are skipped");
  if constexpr (T::kSkips) {
    const LoopBlocks& loop = tile.loops[warpgroup];
    return {ptx::uniform(loop.begin), ptx::uniform(loop.end),
            ptx::uniform(tile.block_end - loop.end)};
  }
  return {ptx::uniform(tile.block_begin), ptx::uniform(tile.block_end), 0};
}

// Blocks of a tile left of those that a warpgroup visits.
template <class Row>
ROWMAX_DEVICE int left_blocks(const TileInfo& tile, int warpgroup) {
  return skips_of(Row::kConfig).left ? ptx::uniform(tile.loops[warpgroup].begin - tile.block_begin)
                                     : 0;
}

// ALiBi of a thread's two rows.
struct AlibiRows {
  float slope[2];   // in units of s
  int distance[2];  // of key 0 and this thread's first column
};

template <class Row>
ROWMAX_DEVICE AlibiRows alibi_rows(const ForwardParams& params, const TileInfo& tile, int row,
                                   int lane) {
  const ScoreParams& score = params.score;
  AlibiRows rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = position_in_tile(params.order, row + 8 * r);
    const int head = tile.head + row + 8 * r - at * params.order.pack;
    rows.slope[r] = tile.slope;
    if (params.order.pack != 1 && at < tile.rows) {
      rows.slope[r] = score.slope_scale *
                      score.slopes[tile.batch * score.slope_batch + head * score.slope_head];
    }
    rows.distance[r] = tile.position + at + tile.shift - 2 * (lane & 3);
  }
  return rows;
}

// Whether some key before `key_end` is to the right of some row of the warp. Blocks are visited
// from the last key to the first: there the bias grows from block to block, and references with it.
ROWMAX_DEVICE bool has_keys_to_the_right(const AlibiRows& rows, int key_end) {
  return __any_sync(ptx::kFullWarp, rows.distance[0] < key_end || rows.distance[1] < key_end);
}

// Sign of the scale, softcap, ALiBi of key block j. A row's scores are then s plus its offset,
// which is a thread's own.
template <class Row>
ROWMAX_DEVICE void change_scores(const ForwardParams& params, const AlibiRows& alibi, int j,
                                 float (&s)[Traits<Row>::kScores], float (&offset)[2]) {
  using T = Traits<Row>;
  const ScoreParams& score = params.score;
  offset[0] = offset[1] = 0.f;
  if (T::kOptions && score.multiply != 1.f) {
    tile::multiply(s, score.multiply);
  }
  if (T::kSoftcap && (!T::kOptions || score.softcap.factor != 0.f)) {
    tile::softcap(s, score.softcap);
  }
  if (T::kAlibi && (!T::kOptions || score.slopes != nullptr)) {
    const int key = j * T::kTileK;
    const float distance[2] = {static_cast<float>(alibi.distance[0] - key),
                               static_cast<float>(alibi.distance[1] - key)};
    tile::add_alibi(s, alibi.slope, distance, offset);
  }
}

// Masks key block j where some row of this warp needs it.
template <class Row>
ROWMAX_DEVICE void mask_scores(const ForwardParams& params, const TileInfo& tile, int j, int row,
                               int lane, float (&s)[Traits<Row>::kScores]) {
  using T = Traits<Row>;
  const int key = j * T::kTileK;
  int end = tile.k_len;  // first key that the warp's first row may not see
  bool below = false;    // whether its last row may not see the block's first
  if constexpr (T::kBanded) {
    const int first_row = row - lane / 4;
    const int band_end = tile.key_end + position_in_tile(params.order, first_row);
    end = band_end < end ? band_end : end;
    below = key < tile.key_begin + position_in_tile(params.order, first_row + 15);
  }
  if (key + T::kTileK <= end && !below) {
    return;
  }
  const int first_column = key + 2 * (lane & 3);
  uint32_t visible[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    int row_end = tile.k_len;
    int row_begin = 0;
    if constexpr (T::kBanded) {
      const int at = position_in_tile(params.order, row + 8 * r);
      row_end = tile.key_end + at < row_end ? tile.key_end + at : row_end;
      row_begin = tile.key_begin + at;
    }
    visible[r] = tile::columns_before(row_end - first_column);
    if (below) {
      visible[r] &= ~tile::columns_before(row_begin - first_column);
    }
  }
  tile::mask_columns(s, visible);
}

}  // namespace rowmax::cuda::sm90
