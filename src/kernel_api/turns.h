// Turns of a tile of dQ. Plain, so that device code can include it.
#pragma once

namespace rowmax {

// Region::kTurns: one for each warp that adds to the tile.
inline constexpr int kTurnWarps = 4;

}  // namespace rowmax
