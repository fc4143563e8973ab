// Plans for a GPU that is not here: every supported problem has one, every row is reached, what is
// not served is declined by name, and the cost model ranks as the numbers say.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "api/backends.h"
#include "fake_backend.h"
#include "kernel_api/plan_data.h"
#include "kernel_api/schedule.h"
#include "plan/cost_cuda.h"
#include "plan/planner.h"
#include "plan/ranking.h"
#include "rowmax/attention.h"
#include "testkit/case.h"

namespace rowmax::test {
namespace {

DeviceInfo h200() { return find_device("h200").value(); }

Result<Plan> plan_of(const std::string& line, const std::string& kernel = "") {
  PlanOptions options;
  options.force_kernel = kernel;
  return make_plan_with(problem_of(line), h200(), options, all_backends());
}

const Backend& cuda_backend() { return *find_backend("cuda"); }

std::vector<std::string> served_lines() {
  const char* const shapes[] = {
      "b2 h2 s40 d64",
      "b1 hq8 hkv2 sq113 sk203 d128 causal",
      "b16 h16 s1024 d128",
      "b4 h32 s4096 d64",
      "b4 h32 s4096 d64 causal",
      "b32 h32 s512 d64",
      "b32 h32 s512 d64 causal",
      "b4 h16 s4096 d128",
      "b4 h16 s4096 d128 causal",
      "b32 h16 s512 d128",
      "b32 h16 s512 d128 causal",
      "b0 h1 s8 d8",
      "b2 h1 sq0 sk8 d8",
      "b2 h1 sq8 sk0 d8",
      "b1 h2 s900 d96 window=50,3",
      "b1 h2 s900 d96",
      "b4 h8 s4096 d96",
      "b4 h8 s4096 d96 causal",
      "b1 h2 s900 d192",
      "b1 h2 s900 d192 causal",
      "b1 h2 s900 d192 dv128",
      "b1 h2 s900 d192 dv128 causal",
      "b1 h2 s900 d64 dv256",
      "b1 h2 s900 d64 dv256 causal",
      "b1 h2 s900 d80",
      "b1 h2 s900 d256",
      "b4 h8 s4096 d256 causal",
      "b3 h2 sq9 sk50 d32 ragged_q=21 ragged_k=120",
      "b3 h2 sq9 sk50 d32 ragged_q=21 ragged_k=120 used_q used_k causal",
  };
  const char* const options[] = {"", "alibi", "sinks", "softcap=30", "scale=0.1", "nolse"};
  std::vector<std::string> lines;
  const char* const backward[] = {
      "b2 h2 s40 d64",
      "b1 hq8 hkv2 sq113 sk203 d128 causal",
      "b16 h16 s1024 d128",
      "b4 h32 s4096 d64 causal grads=dk,dv",
      "b2 h2 s900 d64 window=50,3 grads=dq",
      "b2 hq6 hkv3 sq500 sk700 d128 used_k causal topleft",
      "b2 h2 s300 d128 scale=0.1 dlse",
      "b3 hq4 hkv2 sq90 sk50 d64 ragged_q=210 ragged_k=120 used_q used_k causal",
      "b2 hq4 hkv2 s300 d128 sinks grads=dq,dk,dv,dsinks causal",
      "b2 hq4 hkv2 s300 d64 sinks grads=dsinks",
      "b2 h2 s300 d40",
      "b2 h2 s300 d96 dv80 causal",
      "b0 h1 s8 d64",
      "b2 h1 sq0 sk8 d128",
      "b2 h1 sq8 sk0 d128 causal",
  };
  for (const std::string dtype : {"bf16 ", "f16 "}) {
    for (const char* shape : shapes) {
      for (const char* option : options) {
        lines.push_back("forward " + dtype + shape + " " + option);
      }
    }
  }
  for (const char* words : backward) {
    lines.push_back(std::string("backward bf16 ") + words);
  }
  return lines;
}

TEST(Cuda, SupportedProblemsHaveAPlan) {
  for (const std::string& line : served_lines()) {
    const Result<Plan> plan = plan_of(line);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->data().backend, "cuda") << line;
    EXPECT_GT(plan->data().predicted_us, 0.0) << line;
  }
}

// `rowmax verify --suite cuda` counts a case that no kernel serves as declined and passes.
TEST(Cuda, EveryCaseOfTheSuiteHasAPlan) {
  std::ifstream file(ROWMAX_CASES_DIR "/cuda.txt");
  std::stringstream text;
  text << file.rdbuf();
  const Result<std::vector<testkit::Case>> cases = testkit::parse_cases(text.str());
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  ASSERT_FALSE(cases->empty());
  std::set<std::string> lines;
  for (const testkit::Case& spec : *cases) {
    const std::string line = testkit::to_string(spec);
    EXPECT_TRUE(lines.insert(line).second) << line << " is there twice";
    EXPECT_NE(spec.strides, testkit::StrideKind::kPadded) << line << ": rows are not aligned";
    ASSERT_TRUE(validate(spec.problem).ok()) << line;
    const Result<Plan> plan = make_plan_with(spec.problem, h200(), {}, all_backends());
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    if (plan.ok()) {
      EXPECT_EQ(plan->data().backend, "cuda") << line;
    }
  }
}

// Whatever a row serves may be forced; a row that nothing prefers or serves would be dead weight.
TEST(Cuda, EveryRowServesAProblem) {
  std::set<std::string> reached;
  for (const std::string& line : served_lines()) {
    const Result<Plan> plan = plan_of(line);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    for (const std::string& step : plan->steps()) {
      reached.insert(step);
    }
    for (const detail::DeclinedKernel& kernel : plan->data().declined) {
      if (kernel.serves) {
        reached.insert(kernel.name);
      }
    }
  }
  for (const KernelEntry& entry : cuda_backend().kernels) {
    EXPECT_EQ(reached.count(entry.config.name), 1u) << entry.config.name;
  }
}

TEST(Cuda, DeclinesByName) {
  const struct {
    const char* line;
    const char* reason;
  } cases[] = {
      {"forward bf16 s64 d64 mask=bhrc", "mask"},
      {"forward bf16 s64 d64 bias=f32:hrc", "bias"},
      {"forward bf16 s64 d64 blockmask", "block mask"},
      {"forward bf16 s64 d64 documents", "document"},
      {"forward bf16 s64 d64 dropout=0.1", "dropout"},
      {"forward f32 s64 d64", "f32"},
      {"forward f64 s64 d64", "f64"},
      {"forward bf16 b1 h1 sq1 sk64 d64 paged=16,8,4 used_k", "paged"},
      {"forward bf16 s64 d64 softcap=2000", "softcap"},
      {"forward bf16 s64 d65", "65"},
      {"forward bf16 s64 d264", "264"},
      {"backward f32 s64 d64", "f32"},
      {"backward f16 s64 d64", "f16"},
      {"backward bf16 s64 d65", "65"},
      {"backward bf16 s64 d136", "136"},
      {"backward bf16 s64 d128 dv192", "192"},
      {"backward bf16 s64 d64 softcap=30", "softcap"},
      {"backward bf16 s64 d64 alibi", "ALiBi"},
      {"backward bf16 s64 d64 scale=-1", "at least 1e-30"},
      {"backward bf16 s64 d64 dropout=0.1", "dropout"},
      {"backward bf16 s64 d64 mask=bhrc", "mask"},
      {"backward bf16 s64 d64 out=f32", "out_dtype"},
  };
  for (const auto& c : cases) {
    const Result<Plan> plan = plan_of(c.line);
    EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported) << c.line;
    EXPECT_NE(plan.status().message().find(c.reason), std::string::npos) << plan.status().message();
  }
}

