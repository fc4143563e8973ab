// The real registry: every supported problem has a plan, every row is reached by some problem, and
// names, tiles and scratch are consistent.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/backends.h"
#include "fake_backend.h"
#include "kernel_api/plan_data.h"
#include "kernel_api/schedule.h"
#include "plan/planner.h"

namespace rowmax::test {
namespace {

// Each of a few words for every axis of the contract: sizes x storage, then one score option more.
std::vector<std::string> problem_lines() {
  const char* const shapes[] = {
      "b2 h2 s40 d64",
      "b1 hq8 hkv2 sq113 sk203 d128 causal",
      "b0 h1 s8 d8",
      "b2 h1 sq0 sk8 d8",
      "b2 h1 sq8 sk0 d8",
      "b1 h1 sq1 sk70000 d64",
      "b1 hq4 hkv1 sq64 sk70000 d64 dv32",
      "b1 h1 s5000 d1",
      "b1 h2 s33 d576 window=5,3",
      "b1 h2 sq9 sk5 d7 dv576 window=-2,inf topleft",
      "b3 h2 sq9 sk50 d32 ragged_q=21 ragged_k=120",
      "b3 h2 sq9 sk50 d32 ragged_q=21 used_q used_k",
  };
  const char* const options[] = {"",
                                 "mask=bhrc",
                                 "mask=-",
                                 "bias=f32:hc",
                                 "bias=f64:b",
                                 "bias=bf16:rc",
                                 "alibi",
                                 "alibi=batch",
                                 "documents",
                                 "sinks",
                                 "softcap=30",
                                 "scale=0.1",
                                 "dropout=0.1",
                                 "invariant",
                                 "out=f32"};
  std::vector<std::string> lines;
  for (const char* dtype : {"f32", "bf16", "f16", "f64"}) {
    for (const char* shape : shapes) {
      for (const char* option : options) {
        const std::string words = std::string(dtype) + " " + shape + " " + option;
        lines.push_back("forward " + words);
        lines.push_back("backward " + words);
      }
      lines.push_back("forward " + std::string(dtype) + " " + shape + " nolse");
      lines.push_back("backward " + std::string(dtype) + " " + shape +
                      " bias=f32:hrc alibi sinks grads=dq,dk,dv,dbias,dsinks,dslopes dlse");
    }
    for (const char* shape : {"b2 hq4 hkv2 sq1 sk60 d64", "b2 hq4 hkv2 sq80 sk60 d64 causal"}) {
      for (const char* pages : {"paged=16,40,4 used_k", "paged=1,200,60 used_k"}) {
        lines.push_back("forward " + std::string(dtype) + " " + shape + " " + pages);
      }
    }
  }
  return lines;
}

TEST(Registry, EverySupportedProblemHasAPlanOfACpuKernel) {
  for (const char* isa : {"portable", "avx2"}) {
    for (const std::string& line : problem_lines()) {
      const AttentionProblem problem = problem_of(line);
      ASSERT_TRUE(validate(problem).ok()) << line << ": " << validate(problem).message();
      const Result<Plan> plan = make_plan_with(problem, fake_device(isa), {}, all_backends());
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_EQ(plan->data().backend, "cpu") << line;
    }
  }
}

TEST(Registry, EveryRowIsReached) {
  std::set<std::string> reached;
  for (const char* isa : {"portable", "avx2"}) {
    for (const std::string& line : problem_lines()) {
      const Result<Plan> plan =
          make_plan_with(problem_of(line), fake_device(isa), {}, all_backends());
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      for (const std::string& step : plan->steps()) {
        reached.insert(step);
      }
    }
  }
  for (const Backend* backend : all_backends()) {
    if (std::string_view(backend->device_kind) != "cpu") {
      continue;  // cuda_test.cpp
    }
    for (const KernelEntry& entry : backend->kernels) {
      EXPECT_TRUE(backend->forced_only || reached.count(entry.config.name) != 0)
          << entry.config.name;
    }
  }
}

TEST(Registry, ForcedOnlyRowsCanBeForced) {
  for (const Backend* backend : all_backends()) {
    for (const KernelEntry& entry : backend->kernels) {
      if (!backend->forced_only) {
        continue;
      }
      PlanOptions options;
      options.force_kernel = entry.config.name;
      const bool backward = entry.config.step == StepKind::kBackward;
      const Result<Plan> plan =
          make_plan_with(problem_of(backward ? "backward f32 s8 d8" : "forward f32 s8 d8"),
                         fake_device("avx2"), options, all_backends());
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_EQ(plan->kernel(), entry.config.name);
    }
  }
}

TEST(Registry, BlockMasksAreDeclinedByName) {
  for (const char* op : {"forward", "backward"}) {
    const Result<Plan> plan = make_plan_with(problem_of(std::string(op) + " f32 s8 d8 blockmask"),
                                             fake_device("avx2"), {}, all_backends());
    EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(plan.status().message().find("block mask"), std::string::npos)
        << plan.status().message();
  }
}

// Whatever a device lacks, its refusal gives at least one reason.
TEST(Registry, EveryRefusalHasAReason) {
  std::vector<DeviceInfo> devices = {fake_device("avx2")};
  for (const char* name : {"h100", "h200"}) {
    devices.push_back(find_device(name).value());
  }
  for (const DeviceInfo& device : devices) {
    for (const std::string& line : problem_lines()) {
      const AttentionProblem problem = problem_of(line);
      const Result<Plan> plan = make_plan_with(problem, device, {}, all_backends());
      if (plan.ok()) {
        continue;
      }
      const std::string begin = "no kernel serves '" + to_string(problem) + "'";
      EXPECT_EQ(plan.status().message().find(begin), 0u) << plan.status().message();
      EXPECT_GT(plan.status().message().size(), begin.size() + 2) << plan.status().message();
    }
  }
}

TEST(Registry, RowsAreWellFormed) {
  std::set<std::string> names;
  for (const Backend* backend : all_backends()) {
    for (const KernelEntry& entry : backend->kernels) {
      const std::string_view name = entry.config.name;
      EXPECT_TRUE(names.insert(std::string(name)).second) << name << " is registered twice";
      EXPECT_NE(entry.supports, nullptr) << name;
      if (std::string_view(backend->device_kind) == "cpu") {
        EXPECT_NE(entry.thread_bytes, nullptr) << name;
        EXPECT_NE(entry.run, nullptr) << name;
      }
      EXPECT_GE(entry.config.tile_q, 0) << name;
      EXPECT_GE(entry.config.tile_k, 0) << name;
    }
  }
}

// Memory beyond inputs and outputs: forward at most 8 MB a thread, whatever the length, head dim
// and cache, partial states included.
TEST(Registry, ForwardMemoryDoesNotGrowWithTheLength) {
  constexpr size_t kMostBytes = 8'000'000;
  for (const int64_t l2_kib : {0, 256, 512, 1024, 2048, 65536}) {
    for (const char* dtype : {"f32", "bf16", "f64"}) {
      for (const char* isa : {"portable", "avx2"}) {
        for (const char* shape :
             {"b1 h1 s1048576 d128", "b1 h1 s4096 d576", "b1 h8 s65536 d64", "b4 h8 s4096 d576",
              "b1 h1 sq300 sk1048576 d576", "b1 h1 sq500 sk1048576 d576 dv512",
              "b1 hq32 hkv8 sq1 sk1048576 d128", "b1 h1 s4096 d576 invariant"}) {
          DeviceInfo device = fake_device(isa);
          device.l2_bytes = l2_kib << 10;
          const Result<Plan> plan =
              make_plan_with(problem_of(std::string("forward ") + dtype + " " + shape), device, {},
                             all_backends());
          ASSERT_TRUE(plan.ok()) << plan.status().message();
          EXPECT_LE(plan->workspace_bytes(1), kMostBytes) << explain(*plan);
        }
      }
    }
  }
}

// Backward holds dK and dV of a chunk: where one chunk is too large, more of them may fit, and the
// nearest count that does is taken.
TEST(Registry, AWorkspaceLimitMayGiveMoreChunks) {
  const auto limited_plan = [](const char* line, int64_t bytes) {
    PlanOptions options;
    options.max_workspace = bytes;
    return make_plan_with(problem_of(line), fake_device("avx2"), options, all_backends());
  };
  const auto splits = [](const Plan& plan) {
    return plan.data().steps[plan.data().main_step].schedule.splits;
  };
  const char* many_heads = "backward f32 b1 h32 s131072 d128 grads=dk,dv";
  const Result<Plan> whole = limited_plan(many_heads, 0);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(splits(*whole), 1);
  const size_t less = whole->workspace_bytes(1) / 2;
  const Result<Plan> more = limited_plan(many_heads, static_cast<int64_t>(less));
  ASSERT_TRUE(more.ok()) << more.status().message();
  EXPECT_GT(splits(*more), 1);
  EXPECT_LE(more->workspace_bytes(1), less);

  for (const auto& [line, limit] : {std::pair("backward f32 b1 h1 s65536 d128", 300'000'000),
                                    std::pair("backward f32 b1 h32 s131072 d128", 1'000'000'000)}) {
    const Result<Plan> plan = limited_plan(line, limit);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_LE(plan->workspace_bytes(1), static_cast<size_t>(limit));
  }
}

}  // namespace
}  // namespace rowmax::test
