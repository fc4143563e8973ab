// Execute: workspace, workers, executors, fork.
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api_fixture.h"
#include "kernel_api/plan_data.h"
#include "rowmax/attention.h"

namespace rowmax {
namespace {

using testing::problem_of;
using testing::TensorSet;
using testing::Workspace;

constexpr int kItems = 24;

// A kernel that adds 1 to out[item] for every item it takes and to lse[worker] for every run.
void count_items(const KernelLaunch& launch, int worker) {
  auto* out = static_cast<float*>(launch.args->out.data);
  auto* lse = static_cast<float*>(launch.args->lse.data);
  lse[worker] += 1.0f;
  if (launch.thread_scratch != nullptr) {
    launch.thread_scratch[static_cast<size_t>(worker) * launch.thread_stride] = 1;
  }
  for (;;) {
    const int64_t item = __atomic_fetch_add(launch.next_item, 1, __ATOMIC_RELAXED);
    if (item >= launch.schedule.items) {
      return;
    }
    out[item] += 1.0f;
  }
}

const KernelEntry kCounting = {{.name = "counting"}, nullptr, nullptr, count_items};

AttentionProblem counting_problem() { return problem_of("forward f32 b1 h1 s24 d1"); }

// A plan of `steps` counting steps with `items` items each.
Plan counting_plan(int64_t items, int steps = 1) {
  auto data = std::make_shared<detail::PlanData>();
  data->problem = counting_problem();
  data->thread_stride = 128;
  data->shared_bytes = 64;
  for (int i = 0; i < steps; ++i) {
    detail::PlanStep step;
    step.kernel = &kCounting;
    step.schedule.items = items;
    step.thread_bytes = 128;
    data->steps.push_back(step);
  }
  return Plan(data);
}

// Runs a counting plan and returns how often each worker ran; checks that each item ran `steps`
// times.
std::vector<float> run_counting(const Plan& plan, const ExecuteOptions& options, int64_t items,
                                int steps = 1) {
  TensorSet set(counting_problem());
  const Workspace workspace(plan, options.threads);
  const Status status = execute(plan, set.tensors, workspace.data(), workspace.bytes(), options);
  EXPECT_TRUE(status.ok()) << status.message();
  const auto* out = static_cast<const float*>(set.tensors.out.data);
  for (int64_t i = 0; i < kItems; ++i) {
    EXPECT_EQ(out[i], i < items ? static_cast<float>(steps) : 0.0f) << "item " << i;
  }
  const auto* lse = static_cast<const float*>(set.tensors.lse.data);
  return {lse, lse + kItems};
}

int sum(const std::vector<float>& runs) {
  float total = 0;
  for (const float run : runs) {
    total += run;
  }
  return static_cast<int>(total);
}

TEST(Execute, EveryThreadCountRunsEachWorkerOnce) {
  for (const int threads : {1, 2, 3, 7, 16}) {
    ExecuteOptions options;
    options.threads = threads;
    const std::vector<float> runs = run_counting(counting_plan(kItems), options, kItems);
    EXPECT_EQ(sum(runs), threads);
    for (int w = 0; w < threads; ++w) {
      EXPECT_EQ(runs[static_cast<size_t>(w)], 1.0f) << "worker " << w;
    }
  }
}

TEST(Execute, NoMoreWorkersThanItems) {
  ExecuteOptions options;
  options.threads = 8;
  EXPECT_EQ(sum(run_counting(counting_plan(3), options, 3)), 3);
  EXPECT_EQ(sum(run_counting(counting_plan(1), options, 1)), 1);
}

TEST(Execute, StepsWithoutItemsAreSkipped) {
  EXPECT_EQ(sum(run_counting(counting_plan(0), {}, 0)), 0);
}

TEST(Execute, TheItemCounterStartsAtZeroInEveryStep) {
  ExecuteOptions options;
  options.threads = 2;
  EXPECT_EQ(sum(run_counting(counting_plan(kItems, 3), options, kItems, 3)), 6);
}

TEST(Execute, NestedRegionsStillRunEveryWorker) {
  std::vector<int> total(2, 0);
#pragma omp parallel num_threads(2)
  {
    ExecuteOptions options;
    options.threads = 4;
    total[static_cast<size_t>(omp_get_thread_num())] =
        sum(run_counting(counting_plan(kItems), options, kItems));
  }
  EXPECT_EQ(total[0], 4);
}

struct Executor {
  int calls = 0;
  int workers = 0;
};

void run_with_threads(void* context, int workers, void (*fn)(void* arg, int worker), void* arg) {
  auto* executor = static_cast<Executor*>(context);
  ++executor->calls;
  executor->workers = workers;
  std::vector<std::thread> threads;
  for (int w = 0; w < workers; ++w) {
    threads.emplace_back(fn, arg, w);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(Execute, TheCallersExecutorIsUsed) {
  Executor executor;
  ExecuteOptions options;
  options.threads = 5;
  options.parallel_for = run_with_threads;
  options.parallel_context = &executor;
  EXPECT_EQ(sum(run_counting(counting_plan(kItems, 2), options, kItems, 2)), 10);
  EXPECT_EQ(executor.calls, 2);
  EXPECT_EQ(executor.workers, 5);
}

TEST(Execute, AnExecutorThatDropsWorkersIsReported) {
  ExecuteOptions options;
  options.threads = 4;
  options.parallel_for = [](void*, int, void (*fn)(void*, int), void* arg) { fn(arg, 0); };
  const Plan plan = counting_plan(kItems);
  TensorSet set(counting_problem());
  const Workspace workspace(plan, 4);
  const Status status = execute(plan, set.tensors, workspace.data(), workspace.bytes(), options);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().rfind("parallel_for: ran 1 workers", 0), 0u) << status.message();
}

void throw_no_memory(const KernelLaunch& /*launch*/, int worker) {
  if (worker == 1) {
    throw std::bad_alloc();
  }
}

void throw_something(const KernelLaunch& /*launch*/, int worker) {
  if (worker == 1) {
    throw 7;
  }
}

// A worker that throws must not end the process; the step's other workers still finish.
TEST(Execute, ExceptionsOfAWorkerBecomeAStatus) {
  const KernelEntry no_memory = {{.name = "no_memory"}, nullptr, nullptr, throw_no_memory};
  const KernelEntry something = {{.name = "something"}, nullptr, nullptr, throw_something};
  for (const bool own_executor : {false, true}) {
    for (const auto& [kernel, code] : {std::pair(&no_memory, StatusCode::kOutOfMemory),
                                       std::pair(&something, StatusCode::kInternal)}) {
      auto data = std::make_shared<detail::PlanData>(counting_plan(kItems).data());
      data->steps.front().kernel = kernel;
      const Plan plan{data};
      TensorSet set(counting_problem());
      Executor executor;
      ExecuteOptions options;
      options.threads = 3;
      options.parallel_for = own_executor ? run_with_threads : nullptr;
      options.parallel_context = &executor;
      const Workspace workspace(plan, 3);
      const Status status =
          execute(plan, set.tensors, workspace.data(), workspace.bytes(), options);
      EXPECT_EQ(status.code(), code);
      EXPECT_EQ(status.message().rfind(kernel->config.name, 0), 0u) << status.message();
    }
  }
}

// More threads than items: the counter lies behind the scratches of workers that can run.
TEST(Execute, TheWorkspaceHoldsNoScratchForIdleThreads) {
  const Plan plan = counting_plan(2);
  EXPECT_EQ(plan.workspace_bytes(16), plan.workspace_bytes(2));
  ExecuteOptions options;
  options.threads = 16;
  EXPECT_EQ(sum(run_counting(plan, options, 2)), 2);
}

TEST(Execute, AWorkspaceOnTopOfATensorIsRefused) {
  const Plan plan = counting_plan(kItems);
  const size_t bytes = plan.workspace_bytes(1);
  ExecuteOptions options;
  options.threads = 1;
  for (const char* name : {"q", "out"}) {
    TensorSet set(counting_problem());
    auto* memory = static_cast<char*>(set.allocate(bytes + kItems * sizeof(float)));
    char* inside = memory + bytes - sizeof(float);  // the workspace's last value
    if (std::string(name) == "q") {
      set.tensors.q.data = inside;
    } else {
      set.tensors.out.data = inside;
    }
    const Status status = execute(plan, set.tensors, memory, bytes, options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().rfind(std::string("workspace: shares memory with ") + name, 0), 0u)
        << status.message();
    set.tensors.q.data = name[0] == 'q' ? memory + bytes : set.tensors.q.data;
    set.tensors.out.data = name[0] == 'o' ? memory + bytes : set.tensors.out.data;
    EXPECT_TRUE(execute(plan, set.tensors, memory, bytes, options).ok());  // right behind it
  }
}

TEST(Execute, WorkspaceErrorsNameTheBytes) {
  const Plan plan = counting_plan(kItems);
  TensorSet set(counting_problem());
  const Workspace workspace(plan, 2);
  ExecuteOptions options;
  options.threads = 2;
  const std::string needed = std::to_string(workspace.bytes());

  const Status null = execute(plan, set.tensors, nullptr, workspace.bytes(), options);
  EXPECT_EQ(null.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(null.message().find(needed), std::string::npos) << null.message();

  const Status small = execute(plan, set.tensors, workspace.data(), workspace.bytes() - 1, options);
  EXPECT_EQ(small.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(small.message().find(needed), std::string::npos) << small.message();

  const Status misaligned = execute(plan, set.tensors, static_cast<char*>(workspace.data()) + 8,
                                    workspace.bytes(), options);
  EXPECT_EQ(misaligned.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(misaligned.message().find("64"), std::string::npos) << misaligned.message();

  for (int i = 0; i < kItems; ++i) {
    EXPECT_EQ(static_cast<const float*>(set.tensors.out.data)[i], 0.0f);
  }
}

TEST(Execute, AnEmptyPlanAndBadThreadCountsAreRefused) {
  TensorSet set(counting_problem());
  const Status empty = execute(Plan(), set.tensors, nullptr, 0);
  EXPECT_EQ(empty.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(empty.message().rfind("plan:", 0), 0u) << empty.message();

  ExecuteOptions options;
  for (const int threads : {-1, kMaxThreads + 1}) {
    options.threads = threads;
    const Status status = execute(counting_plan(1), set.tensors, nullptr, 0, options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().rfind("threads: is " + std::to_string(threads) + ";", 0), 0u)
        << status.message();
  }
}

TEST(Execute, NothingIsWrittenWhenATensorIsWrong) {
  const Plan plan = counting_plan(kItems);
  TensorSet set(counting_problem());
  const Workspace workspace(plan, 1);
  set.tensors.k.sizes[1] += 1;
  ExecuteOptions options;
  options.threads = 1;
  EXPECT_FALSE(execute(plan, set.tensors, workspace.data(), workspace.bytes(), options).ok());
  EXPECT_EQ(static_cast<const float*>(set.tensors.out.data)[0], 0.0f);
}

// The pool of the OpenMP runtime does not survive a fork: without plain threads the child hangs,
// and the alarm ends it.
TEST(Execute, WorksInAForkedChildAfterAParallelRun) {
  ExecuteOptions options;
  options.threads = 4;
  const Plan plan = counting_plan(kItems);
  EXPECT_EQ(sum(run_counting(plan, options, kItems)), 4);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    const bool right = sum(run_counting(plan, options, kItems)) == 4;
    _exit(right && !::testing::Test::HasFailure() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(sum(run_counting(plan, options, kItems)), 4);  // the parent is not disturbed
}

// ROWMAX_EXPLAIN=1 prints every plan; nothing else does.
TEST(MakePlan, ExplainsItselfOnRequest) {
  const AttentionProblem problem = problem_of("forward f32 b1 h1 s4 d8");
  const auto printed = [&problem] {
    ::testing::internal::CaptureStderr();
    const Result<Plan> plan = make_plan(problem);
    EXPECT_TRUE(plan.ok());
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(printed(), "");
  setenv("ROWMAX_EXPLAIN", "1", 1);
  const std::string text = printed();
  setenv("ROWMAX_EXPLAIN", "0", 1);
  EXPECT_EQ(printed(), "");
  unsetenv("ROWMAX_EXPLAIN");
  EXPECT_EQ(text, explain(*make_plan(problem)));
}

// out = v for one key, whatever q and k are; LSE = its score.
TEST(Execute, OneKey) {
  const AttentionProblem problem = problem_of("forward f32 b2 h3 sq4 sk1 d8");
  PlanOptions plan_options;
  plan_options.force_kernel = "reference_forward";
  const Result<Plan> plan = make_plan(problem, host_device(), plan_options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  TensorSet set(problem);
  TensorView v = set.view(DType::kF32, {2, 1, 3, 8});
  testing::fill(v, 3);
  set.tensors.v = v;
  const Workspace workspace(*plan, 0);
  const Status status = execute(*plan, set.tensors, workspace.data(), workspace.bytes());
  ASSERT_TRUE(status.ok()) << status.message();
  const auto* out = static_cast<const float*>(set.tensors.out.data);
  const auto* values = static_cast<const float*>(v.data);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t i = 0; i < 24; ++i) {
        EXPECT_EQ(out[(b * 4 + row) * 24 + i], values[b * 24 + i]);
      }
    }
  }
}

}  // namespace
}  // namespace rowmax
