// Tiles cut along keys: each piece leaves its rows' states in the workspace, and the warp that
// comes last at a tile's 16 rows merges them, in an order that is the same whoever merges. After
// stream-K (LeanAttention; papers.md section 10).
#pragma once

#include "backend/cuda/sm90/forward/scheduler.cuh"
#include "backend/cuda/tile/softmax.cuh"
#include "kernel_api/pieces.h"

namespace rowmax::cuda::sm90 {

// A piece in the workspace, in vectors of a thread: O, then references and sums.
template <class Row>
struct PieceLayout {
  using T = Traits<Row>;
  static constexpr int kConsumers = 128 * T::kWarpgroups;
  static constexpr int kWarps = piece_warps(T::kTileQ);
  static constexpr int kOutVectors = T::kOut / 4;
  static constexpr int kVectors = (kOutVectors + 1) * kConsumers;
  static_assert(kVectors * 4 == piece_floats(T::kConfig.tile_q, T::kConfig.head_dim_v));
};

template <class Row, class State>
ROWMAX_DEVICE void write_piece(float4* piece, const float (&o)[Traits<Row>::kOut],
                               const State& state) {
  using Layout = PieceLayout<Row>;
#pragma unroll
  for (int i = 0; i < Layout::kOutVectors; ++i) {
    __stcg(piece + i * Layout::kConsumers,
           make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
  }
  __stcg(piece + Layout::kOutVectors * Layout::kConsumers,
         make_float4(state.reference[0], state.reference[1], state.sum[0], state.sum[1]));
}

// Vectors that a thread loads at once; more would be spilled.
inline constexpr int kVectorsInFlight = 8;

// What O and the sums of a piece are multiplied by. From rounded subtrahends, as its exponentials.
template <class State>
ROWMAX_DEVICE void piece_factors(const float (&reference)[2], const State& state, float scale,
                                 float (&factor)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    factor[r] = state.reference[r] == -ptx::kInfinity
                    ? 1.f
                    : ptx::ex2(__fsub_rn(__fmul_rn(reference[r], scale), state.subtract[r]));
  }
}

// o and state from a piece in registers and another: whichever is which, the bits are the same.
template <class Row, class State>
ROWMAX_DEVICE void add_piece(const float4* piece, float scale, float (&o)[Traits<Row>::kOut],
                             State& state) {
  using Layout = PieceLayout<Row>;
  const float4 statistics = __ldcg(piece + Layout::kOutVectors * Layout::kConsumers);
  const float other[2] = {statistics.x, statistics.y};
  const float own[2] = {state.reference[0], state.reference[1]};
  state.reference[0] = fmaxf(own[0], other[0]);
  state.reference[1] = fmaxf(own[1], other[1]);
  tile::set_subtract(state, scale);
  float of_own[2];
  float of_other[2];
  piece_factors(own, state, scale, of_own);
  piece_factors(other, state, scale, of_other);
  const auto add = [&](float& value, float part, int r) {
    value = __fadd_rn(__fmul_rn(value, of_own[r]), __fmul_rn(part, of_other[r]));
  };
  add(state.sum[0], statistics.z, 0);
  add(state.sum[1], statistics.w, 1);
#pragma unroll
  for (int i = 0; i < Layout::kOutVectors; ++i) {
    if (i % kVectorsInFlight == 0) {
      __syncwarp();
    }
    const float4 part = __ldcg(piece + i * Layout::kConsumers);
    add(o[4 * i], part.x, 0);
    add(o[4 * i + 1], part.y, 0);
    add(o[4 * i + 2], part.z, 1);
    add(o[4 * i + 3], part.w, 1);
  }
}

// o and state from `count` pieces.
template <class Row, class State>
ROWMAX_DEVICE void read_pieces(const float4* piece, int count, float scale,
                               float (&o)[Traits<Row>::kOut], State& state) {
  using Layout = PieceLayout<Row>;
  const float4* statistics = piece + Layout::kOutVectors * Layout::kConsumers;
  state.reference[0] = state.reference[1] = -ptx::kInfinity;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const float4 of_piece = __ldcg(statistics + i * Layout::kVectors);
    state.reference[0] = fmaxf(state.reference[0], of_piece.x);
    state.reference[1] = fmaxf(state.reference[1], of_piece.y);
  }
  tile::set_subtract(state, scale);
  state.sum[0] = state.sum[1] = 0.f;
#pragma unroll
  for (int i = 0; i < Traits<Row>::kOut; ++i) {
    o[i] = 0.f;
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i, piece += Layout::kVectors) {
    const float4 of_piece = __ldcg(statistics + i * Layout::kVectors);
    float factor[2];
    const float reference[2] = {of_piece.x, of_piece.y};
    piece_factors(reference, state, scale, factor);
    state.sum[0] = __fmaf_rn(of_piece.z, factor[0], state.sum[0]);
    state.sum[1] = __fmaf_rn(of_piece.w, factor[1], state.sum[1]);
#pragma unroll
    for (int v = 0; v < Layout::kOutVectors; ++v) {
      const float4 part = __ldcg(piece + v * Layout::kConsumers);
      o[4 * v] = __fmaf_rn(part.x, factor[0], o[4 * v]);
      o[4 * v + 1] = __fmaf_rn(part.y, factor[0], o[4 * v + 1]);
      o[4 * v + 2] = __fmaf_rn(part.z, factor[1], o[4 * v + 2]);
      o[4 * v + 3] = __fmaf_rn(part.w, factor[1], o[4 * v + 3]);
    }
  }
}