// Rows of one option apply it always; what they cannot do is left to rows with all of them.
TEST(Cuda, OptionsChooseTheirRows) {
  const struct {
    const char* words;
    const char* ending;
  } cases[] = {
      {"d64 alibi", "_alibi"},
      {"d128 alibi=batch causal", "_alibi"},
      {"d128 alibi sinks window=200,0", "_alibi"},
      {"d64 softcap=30", "_softcap"},
      {"d128 softcap=50 causal", "_softcap"},
      {"d256 softcap=50", "_softcap"},
      {"d256 alibi", "_options"},
      {"d128 alibi softcap=30", "_options"},
      {"d128 alibi scale=-0.2", "_options"},
      {"d128 softcap=1e-30", "_options"},
      {"d128 softcap=30 out=f32", "_options"},
      {"d128 alibi out=f32", "_options"},
      {"d128 causal sinks", "_banded"},
      {"d256 causal", "_banded"},
  };
  for (const auto& c : cases) {
    const Result<Plan> plan = plan_of(std::string("forward bf16 b8 h16 s4096 ") + c.words);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(plan->kernel().ends_with(c.ending)) << c.words << ": " << plan->kernel();
  }
  const Result<Plan> plain =
      plan_of("forward bf16 s64 d128", "sm90_forward_bf16_d128_q128k128_banded_alibi");
  EXPECT_NE(plain.status().message().find("serves only ALiBi"), std::string::npos);
}

