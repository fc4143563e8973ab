// What the kernels of a backward pass receive: trivially copyable arguments, made on the host by
// prepare.cpp. Positions and lengths are 32-bit, strides in elements 64-bit.
#pragma once

#include "backend/cuda/ptx/types.cuh"
#include "backend/cuda/sm90/panels.h"
#include "backend/cuda/sm90/tile_order.h"
#include "backend/cuda/tile/lengths.cuh"
#include "problem/band.h"

namespace rowmax::cuda::sm90 {

// Numbers of tiles of dQ and of row statistics: see kernel_api/layout.h. Tile `tile` of query head
// `head` has number first_query_tile() + head * head_step + tile.
struct QueryTiles {
  int head_step = 0;
  int batch_step = 0;
  int ragged = 0;
  int tile_q = 0;
};

ROWMAX_FORCE_INLINE int first_query_tile(const QueryTiles& tiles, int batch, int q_begin) {
  return batch * tiles.batch_step + (tiles.ragged ? q_begin / tiles.tile_q : 0);
}

// The same tiles, one CTA each, counted with the upper bounds of the lengths.
struct QueryGrid {
  QueryTiles tiles;
  Divider per_head = {};   // tiles of a query head
  Divider per_batch = {};  // query heads
  int count = 0;
  int columns = 0;  // of a tile of dQ
};

struct BackwardParams {
  ptx::TensorMap q;
  ptx::TensorMap k;
  ptx::TensorMap v;
  ptx::TensorMap dout;
  ptx::TensorMap dk;
  ptx::TensorMap dv;
  tile::LengthArgs lengths;
  BandArgs band;
  int tiles = 0;                    // key tiles, an upper bound
  Divider units_per_batch = {};     // kv heads
  Sections<Divider> sections = {};  // of units: kv heads of a batch element
  int upward_units = 0;             // the first ones, see visits.h
  int group = 1;                    // query heads of a kv head
  QueryTiles query_tiles;
  int head_dim = 0;  // of the problem
  int head_dim_v = 0;
  float scale = 0;
  float exponent_scale = 0;  // scale * log2(e)
  const float* stats = nullptr;
  float* dq_sum = nullptr;  // null: dQ is not wanted
  int* turns = nullptr;
  int* ticket = nullptr;  // of the next key tile; zeroed by row_stats_kernel
  RowOutput dk_rows;      // null data: not wanted
  RowOutput dv_rows;
  MapSteps q_steps;
  MapSteps k_steps;
  MapSteps v_steps;
  MapSteps dout_steps;
  MapSteps dk_steps;
  MapSteps dv_steps;
};

struct RowStatsParams {
  QueryGrid grid;
  tile::LengthArgs lengths;
  RowOutput out;
  RowOutput dout;
  RowOutput lse;
  RowOutput dlse;  // null data: zero
  const float* sinks = nullptr;
  int64_t sink_stride = 0;
  int head_dim_v = 0;
  int lanes = 0;  // threads of a row, a power of two
  int ctas = 0;
  float* stats = nullptr;
  float* dq_sum = nullptr;
  bool clears = false;  // every tile's sum, else those that no key tile visits
  BandArgs band;
  int* turns = nullptr;
  int* ticket = nullptr;
  double* sink_sums = nullptr;  // of a query tile; null: dsinks is not wanted
};

struct ReduceParams {
  QueryGrid grid;
  tile::LengthArgs lengths;
  RowOutput dq;
  int head_dim = 0;
  float scale = 0;
  int batch = 0;
  int dq_ctas = 0;  // the rest have a head of dsinks each
  int ctas = 0;
  const float* dq_sum = nullptr;
  const double* sink_sums = nullptr;
  float* dsinks = nullptr;
  int64_t dsink_stride = 0;
};

}  // namespace rowmax::cuda::sm90
