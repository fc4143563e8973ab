// Kernel entries: one per row of an instances.def. The planner sees configs and `supports`; a
// backend runs `run`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernel_api/args.h"
#include "kernel_api/mask_class.h"
#include "kernel_api/option_class.h"
#include "rowmax/plan.h"
#include "rowmax/problem.h"
#include "rowmax/status.h"

namespace rowmax {

// What a kernel does inside a plan.
enum class StepKind : int {
  kForward = 0,   // O and LSE, or partial states when the schedule has splits
  kDecode,        // the same for few query rows: keys split, K and V read once
  kCombine,       // partial states -> O and LSE
  kRowStats,      // backward: delta - dLSE and LSE in log2 units for every row; dsink partials
  kBackward,      // dQ (or its partials), dK, dV, dslope partials
  kBiasGradient,  // dbias, summed over broadcast axes
  kReduce,        // partial dQ, dsinks, dslopes -> outputs, in a fixed order
};

// What a kernel's instructions need: of a CPU in rising order, or a GPU architecture.
enum class Isa : int { kPortable = 0, kAvx2 = 1, kSm90 = 100 };
const char* to_string(Isa isa);
inline constexpr bool is_gpu(Isa isa) { return isa >= Isa::kSm90; }

enum class Compute : int { kF32 = 0, kF64 = 1 };

// Plain constexpr data of one row.
struct KernelConfig {
  const char* name = "";
  StepKind step = StepKind::kForward;
  Isa isa = Isa::kPortable;
  Compute compute = Compute::kF32;
  int tile_q = 0;    // query rows of a work item (rows of a (head, position) fold)
  int tile_k = 0;    // keys of an outer block
  int max_rows = 0;  // decode: largest G * Sq served; 0: any
  // GPU rows, whose sizes are fixed when they are compiled.
  std::optional<DType> dtype;  // of Q, K, V; empty: any that `compute` serves
  int head_dim = 0;            // largest head dims served; 0: any
  int head_dim_v = 0;
  int stages = 0;       // K and V tiles in flight
  int warpgroups = 0;   // consumer warpgroups
  int q_load_rows = 0;  // rows of Q that one copy brings, tile_q or a part; 0: no copies
  MaskClass mask = MaskClass::kBanded;
  OptionClass options = OptionClass::kAll;
  bool first_stores = false;  // GPU backward: the first addition to a tile of dQ partials stores
};

// What the planner decided for one step. Depends on sizes and tiles only, never on threads.
struct Schedule {
  int64_t tile_q = 0;  // query rows of a work item
  int64_t tile_k = 0;  // keys of an outer block
  int64_t splits = 1;  // forward, decode: upper bound of key ranges merged by the state operator;
                       // backward: key chunks of one (batch, kv head)
  int64_t split_len = 0;  // keys of a range (a multiple of tile_k); 0 when splits == 1
  int64_t items = 0;      // upper bound of work items
  int64_t pack = 1;       // GPU forward: query heads of one kv head whose rows share a tile
  // GPU forward: query tiles cut along keys, and the equal ranges that they are cut in. Of a
  // device.
  int64_t cut_tiles = 0;
  int64_t cut_ranges = 0;
  int64_t query_tiles = 0;    // GPU backward: tiles of tile_q rows, over batch and query heads
  int64_t columns = 0;        // GPU backward: of a tile of dQ partials, the kernel's head dim
  bool first_stores = false;  // GPU backward: as in KernelConfig
};

// Named parts of the shared workspace.
enum class Region : int {
  kPartialStates = 0,  // forward, decode with splits: see layout.h; GPU forward: see pieces.h
  kRowStats,           // backward: delta - dLSE, then LSE * log2(e); each (B * Hq * rows)
  kDqPartials,         // backward with several chunks: (splits, rows, Hq, D) of the compute type
  kSinkPartials,       // dsink partials, fp64
  kSlopePartials,      // dslope partials, fp64
  kTurns,              // GPU backward: which key tile adds to a tile of dQ next; forward: pieces.h
};
inline constexpr int kRegionCount = 6;

// One step as run by every worker: items are taken from the shared counter until none is left.
struct KernelLaunch {
  const AttentionArgs* args = nullptr;
  const KernelConfig* config = nullptr;
  Schedule schedule;
  char* regions[kRegionCount] = {};
  char* thread_scratch = nullptr;  // of worker 0, 64-byte aligned
  size_t thread_stride = 0;        // bytes between the scratches of two workers
  int64_t* next_item = nullptr;    // zero before the step (a GPU's step takes any); fetch-add
  int workers = 1;
  void* stream = nullptr;  // GPU steps: a cudaStream_t
  int sm_margin = 0;       // GPU steps: multiprocessors to leave to others
};

// body(index) for the items [0, items) of a step that no other worker has taken.
template <class Body>
ROWMAX_FORCE_INLINE void for_each_item(const KernelLaunch& launch, int64_t items, Body&& body) {
  for (;;) {
    const int64_t index = __atomic_fetch_add(launch.next_item, 1, __ATOMIC_RELAXED);
    if (index >= items) {
      return;
    }
    body(index);
  }
}

struct KernelEntry {
  KernelConfig config;
  // OK, or kUnsupported with the reason this kernel declines the problem.
  Status (*supports)(const AttentionProblem& problem, const KernelConfig& config) = nullptr;
  // Bytes of scratch one worker needs; a pure function shared with the kernel's own carving.
  size_t (*thread_bytes)(const AttentionProblem& problem, const KernelConfig& config,
                         const Schedule& schedule) = nullptr;
  void (*run)(const KernelLaunch& launch, int worker) = nullptr;
  // GPU kernels, instead of run: enqueues the step on launch.stream of the current device. No
  // synchronisation, no allocation, may be captured in a graph.
  Status (*enqueue)(const KernelLaunch& launch) = nullptr;
};

namespace detail {
struct PlanData;
}

// A backend as the planner and the api see it.
struct Backend {
  const char* name = "";
  bool forced_only = false;  // never chosen unless its kernel is forced by name
  std::span<const KernelEntry> kernels;
  const char* device_kind = "cpu";  // DeviceInfo::kind it serves
  // GPU backends: a device of this process by number, and the steps of a plan enqueued on its
  // device. Null: this build lacks the kernels, which can be planned but not run.
  Result<DeviceInfo> (*device)(int ordinal) = nullptr;
  Status (*enqueue)(const detail::PlanData& plan, const KernelLaunch& launch) = nullptr;
};

// Number of query rows over the batch: B * Sq, or total_q for ragged queries.
int64_t query_rows(const AttentionProblem& problem);

// Bytes of a region for a problem, its main kernel and the schedule of that step.
size_t region_bytes(Region region, const AttentionProblem& problem, const KernelConfig& main,
                    const Schedule& schedule);

}  // namespace rowmax
