// Turns of a tile of dQ. Plain, so that device code can include it.
#pragma once

namespace rowmax {

// Region::kTurns: of a tile of dQ.
inline constexpr int kTurnWarps = 1;

}  // namespace rowmax