// The rows that a predicate takes: "A, B", or "5 kernels (A, ...)".
template <class Predicate>
std::string kernels_text(const Predicate& takes) {
  constexpr int kMostNames = 4;
  int count = 0;
  std::string first;
  std::string all;
  for (const KernelEntry& entry : cuda_backend().kernels) {
    if (entry.config.step == StepKind::kForward && takes(entry.config)) {
      first = count++ == 0 ? entry.config.name : first;
      all += (all.empty() ? "" : ", ") + std::string(entry.config.name);
    }
  }
  return count <= kMostNames ? all : std::to_string(count) + " kernels (" + first + ", ...)";
}

// Rows of one reason together, those made for the problem first, limits of a size in one line.
TEST(Cuda, RefusalsAreGrouped) {
  const auto is_f16 = [](const KernelConfig& c) { return c.dtype == DType::kF16; };
  const auto is_bf16 = [](const KernelConfig& c) { return c.dtype == DType::kBF16; };
  const std::string others = "; " + kernels_text(is_f16) + ": computes f16, dtype is bf16";
  EXPECT_EQ(plan_of("forward bf16 s64 d64 mask=bhrc").status().message(),
            "no kernel serves 'forward bf16 b1 h1 s64 d64 mask=bhrc'; " + kernels_text(is_bf16) +
                ": boolean mask is not implemented on this kernel" + others);
  EXPECT_EQ(plan_of("forward bf16 s64 d264").status().message(),
            "no kernel serves 'forward bf16 b1 h1 s64 d264'; " + kernels_text(is_bf16) +
                ": head_dim 264 exceeds 64, 96, 128, 192, 256" + others);
  const auto is_wide = [&](const KernelConfig& c) { return is_bf16(c) && c.head_dim >= 200; };
  EXPECT_EQ(plan_of("forward bf16 s64 d200 softcap=2000").status().message(),
            "no kernel serves 'forward bf16 b1 h1 s64 d200 softcap=2000'; " +
                kernels_text(is_wide) + ": softcap 2000 exceeds 1024; " +
                kernels_text([&](const KernelConfig& c) { return is_bf16(c) && !is_wide(c); }) +
                ": head_dim 200 exceeds 64, 96, 128, 192" + others);
}

// A reason of one row reads as before.
TEST(Cuda, RefusalsOfOneKernelNameIt) {
  const KernelEntry& entry = cuda_backend().kernels.front();
  const Backend one = {.name = "cuda", .kernels = {&entry, 1}, .device_kind = "cuda"};
  const Backend* const backends[] = {&one};
  const Result<Plan> plan = make_plan_with(problem_of("forward f32 s64 d64"), h200(), {}, backends);
  EXPECT_EQ(plan.status().message(), "no kernel serves 'forward f32 b1 h1 s64 d64'; " +
                                         std::string(entry.config.name) +
                                         ": computes bf16, dtype is f32");
}

TEST(Cuda, CpuAndGpuKernelsDoNotMix) {
  const Result<Plan> gpu = plan_of("forward bf16 b1 h1 s64 d64", "forward_f32_portable");
  EXPECT_EQ(gpu.status().code(), StatusCode::kInvalidArgument);
  PlanOptions options;
  options.force_kernel = cuda_backend().kernels.front().config.name;
  const Result<Plan> cpu = make_plan_with(problem_of("forward bf16 b1 h1 s64 d64"),
                                          fake_device("avx2"), options, all_backends());
  EXPECT_EQ(cpu.status().code(), StatusCode::kInvalidArgument);
}

TEST(Cuda, OtherArchitecturesAreRefusedByName) {
  DeviceInfo device = h200();
  device.isa = "sm80";
  const Result<Plan> plan =
      make_plan_with(problem_of("forward bf16 b1 h1 s64 d64"), device, {}, all_backends());
  EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(plan.status().message().find("sm80"), std::string::npos) << plan.status().message();
}

TEST(Cuda, DevicesByName) {
  EXPECT_EQ(find_device("cpu").value().kind, "cpu");
  EXPECT_EQ(find_device("h100").value().isa, "sm90");
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda0", "H200"}) {
    const Result<DeviceInfo> device = find_device(name);
    EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(device.status().message().find("h200"), std::string::npos)
        << device.status().message();
  }
  // No machine that runs these tests has this many.
  EXPECT_EQ(find_device("cuda:99999").status().code(), StatusCode::kUnsupported);
}

