#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "api/backends.h"
#include "api/bind.h"
#include "api/threads.h"
#include "kernel_api/plan_data.h"
#include "plan/workspace.h"
#include "rowmax/attention.h"

namespace rowmax {
namespace {

struct Memory {
  char* workspace = nullptr;
  size_t bytes = 0;
};

Status check_workspace(const detail::PlanData& data, int threads, const Memory& memory) {
  const size_t needed = plan::workspace_bytes(data, threads);
  if (memory.workspace == nullptr) {
    return {StatusCode::kOutOfMemory,
            fmt::format("workspace: null; accepted: {} bytes for {} threads", needed, threads)};
  }
  if (memory.bytes < needed) {
    return {StatusCode::kOutOfMemory,
            fmt::format("workspace_bytes: is {}; accepted: at least {} for {} threads",
                        memory.bytes, needed, threads)};
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory.workspace);
  if (address % plan::kWorkspaceAlignment != 0) {
    return Status::invalid(
        fmt::format("workspace: address {:#x} is not a multiple of {} bytes; accepted: {} bytes at "
                    "a multiple of {}",
                    static_cast<uint64_t>(address), plan::kWorkspaceAlignment, needed,
                    plan::kWorkspaceAlignment));
  }
  return {};
}

// One step in flight. `finished` is how an executor that drops workers is found out; `failure` is
// the code of a worker that threw (kOk: none), which must not leave a thread of the executor.
struct StepRun {
  const KernelEntry* kernel = nullptr;
  KernelLaunch launch;
  std::atomic<int> finished{0};
  std::atomic<StatusCode> failure{StatusCode::kOk};
};

void run_step_worker(void* arg, int worker) {
  StepRun& run = *static_cast<StepRun*>(arg);
  try {
    run.kernel->run(run.launch, worker);
  } catch (const std::bad_alloc&) {
    run.failure = StatusCode::kOutOfMemory;
  } catch (...) {
    run.failure = StatusCode::kInternal;
  }
  run.finished.fetch_add(1);
}

Status failed_step(const StepRun& run) {
  const StatusCode code = run.failure.load();
  return {code, fmt::format("{}: {}; the outputs are incomplete", run.kernel->config.name,
                            code == StatusCode::kOutOfMemory
                                ? "the kernel could not allocate memory of its own"
                                : "the kernel threw an exception")};
}

Status run_step(const detail::PlanStep& step, const KernelLaunch& base, int threads,
                const ExecuteOptions& options) {
  *base.next_item = 0;
  StepRun run;
  run.kernel = step.kernel;
  run.launch = base;
  run.launch.config = &step.kernel->config;
  run.launch.schedule = step.schedule;
  run.launch.workers = static_cast<int>(std::min<int64_t>(threads, step.schedule.items));
  const int workers = run.launch.workers;
  if (options.parallel_for != nullptr && workers > 1) {
    options.parallel_for(options.parallel_context, workers, run_step_worker, &run);
  } else {
    run_workers(workers, run_step_worker, &run);
  }
  const int finished = run.finished.load();
  if (finished != workers) {
    return Status::invalid(
        fmt::format("parallel_for: ran {} workers; accepted: an executor that runs each of {} "
                    "workers once; the outputs are incomplete",
                    finished, workers));
  }
  return run.failure.load() == StatusCode::kOk ? Status() : failed_step(run);
}

Status run_on_host(const detail::PlanData& data, KernelLaunch& launch, const Memory& memory,
                   int threads, const ExecuteOptions& options) {
  launch.thread_scratch = memory.workspace + data.shared_bytes;
  launch.thread_stride = data.thread_stride;
  for (const detail::PlanStep& step : data.steps) {
    if (step.schedule.items <= 0) {
      continue;
    }
    if (Status status = run_step(step, launch, threads, options); !status.ok()) {
      return status;
    }
  }
  return {};
}

Status run_on_gpu(const detail::PlanData& data, KernelLaunch& launch,
                  const ExecuteOptions& options) {
  const Backend* backend = find_backend(data.backend);
  if (backend == nullptr || backend->enqueue == nullptr) {
    return Status::unsupported(
        fmt::format("the plan is for {}; this build has no CUDA kernels (configure with "
                    "ROWMAX_CUDA=ON)",
                    data.device.name));
  }
  if (options.sm_margin < 0 || options.sm_margin >= data.device.cores) {
    return Status::invalid(fmt::format("sm_margin: is {}; accepted: 0 to {} (the device has {})",
                                       options.sm_margin, data.device.cores - 1,
                                       data.device.cores));
  }
  launch.stream = options.stream;
  launch.sm_margin = options.sm_margin;
  return backend->enqueue(data, launch);
}

}  // namespace

Status execute(const Plan& plan, const AttentionTensors& tensors, void* workspace,
               size_t workspace_bytes, const ExecuteOptions& options) {
  if (plan.empty()) {
    return Status::invalid("plan: empty; accepted: a plan of make_plan");
  }
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return Status::invalid(fmt::format("threads: is {}; accepted: 0 (the default) to {}",
                                       options.threads, kMaxThreads));
  }
  const detail::PlanData& data = plan.data();
  const int threads =
      options.threads > 0 ? options.threads : std::min(plan::default_threads(), kMaxThreads);
  const Memory memory = {static_cast<char*>(workspace), workspace_bytes};
  if (Status status = check_workspace(data, threads, memory); !status.ok()) {
    return status;
  }
  const bool on_gpu = plan::on_gpu(data);
  const Result<AttentionArgs> args = bind_arguments(
      data.problem, tensors, {memory.workspace, plan::workspace_bytes(data, threads)},
      on_gpu ? Location::kGpu : Location::kHost);
  if (!args.ok()) {
    return args.status();
  }
  KernelLaunch launch;
  launch.args = &args.value();
  for (int region = 0; region < kRegionCount; ++region) {
    launch.regions[region] =
        data.region_size[region] > 0 ? memory.workspace + data.region_offset[region] : nullptr;
  }
  launch.next_item =
      reinterpret_cast<int64_t*>(memory.workspace + plan::counter_offset(data, threads));
  return on_gpu ? run_on_gpu(data, launch, options)
                : run_on_host(data, launch, memory, threads, options);
}

}  // namespace rowmax
