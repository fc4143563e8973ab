// What a trace build records: one line of TraceRecord for each role of the first CTAs.
#pragma once

#include <cstdint>

namespace rowmax::cuda {

// Roles: consumer warpgroups 0-3, then K loader, V loader, scheduler.
inline constexpr int kTraceRoles = 7;
inline constexpr int kTraceLoadK = 4;
inline constexpr int kTraceLoadV = 5;
inline constexpr int kTraceSchedule = 6;
inline constexpr int kTraceCtas = 2;
inline constexpr int kTraceRecords = 4096;

enum class TraceState : int {
  kNone = 0,
  kWaitKeys,      // consumers: for K of the block
  kWaitTurn,      // for the tensor cores
  kIssue,         // of the products
  kWaitScores,    // for Q K^T
  kMaximum,       // masks, row maxima
  kWaitOut,       // for P V of the block before
  kExponentials,  // and packing
  kStore,         // O to shared memory, LSE
  kWaitStage,     // loaders: for a free stage
  kLoad,
  kWaitTile,  // scheduler: until a tile is wanted
  kDecode,
};

struct TraceRecord {
  uint64_t clock;  // of the multiprocessor
  int32_t state;
  int32_t block;  // key block, or tile number
};

}  // namespace rowmax::cuda
