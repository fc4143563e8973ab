// What the forward kernel receives: one trivially copyable argument, made on the host by
// prepare_forward(). Positions and lengths are 32-bit, strides in elements 64-bit.
#pragma once

#include "backend/cuda/ptx/types.cuh"
#include "backend/cuda/sm90/panels.h"
#include "backend/cuda/sm90/tile_order.h"
#include "backend/cuda/tile/lengths.cuh"
#include "backend/cuda/tile/tanh.h"
#include "backend/cuda/trace_record.h"
#include "problem/band.h"

namespace rowmax::cuda::sm90 {

// row / pack = row * inverse_pack >> 20, exact for row < 512 and pack < 512.
inline constexpr int kInversePackShift = 20;

// How tile indices map to tiles. A unit is what shares one pass over a kv head's keys: `pack` query
// heads of one kv head, whose rows share tiles: row r of a tile is head r % pack at position
// r / pack.
struct TileOrder {
  int tiles = 0;  // upper bound: short sequences have fewer
  int batch = 0;
  Divider blocks = {};           // tiles of a unit, likewise an upper bound
  Divider units_per_batch = {};  // heads_q / pack
  Divider heads_per_kv = {};     // heads_q / heads_kv
  // Banded rows' units whose K and V share the L2 cache. One of the two is set: where every batch
  // element has the same lengths sections of all units, else the size of those of a batch element.
  Sections<Divider> sections = {};
  int section_units = 0;
  int pack = 1;
  int positions = 0;     // query positions of a tile: tile_q / pack
  int inverse_pack = 0;  // ceil(2^kInversePackShift / pack)
};

// Score options. Scores are kept as s, with softmax argument s * exponent_scale in log2 units.
struct ScoreParams {
  float exponent_scale = 0;  // > 0
  float multiply = 1;        // s = multiply * q.k; != 1 when the scale is negative or minute
  tile::Softcap softcap;     // s = tanh(factor * s) after it
  const float* slopes = nullptr;
  float slope_scale = 0;  // slope -> units of s
  int64_t slope_batch = 0;
  int64_t slope_head = 0;
  const float* sinks = nullptr;
  int64_t sink_stride = 0;
};

struct ForwardParams {
  ptx::TensorMap q;
  ptx::TensorMap k;
  ptx::TensorMap v;
  ptx::TensorMap out;
  TileOrder order;
  tile::LengthArgs lengths;
  BandArgs band;
  ScoreParams score;
  CutTiles cut;
  float* pieces = nullptr;            // of cut tiles: see piece_floats()
  uint64_t* piece_tickets = nullptr;  // one a warp and piece; a tile uses those of its first piece
  uint64_t* counter = nullptr;        // see take_ticket(); null: tiles are assigned by index
  RowOutput out_rows;
  RowOutput lse;         // (batch, head, seq), fp32; null: not wanted
  int head_dim_v = 0;    // of the problem
  int q_load_bytes = 0;  // that one load of Q delivers, and its query positions
  int q_load_positions = 0;
  int out_f32 = 0;  // O in fp32: stored by the threads
  MapSteps q_steps;
  MapSteps k_steps;
  MapSteps v_steps;
  MapSteps out_steps;
  TraceRecord* trace = nullptr;  // trace builds
};

}  // namespace rowmax::cuda::sm90