// A warp's word of a tile: how many pieces have come, by take_ticket(), and how many of them are
// written. All lanes.
inline constexpr unsigned long long kPieceWritten = 1ull << 16;

ROWMAX_DEVICE int take_piece_ticket(uint64_t* word) {
  int ticket = 0;
  if (threadIdx.x % 32 == 0) {
    ticket = take_ticket(word, true) & (static_cast<int>(kPieceWritten) - 1);
  }
  return ptx::uniform(ticket);
}

ROWMAX_DEVICE void tell_written(uint64_t* word) {
  __threadfence();
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(word), kPieceWritten);
  }
}

// Waits for `pieces` others, which are all being written, and leaves the word as it was found.
ROWMAX_DEVICE void wait_written(uint64_t* word, int pieces) {
  if (threadIdx.x % 32 == 0) {
    while (static_cast<uint32_t>(*static_cast<volatile uint64_t*>(word)) / kPieceWritten !=
           static_cast<uint32_t>(pieces)) {
    }
    leave_tickets(word);
  }
  __syncwarp();
  __threadfence();
}

// Whether this warp has its 16 rows' state of all keys and stores them: at once for a whole tile,
// for a piece when it comes last. It then waits for the others to be written at most.
template <class Row, class State>
ROWMAX_DEVICE bool gather_pieces(const ForwardParams& params, const TileInfo& tile,
                                 float (&o)[Traits<Row>::kOut], State& state) {
  using T = Traits<Row>;
  if constexpr (T::kCuts) {
    using Layout = PieceLayout<Row>;
    const int count = ptx::uniform(tile.pieces);
    if (count > 1) {
      const int thread = ptx::opaque(static_cast<int>(threadIdx.x)) - 128;
      float4* first = reinterpret_cast<float4*>(params.pieces) +
                      int64_t{tile.piece_slot} * Layout::kVectors + thread;
      uint64_t* word = params.piece_tickets + tile.piece_slot * Layout::kWarps + thread / 32;
      const bool last = take_piece_ticket(word) == count - 1;
      if (!last || count > 2) {
        write_piece<Row>(first + int64_t{tile.piece} * Layout::kVectors, o, state);
      }
      if (!last) {
        tell_written(word);
        return false;
      }
      wait_written(word, count - 1);
      const float scale = params.score.exponent_scale;
      if (count == 2) {
        add_piece<Row>(first + (1 - tile.piece) * Layout::kVectors, scale, o, state);
      } else {
        read_pieces<Row>(first, count, scale, o, state);
      }
    }
  }
  return true;
}

}  // namespace rowmax::cuda::sm90
