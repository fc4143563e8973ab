// Plan: an immutable, printable answer to "how is this problem computed on this device".
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rowmax/export.h"
#include "rowmax/problem.h"
#include "rowmax/status.h"

namespace rowmax {

// A device as the planner sees it. For CPUs: the instruction set and the cache hierarchy. For GPUs:
// the architecture, the multiprocessors, the shared L2 cache and what bounds a kernel's time.
struct DeviceInfo {
  std::string kind = "cpu";  // "cpu", "cuda"
  std::string name;          // model name, for display only
  std::string isa;           // highest instruction set in use: "portable", "avx2"; "sm90" of a GPU
  int64_t l1_bytes = 0;      // CPU: data cache of one core. GPU: shared memory of one block
  int64_t l2_bytes = 0;      // CPU: of one core; forward tiles are cut for it (0: 512 KiB)
  int64_t l3_bytes = 0;      // CPU: shared
  int cores = 1;             // GPU: multiprocessors
  int ordinal = 0;           // GPU: its number in this process
  double clock_ghz = 0.0;    // GPU: highest clock of the multiprocessors
  double memory_gbps = 0.0;  // GPU: 1e9 bytes a second
};

// The machine this process runs on. ROWMAX_MAX_ISA=portable|avx2 lowers `isa`.
ROWMAX_API DeviceInfo host_device();

// A device by name: "cpu" is host_device(); "cuda" or "cuda:N" a GPU of this process; "h200",
// "h100" what plans and explanations for such a GPU need, on any machine. Errors: kInvalidArgument
// (another name), kUnsupported (no such GPU here, or a build without the CUDA backend).
ROWMAX_API Result<DeviceInfo> find_device(std::string_view name);

// Restrictions on the choice of a plan. With `max_workspace` the plan is the preferred one, or the
// nearest to it that one worker can run in that memory; how many threads the memory serves is then
// what Plan::workspace_bytes(threads) says. A plan never depends on the thread count.
struct PlanOptions {
  std::string force_kernel;   // exact name of the main kernel; also ROWMAX_FORCE_KERNEL
  int64_t max_workspace = 0;  // most bytes of workspace_bytes(1); 0: no limit
};

namespace detail {
struct PlanData;
}

// A value: copies share immutable data. Compares by content.
class Plan {
 public:
  Plan() = default;
  explicit Plan(std::shared_ptr<const detail::PlanData> data) : data_(std::move(data)) {}

  bool empty() const { return data_ == nullptr; }
  ROWMAX_API const AttentionProblem& problem() const;  // what was asked for
  ROWMAX_API const std::string& kernel() const;        // name of the main kernel
  ROWMAX_API std::vector<std::string> steps() const;   // names of all kernels, in order
  // Bytes of workspace that execute needs when it runs with this many threads (0: the default
  // thread count). Threads that would find no work item count nothing. The workspace must be
  // aligned to 64 bytes; its contents do not matter. A GPU's plan needs memory of the GPU, the same
  // for every thread count.
  ROWMAX_API size_t workspace_bytes(int threads = 0) const;
  // By content.
  friend ROWMAX_API bool operator==(const Plan& a, const Plan& b);

  const detail::PlanData& data() const { return *data_; }

 private:
  std::shared_ptr<const detail::PlanData> data_;
};

// Chooses kernels, schedule and workspace. A pure function of its arguments (and the environment
// variables named above). Fails with kUnsupported and every kernel's reason when none serves it,
// with kOutOfMemory and the least need when options.max_workspace is below it. With
// ROWMAX_EXPLAIN=1 in the environment explain() of every plan goes to the error stream.
ROWMAX_API Result<Plan> make_plan(const AttentionProblem& problem,
                                  const DeviceInfo& device = host_device(),
                                  const PlanOptions& options = {});

// What was chosen and why: kernel, tiles, splits, FLOPs, bytes, workspace, declined kernels.
ROWMAX_API std::string explain(const Plan& plan);

}  // namespace rowmax
