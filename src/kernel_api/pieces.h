// Query tiles of a GPU's forward that are cut along keys: what their pieces take in the workspace.
// Plain, so that device code can include it.
#pragma once

#include <cstdint>

namespace rowmax {

// `tiles` tiles cut in `ranges` ranges: a piece ends where a range or a tile does.
constexpr int64_t most_pieces(int64_t tiles, int64_t ranges) {
  return ranges > 0 ? tiles + ranges - 1 : 0;
}

// Region::kPartialStates of a GPU: most_pieces() of this many fp32. O before its division, then 8 a
// row: references and sums of its four threads.
constexpr int64_t piece_floats(int64_t tile_q, int64_t head_dim_v) {
  return tile_q * (head_dim_v + 8);
}

// Region::kTurns of a GPU's forward: as many 64-bit tickets for each piece, one a warp.
constexpr int64_t piece_warps(int64_t tile_q) { return tile_q / 16; }

}  // namespace rowmax