TEST(Cuda, ExplainGivesTheRoofline) {
  const Result<Plan> plan = plan_of("forward bf16 b4 h16 s4096 d128");
  ASSERT_TRUE(plan.ok());
  const std::string text = explain(*plan);
  for (const char* part : {"roofline", "matrix", "exponential", "memory", "predicted", "waves",
                           "consumer warpgroups", "132 multiprocessors"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

// Matrix and exponential times by hand: b2 h3, 2 tiles of 64 rows and 3 blocks of 64 keys, 2 SMs.
TEST(Cuda, UnitTimesOfASmallProblem) {
  KernelConfig config;
  config.tile_q = 64;
  config.tile_k = 64;
  config.head_dim = 128;
  config.head_dim_v = 64;
  DeviceInfo device = h200();
  device.cores = 2;
  device.clock_ghz = 1.0;
  const plan::UnitTimes times =
      plan::unit_times(problem_of("forward bf16 b2 h3 sq128 sk192 d128 dv64"), config, device);
  const double blocks = 6.0 * 2.0 * 3.0 / 2.0;  // a multiprocessor
  EXPECT_DOUBLE_EQ(times.matrix, blocks * 2.0 * 64 * 64 * (128 + 64) / 4096.0 * 1e-3);
  EXPECT_DOUBLE_EQ(times.exponential, blocks * 64 * 64 / 16.0 * 1e-3);
}

// Short problems take about as long by any row: neither a row for larger head dims nor one with
// code for options is taken for them, with the table or without.
TEST(Cuda, ShortProblemsTakeTheirOwnRows) {
  for (const plan::RankingTable table : {plan::RankingTable(), plan::sm90_ranking()}) {
    for (const char* dims : {"d64", "d128", "d256", "d192 dv128", "d64 dv256"}) {
      for (const int length : {1, 16, 64, 128, 256, 512}) {
        for (const char* batch : {"b1 h1", "b1 h16", "b8 h16", "b64 h16"}) {
          for (const char* mask : {"", " causal"}) {
            const std::string line =
                fmt::format("forward bf16 {} s{} {}{}", batch, length, dims, mask);
            const Result<Plan> plan =
                make_plan_with(problem_of(line), h200(), {}, all_backends(), table);
            const KernelConfig& config = plan->data().steps[0].kernel->config;
            EXPECT_EQ(config.options, OptionClass::kNone) << line << ": " << config.name;
            const Sizes& sizes = plan->problem().sizes;
            EXPECT_LE(ceil_div(config.head_dim, int64_t{64}), ceil_div(sizes.head_dim, int64_t{64}))
                << line << ": " << config.name;
            EXPECT_LE(ceil_div(config.head_dim_v, int64_t{64}),
                      ceil_div(sizes.head_dim_v, int64_t{64}))
                << line << ": " << config.name;
          }
        }
      }
    }
  }
}

// The same among rows with all options, of which the table has not every one.
TEST(Cuda, OptionsDoNotWidenTheRow) {
  for (const int length : {16, 64, 512, 4096}) {
    const Result<Plan> plan =
        plan_of(fmt::format("forward bf16 b2 h8 s{} d128 alibi softcap=1 scale=-1", length));
    EXPECT_EQ(plan->kernel(), "sm90_forward_bf16_d128_q128k128_banded_options") << length;
  }
}

TEST(Cuda, ExplainSaysWhatAKernelDoesTooMuch) {
  const std::string text = explain(*plan_of("forward bf16 b2 h2 s300 d128"));
  EXPECT_NE(text.find("has code for options that the problem does not use"), std::string::npos)
      << text;
  EXPECT_NE(text.find("computes head dims (256, 256)"), std::string::npos) << text;
}

// By the cost model a causal problem costs about half, a window about its share of the pairs.
TEST(Cuda, PredictionsFollowVisiblePairs) {
  const auto us = [](const std::string& words) {
    const AttentionProblem problem = problem_of("forward bf16 b4 h16 s8192 d128 " + words);
    return make_plan_with(problem, h200(), {}, all_backends(), {})->data().predicted_us;
  };
  EXPECT_GT(us("causal"), 0.45 * us(""));
  EXPECT_LT(us("causal"), 0.65 * us(""));
  EXPECT_LT(us("window=1024,0"), 0.25 * us(""));
}

TEST(Cuda, BatchInvariantPlansUseOneKernelForEveryBatch) {
  for (const char* shape : {"s300 d64", "s4096 d64 causal", "s1500 d128", "s700 d128 causal"}) {
    const auto kernel = [shape](int batch) {
      return plan_of("forward bf16 b" + std::to_string(batch) + " h8 " + shape + " invariant")
          ->kernel();
    };
    for (const int batch : {2, 3, 7, 16, 64, 500}) {
      EXPECT_EQ(kernel(batch), kernel(1)) << shape << ", batch " << batch;
    }
  }
  // The bounds of the lengths come from the longest sequence of the batch.
  const char* const shorter = "forward bf16 b8 h8 s300 d128 ragged_q=900 ragged_k=900 invariant";
  const char* const longer = "forward bf16 b8 h8 s8000 d128 ragged_q=9000 ragged_k=9000 invariant";
  EXPECT_EQ(plan_of(shorter)->kernel(), plan_of(longer)->kernel());
}

TEST(Cuda, DevicesWithoutNumbersAreRefused) {
  for (const int field : {0, 1, 2}) {
    DeviceInfo device = h200();
    (field == 0 ? device.clock_ghz : field == 1 ? device.memory_gbps : device.clock_ghz) = 0.0;
    device.cores = field == 2 ? 0 : device.cores;
    const Result<Plan> plan =
        make_plan_with(problem_of("forward bf16 b1 h1 s64 d64"), device, {}, all_backends());
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(Cuda, BackwardHasRowStatisticsBeforeAndDqAfterIt) {
  const Result<Plan> plan = plan_of("backward bf16 b2 hq4 hkv2 sq500 sk300 d128 causal");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const std::vector<std::string> steps = {
      "sm90_row_stats_bf16", "sm90_backward_bf16_d128_q64k128_banded", "sm90_reduce_bf16"};
  EXPECT_EQ(plan->steps(), steps);
  const detail::PlanData& data = plan->data();
  const size_t rows = 2 * 4 * 512;  // 500 in tiles of 64
  EXPECT_EQ(data.region_size[static_cast<int>(Region::kRowStats)], 2 * rows * 4);
  EXPECT_EQ(data.region_size[static_cast<int>(Region::kDqPartials)], rows * 128 * 4);
  EXPECT_EQ(data.region_size[static_cast<int>(Region::kTurns)], rows / 64 * 4);
  EXPECT_EQ(data.steps[0].schedule.items, 2 * 4 * 8);
  EXPECT_EQ(data.steps[1].schedule.items, 2 * 2 * 3);
  const std::string text = explain(*plan);
  EXPECT_NE(text.find("dQ partials"), std::string::npos) << text;
}

TEST(Cuda, BackwardWithoutDqHasNoSumsOfIt) {
  const Result<Plan> plan = plan_of("backward bf16 b2 h4 s500 d64 grads=dk,dv");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->steps().size(), 2u);
  EXPECT_EQ(plan->data().region_size[static_cast<int>(Region::kDqPartials)], 0u);
  EXPECT_EQ(plan->data().region_size[static_cast<int>(Region::kTurns)], 0u);
}

// Equal predictions leave the choice to the table: what lost by order alone is measured, too.
TEST(Cuda, KernelsPredictedAlikeContend) {
  const Result<Plan> plan = make_plan_with(problem_of("forward bf16 b32 h8 s512 d256"),
                                           find_device("h200").value(), {}, all_backends(), {});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->kernel(), "sm90_forward_bf16_d256_q128k80_full");
  for (const detail::DeclinedKernel& kernel : plan->data().declined) {
    if (kernel.name == "sm90_forward_bf16_d256_q128k80_banded") {
      EXPECT_TRUE(kernel.contends) << kernel.reason;
      return;
    }
  }
  ADD_FAILURE() << "the banded kernel is not among the declined ones";
}

// The counter of tiles, whatever the size and the thread count.
TEST(Cuda, WorkspaceOfOneStep) {
  const Result<Plan> plan = plan_of("forward bf16 b4 h16 s4096 d128 causal");
  EXPECT_EQ(plan->workspace_bytes(), 64u);
  EXPECT_EQ(plan->workspace_bytes(16), 64u);
}

TEST(Cuda, ExecuteWithoutKernelsSaysSo) {
  if (cuda_backend().enqueue != nullptr) {
    GTEST_SKIP() << "this build has the kernels";
  }
  const Result<Plan> plan = plan_of("forward bf16 b1 h1 s8 d8 nolse");
  ASSERT_TRUE(plan.ok());
  alignas(64) uint16_t memory[4][64] = {};
  alignas(64) char workspace[64] = {};
  AttentionTensors tensors;
  tensors.q = contiguous(memory[0], DType::kBF16, {1, 8, 1, 8});
  tensors.k = contiguous(memory[1], DType::kBF16, {1, 8, 1, 8});
  tensors.v = contiguous(memory[2], DType::kBF16, {1, 8, 1, 8});
  tensors.out = contiguous(memory[3], DType::kBF16, {1, 8, 1, 8});
  const Status status = execute(*plan, tensors, workspace, sizeof(workspace));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("ROWMAX_CUDA"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace rowmax::test
