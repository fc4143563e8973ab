// What the planner chooses, why it declines, and what it refuses.
#include "plan/planner.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "fake_backend.h"
#include "kernel_api/plan_data.h"
#include "plan/workspace.h"

namespace rowmax::test {
namespace {

using Steps = std::vector<std::string>;

Result<Plan> try_plan(const std::string& line, const std::string& isa = "avx2",
                      const PlanOptions& options = {}) {
  return make_plan_with(problem_of(line), fake_device(isa), options, fake_backends());
}

Plan plan_of(const std::string& line, const std::string& isa = "avx2",
             const PlanOptions& options = {}) {
  const Result<Plan> plan = try_plan(line, isa, options);
  EXPECT_TRUE(plan.ok()) << line << ": " << plan.status().message();
  return plan.ok() ? *plan : Plan();
}

PlanOptions forced(const std::string& kernel) {
  PlanOptions options;
  options.force_kernel = kernel;
  return options;
}

std::string reason_of(const Plan& plan, const std::string& kernel) {
  for (const detail::DeclinedKernel& declined : plan.data().declined) {
    if (declined.name == kernel) {
      return declined.reason;
    }
  }
  return "not declined";
}

const Schedule& main_schedule_of(const Plan& plan) {
  return plan.data().steps[plan.data().main_step].schedule;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

// Sets a variable of the environment for one scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedVariable() { unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
};

// ---- rank ---------------------------------------------------------------------------------------

TEST(Rank, HighestInstructionSet) {
  const Plan plan = plan_of("forward f32 b2 h8 s512 d64");
  EXPECT_EQ(plan.kernel(), "forward_f32_avx2");
  expect_contains(plan.data().choice, "avx2");
  expect_contains(reason_of(plan, "forward_f32_portable"), "forward_f32_avx2 uses avx2");
  expect_contains(reason_of(plan, "decode_f32_avx2"), "too many query rows");
}

TEST(Rank, DeviceLimitsTheInstructionSet) {
  const Plan plan = plan_of("forward f32 b2 h8 s512 d64", "portable");
  EXPECT_EQ(plan.kernel(), "forward_f32_portable");
  EXPECT_EQ(reason_of(plan, "forward_f32_avx2"), "needs avx2, device offers portable");
}

TEST(Rank, SinglePrecisionBeforeDouble) {
  const Plan plan = plan_of("forward bf16 b2 h8 s512 d64", "portable");
  EXPECT_EQ(plan.kernel(), "forward_f32_portable");
  expect_contains(reason_of(plan, "forward_f64_portable"), "computes in f64");
  EXPECT_EQ(plan_of("forward f64 b2 h8 s512 d64").kernel(), "forward_f64_portable");
}

TEST(Rank, DecodeBeforeForward) {
  const Plan plan = plan_of("forward f32 b2 hq8 hkv2 sq4 sk512 d64");
  EXPECT_EQ(plan.kernel(), "decode_f32_avx2");
  expect_contains(reason_of(plan, "forward_f32_avx2"), "reads K and V once");
  EXPECT_EQ(plan_of("forward f32 b2 hq8 hkv2 sq5 sk512 d64").kernel(), "forward_f32_avx2");
  EXPECT_EQ(plan_of("forward f64 b2 hq8 hkv2 sq4 sk512 d64").kernel(), "decode_f64_portable");
}

TEST(Rank, ReferenceNeverServesUnlessForced) {
  const Plan plan = plan_of("forward f32 b2 h8 s512 d64");
  EXPECT_EQ(reason_of(plan, "reference_forward"), "reference kernels run only when forced by name");
  const Result<Plan> none = try_plan("forward f32 b2 h8 s512 d64 blockmask");
  EXPECT_EQ(none.status().code(), StatusCode::kUnsupported);
}

// ---- force --------------------------------------------------------------------------------------

TEST(Force, ByOption) {
  const Plan plan = plan_of("forward f32 b2 h8 s512 d64", "avx2", forced("forward_f64_portable"));
  EXPECT_EQ(plan.kernel(), "forward_f64_portable");
  EXPECT_EQ(plan.data().choice, "forced by name");
  EXPECT_EQ(reason_of(plan, "forward_f32_avx2"), "kernel forward_f64_portable is forced");
}

TEST(Force, ByEnvironmentUnlessTheOptionSaysOtherwise) {
  const ScopedVariable variable("ROWMAX_FORCE_KERNEL", "forward_f32_portable");
  EXPECT_EQ(plan_of("forward f32 h8 s512 d64").kernel(), "forward_f32_portable");
  EXPECT_EQ(plan_of("forward f32 h8 s512 d64", "avx2", forced("forward_f32_avx2")).kernel(),
            "forward_f32_avx2");
}

TEST(Force, UnknownNameListsTheKnownOnes) {
  for (const char* name : {"forward_f32_avx512", "backward_f32_avx2", "combine_f32_avx2"}) {
    const Result<Plan> plan = try_plan("forward f32 h8 s512 d64", "avx2", forced(name));
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument) << name;
    expect_contains(plan.status().message(), name);
    expect_contains(plan.status().message(), "forward_f32_avx2");
    expect_contains(plan.status().message(), "reference_forward");
  }
}

TEST(Force, KernelThatDeclinesIsNotReplaced) {
  const Result<Plan> f64 = try_plan("forward f64 h8 s512 d64", "avx2", forced("forward_f32_avx2"));
  EXPECT_EQ(f64.status().code(), StatusCode::kUnsupported);
  expect_contains(f64.status().message(), "forward_f32_avx2: computes in f32, dtype is f64");
  const Result<Plan> isa =
      try_plan("forward f32 h8 s512 d64", "portable", forced("forward_f32_avx2"));
  EXPECT_EQ(isa.status().code(), StatusCode::kUnsupported);
  expect_contains(isa.status().message(), "needs avx2, device offers portable");
}

TEST(Force, ReferenceIsOneStepWithoutRegions) {
  const Plan forward =
      plan_of("forward f32 h1 sq1 sk100000 d64", "avx2", forced("reference_forward"));
  EXPECT_EQ(forward.steps(), Steps{"reference_forward"});
  EXPECT_EQ(main_schedule_of(forward).splits, 1);
  const Plan backward = plan_of(
      "backward f32 h1 s4096 d64 bias=f32:h alibi sinks grads=dq,dk,dv,dbias,dsinks,dslopes",
      "avx2", forced("reference_backward"));
  EXPECT_EQ(backward.steps(), Steps{"reference_backward"});
  EXPECT_EQ(backward.data().shared_bytes, 0u);
}

// ---- refusals -----------------------------------------------------------------------------------

TEST(Refuse, NamesEveryKernelWithItsReason) {
  const Result<Plan> plan = try_plan("forward f32 h8 s512 d64 blockmask", "portable");
  ASSERT_EQ(plan.status().code(), StatusCode::kUnsupported);
  for (const char* part :
       {"blockmask", "; forward_f32_avx2, decode_f32_avx2: needs avx2",
        "; forward_f64_portable, forward_f32_portable, decode_f64_portable, decode_f32_portable: "
        "block masks",
        "; reference_forward: reference kernels run only"}) {
    expect_contains(plan.status().message(), part);
  }
}

// A device without any kernel of the op: the message says what it has instead, also when a kernel
// is forced.
TEST(Refuse, SaysWhatTheDeviceComputesInstead) {
  DeviceInfo gpu = fake_device("sm90");
  gpu.kind = "cuda";
  gpu.name = "test gpu";
  gpu.clock_ghz = gpu.memory_gbps = 1.0;
  const std::string backward = "backward f32 b1 h8 s512 d64";
  const std::string forward = "forward f32 b1 h8 s512 d64";
  const struct {
    const std::string& line;
    DeviceInfo device;
    std::span<const Backend* const> backends;
    const char* reason;
  } cases[] = {
      {backward, fake_device("avx2"), fake_forward_only_backends(),
       "device test device (avx2) computes backward; it has: forward (3 kernels), decode (3 "
       "kernels)"},
      {backward, gpu, fake_forward_only_backends(),
       "device test gpu (sm90) computes backward; it has: forward (1 kernel)"},
      {forward, gpu, fake_backends(), "device test gpu (sm90) computes forward; it has: nothing"},
      {forward,
       fake_device("avx2"),
       {},
       "device test device (avx2) computes forward; it has: nothing"},
  };
  for (const auto& c : cases) {
    for (const char* kernel : {"", "forward_f32_avx2"}) {
      const Status status =
          make_plan_with(problem_of(c.line), c.device, forced(kernel), c.backends).status();
      EXPECT_EQ(status.code(), StatusCode::kUnsupported);
      EXPECT_EQ(status.message(), "no kernel serves '" + c.line + "': no kernel of " + c.reason);
    }
  }
}

TEST(Refuse, BrokenProblemDeviceAndOptions) {
  const AttentionProblem good = problem_of("forward f32 h8 s512 d64");
  AttentionProblem broken = good;
  broken.sizes.heads_kv = 3;
  const auto plan = [](const AttentionProblem& problem, const DeviceInfo& device,
                       const PlanOptions& options) {
    return make_plan_with(problem, device, options, fake_backends()).status();
  };
  DeviceInfo gpu = fake_device("avx2");
  gpu.kind = "gpu";
  PlanOptions workspace;
  workspace.max_workspace = -1;
  const struct {
    Status status;
    const char* named;
  } cases[] = {
      {plan(broken, fake_device("avx2"), {}), "heads_q is 8"},
      {plan(good, gpu, {}), "device kind is 'gpu'"},
      {plan(good, fake_device("avx1"), {}), "device isa is 'avx1'"},
      {plan(good, fake_device("avx2"), workspace), "max_workspace is -1"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(c.status.code(), StatusCode::kInvalidArgument);
    expect_contains(c.status.message(), c.named);
    expect_contains(c.status.message(), "accepted: ");
  }
  EXPECT_EQ(make_plan_with(good, fake_device("avx2"), {}, {}).status().code(),
            StatusCode::kUnsupported);
}

TEST(Refuse, MissingHelperDeclinesTheKernel) {
  const Result<Plan> plan =
      make_plan_with(problem_of("backward f32 h8 s512 d64"), fake_device("avx2"), {},
                     fake_backends_without_avx2_helpers());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->kernel(), "backward_f32_portable");
  EXPECT_EQ(reason_of(*plan, "backward_f32_avx2"),
            "backend cpu has no row statistics kernel for avx2 f32");
}

TEST(Refuse, UnknownMaximumIsaReachesThePlanner) {
  {
    const ScopedVariable variable("ROWMAX_MAX_ISA", "avx9000");
    const Result<Plan> plan =
        make_plan_with(problem_of("forward f32 h8 s512 d64"), host_device(), {}, fake_backends());
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
    expect_contains(plan.status().message(), "avx9000");
  }
  const ScopedVariable variable("ROWMAX_MAX_ISA", "portable");
  EXPECT_EQ(host_device().isa, "portable");
}

TEST(Device, HostHasPlausibleSizes) {
  const DeviceInfo device = host_device();
  EXPECT_EQ(device.kind, "cpu");
  EXPECT_TRUE(device.isa == "portable" || device.isa == "avx2") << device.isa;
  EXPECT_GT(device.l1_bytes, 0);
  EXPECT_GT(device.l2_bytes, 0);
  EXPECT_GT(device.l3_bytes, 0);
  EXPECT_GE(device.cores, 1);
}

// ---- steps --------------------------------------------------------------------------------------

TEST(Steps, ForwardCombinesOnlyWhenSplit) {
  EXPECT_EQ(plan_of("forward f32 b4 h8 s512 d64").steps(), Steps{"forward_f32_avx2"});
  EXPECT_EQ(plan_of("forward f32 h1 sq64 sk65536 d64").steps(),
            (Steps{"forward_f32_avx2", "combine_f32_avx2"}));
  EXPECT_EQ(plan_of("forward f64 h1 sq64 sk65536 d64").steps(),
            (Steps{"forward_f64_portable", "combine_f64_portable"}));
  EXPECT_EQ(plan_of("forward f32 h1 sq1 sk65536 d64", "portable").steps(),
            (Steps{"decode_f32_portable", "combine_f32_portable"}));
}

TEST(Steps, BackwardAddsWhatItsGradientsNeed) {
  EXPECT_EQ(plan_of("backward f32 b4 h8 s512 d64").steps(),
            (Steps{"row_stats_f32_avx2", "backward_f32_avx2"}));
  EXPECT_EQ(plan_of("backward f32 h1 s8192 d64").steps(),
            (Steps{"row_stats_f32_avx2", "backward_f32_avx2", "reduce_f32_avx2"}));
  EXPECT_EQ(plan_of("backward f32 h1 s8192 d64 grads=dk,dv").steps(),
            (Steps{"row_stats_f32_avx2", "backward_f32_avx2"}));
  EXPECT_EQ(plan_of("backward f32 b4 h8 s512 d64 sinks grads=dq,dk,dv,dsinks").steps(),
            (Steps{"row_stats_f32_avx2", "backward_f32_avx2", "reduce_f32_avx2"}));
  const Plan all = plan_of(
      "backward f64 b4 h8 s512 d64 bias=f32:h alibi grads=dq,dk,dv,dbias,dslopes", "portable");
  EXPECT_EQ(all.steps(), (Steps{"row_stats_f64_portable", "backward_f64_portable",
                                "bias_gradient_f64_portable", "reduce_f64_portable"}));
  EXPECT_EQ(all.kernel(), "backward_f64_portable");
}

// Steps that write gradients summed over the batch have an item even where the batch is empty.
TEST(Steps, SummedGradientsOfAnEmptyBatchAreWritten) {
  for (const char* sizes : {"b0 h2 s8", "b2 h2 sq0 sk8", "b2 h2 sq8 sk0"}) {
    const Plan plan = plan_of(std::string("backward f32 d8 bias=f32:h alibi sinks "
                                          "grads=dq,dk,dv,dbias,dsinks,dslopes ") +
                              sizes);
    EXPECT_GT(plan.data().steps[2].schedule.items, 0) << sizes;  // dbias
    EXPECT_GT(plan.data().steps[3].schedule.items, 0) << sizes;  // dsinks, dslopes
  }
  EXPECT_GT(main_schedule_of(plan_of("backward f32 b0 h2 s8 d8 sinks grads=dsinks", "avx2",
                                     forced("reference_backward")))
                .items,
            0);
}

// ---- batch invariance ---------------------------------------------------------------------------

TEST(BatchInvariant, OneKernelAndOneKeyRange) {
  for (const char* sizes :
       {"b1 h1 sq1 sk65536", "b1 hq8 hkv2 sq4 sk65536", "b1 h1 sq64 sk65536", "b8 h16 s4096"}) {
    const Plan plan = plan_of(std::string("forward f32 d64 invariant ") + sizes);
    EXPECT_EQ(plan.steps(), Steps{"forward_f32_avx2"}) << sizes;
    EXPECT_EQ(main_schedule_of(plan).splits, 1) << sizes;
    EXPECT_EQ(main_schedule_of(plan).split_len, 0) << sizes;
  }
  EXPECT_EQ(main_schedule_of(plan_of("backward f32 h1 s8192 d64 invariant")).splits, 1);
}

// ---- workspace ----------------------------------------------------------------------------------

TEST(Workspace, RegionsAreAlignedAndDoNotOverlap) {
  const Plan plan = plan_of(
      "backward f32 h2 s5000 d33 bias=f32:h alibi sinks grads=dq,dk,dv,dbias,dsinks,dslopes");
  const detail::PlanData& data = plan.data();
  size_t end = 0;
  int regions = 0;
  for (int i = 0; i < kRegionCount; ++i) {
    EXPECT_EQ(data.region_offset[i] % plan::kWorkspaceAlignment, 0u);
    EXPECT_GE(data.region_offset[i], end);
    end = data.region_offset[i] + data.region_size[i];
    regions += data.region_size[i] > 0 ? 1 : 0;
  }
  EXPECT_EQ(regions, 4);
  EXPECT_GE(data.shared_bytes, end);
  EXPECT_EQ(data.thread_stride % plan::kWorkspaceAlignment, 0u);
  for (const detail::PlanStep& step : data.steps) {
    EXPECT_GE(data.thread_stride, step.thread_bytes);
  }
  EXPECT_EQ(plan.workspace_bytes(3),
            data.shared_bytes + 3 * data.thread_stride + plan::kWorkspaceAlignment);
  EXPECT_EQ(plan.workspace_bytes(0), plan.workspace_bytes(plan::default_threads()));
}

// Threads that would find no item have no scratch.
TEST(Workspace, CountsWorkersThatCanRun) {
  const Plan plan = plan_of("forward f32 h1 sq64 d64 sk512");
  const detail::PlanData& data = plan.data();
  ASSERT_EQ(data.steps.size(), 1u);
  const int items = static_cast<int>(main_schedule_of(plan).items);
  ASSERT_LT(items, 8);
  EXPECT_EQ(plan.workspace_bytes(64), plan.workspace_bytes(items));
  EXPECT_EQ(plan.workspace_bytes(items),
            plan.workspace_bytes(1) + static_cast<size_t>(items - 1) * data.thread_stride);
  EXPECT_EQ(plan_of("forward f32 b0 h1 s8 d64").workspace_bytes(64), plan::kWorkspaceAlignment);
}

PlanOptions limited(size_t bytes) {
  PlanOptions options;
  options.max_workspace = static_cast<int64_t>(bytes);
  return options;
}

// The number after "accepted: at least " in the refusal of a limit of one byte.
size_t least_workspace(const std::string& line) {
  const Result<Plan> none = try_plan(line, "avx2", limited(1));
  EXPECT_EQ(none.status().code(), StatusCode::kOutOfMemory) << line;
  const std::string before = "accepted: at least ";
  const std::string& message = none.status().message();
  const size_t at = message.find(before);
  EXPECT_NE(at, std::string::npos) << message;
  return at == std::string::npos ? 0 : std::stoull(message.substr(at + before.size()));
}

TEST(Workspace, LimitChangesTheChunksThenRefuses) {
  const std::string line = "backward f32 h1 s8192 d64";
  const Plan whole = plan_of(line);
  const int64_t chunks = main_schedule_of(whole).splits;
  ASSERT_EQ(chunks, 8);
  EXPECT_EQ(plan_of(line, "avx2", limited(whole.workspace_bytes(1))), whole);
  const size_t less = whole.workspace_bytes(1) - 1;
  const Plan fewer = plan_of(line, "avx2", limited(less));
  EXPECT_LT(main_schedule_of(fewer).splits, chunks);
  EXPECT_GT(main_schedule_of(fewer).splits, 1);
  EXPECT_LE(fewer.workspace_bytes(1), less);

  const Plan one = plan_of(line, "avx2", limited(1 << 20));
  EXPECT_EQ(main_schedule_of(one).splits, 1);
  EXPECT_EQ(one.steps(), (Steps{"row_stats_f32_avx2", "backward_f32_avx2"}));
  const Result<Plan> none = try_plan(line, "avx2", limited(one.workspace_bytes(1) - 1));
  EXPECT_EQ(none.status().code(), StatusCode::kOutOfMemory);
  expect_contains(none.status().message(), std::to_string(one.workspace_bytes(1) - 1));
  expect_contains(none.status().message(), std::to_string(one.workspace_bytes(1)));
}

// The least need that a refusal names is one that a plan meets.
TEST(Workspace, RefusalsNameALimitThatWorks) {
  for (const std::string line :
       {"backward f32 h1 s65536 d128", "backward f32 h32 s131072 d128",
        "backward f32 h1 s65536 d128 grads=dk,dv", "forward f32 h1 sq64 sk65536 d64",
        "forward f32 h1 sq1 sk65536 d64", "backward f32 h1 s8192 d64 invariant"}) {
    SCOPED_TRACE(line);
    const size_t least = least_workspace(line);
    EXPECT_EQ(plan_of(line, "avx2", limited(least)).workspace_bytes(1), least);
    EXPECT_FALSE(try_plan(line, "avx2", limited(least - 1)).ok());
    const Plan free = plan_of(line);
    EXPECT_GE(free.workspace_bytes(1), least);
    EXPECT_EQ(plan_of(line, "avx2", limited(free.workspace_bytes(1))), free);
  }
}

// ---- plan as a value ----------------------------------------------------------------------------

TEST(PlanValue, EqualityIsByContent) {
  const std::string line = "forward f32 b2 h8 s512 d64";
  EXPECT_EQ(plan_of(line), plan_of(line));
  EXPECT_FALSE(plan_of(line) == plan_of("forward f32 b2 h8 s513 d64"));
  EXPECT_FALSE(plan_of(line) == plan_of(line, "portable"));
  EXPECT_FALSE(plan_of(line) == plan_of(line, "avx2", forced("forward_f32_portable")));
  EXPECT_FALSE(plan_of(line) == Plan());
  EXPECT_EQ(Plan(), Plan());
}

TEST(PlanValue, EmptyPlanAnswers) {
  const Plan plan;
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.kernel(), "");
  EXPECT_TRUE(plan.steps().empty());
  EXPECT_EQ(plan.workspace_bytes(4), 0u);
  EXPECT_EQ(explain(plan), "empty plan\n");
}

TEST(Explain, NamesEveryKernelAndEveryStep) {
  const Plan plan = plan_of("backward f32 h1 s8192 d64 causal");
  const std::string text = explain(plan);
  for (const std::string& step : plan.steps()) {
    expect_contains(text, step);
  }
  for (const char* kernel :
       {"backward_f32_portable: serves it", "backward_f64_portable: serves it",
        "reference_backward: reference kernels", "backward f32 b1 h1 s8192 d64 causal",
        "33558528 visible of 67108864", "dQ partials", "row statistics"}) {
    expect_contains(text, kernel);
  }
}

}  // namespace
}  // namespace rowmax::test
