// Walks the registry: every kernel, forced, on every case line that it supports; and the same bits
// for any number of threads.
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>

#include "runs.h"
#include "testkit/inputs.h"
#include "testkit/outputs.h"
#include "testkit/runner.h"

namespace rowmax::test {
namespace {

// ci.txt in parts, so that ctest can run them side by side.
constexpr int kParts = 4;

struct Part {
  const KernelEntry* entry;
  int part;
};

void PrintTo(const Part& part, std::ostream* out) {
  *out << part.entry->config.name << " " << part.part;
}

std::vector<Part> parts() {
  std::vector<Part> out;
  for (const KernelEntry* entry : main_kernels()) {
    for (int part = 0; part < kParts; ++part) {
      out.push_back({entry, part});
    }
  }
  return out;
}

std::string part_name(const testing::TestParamInfo<Part>& info) {
  return std::string(info.param.entry->config.name) + "_" + std::to_string(info.param.part);
}

class Kernels : public testing::TestWithParam<Part> {
 protected:
  bool serves(const testkit::Case& spec) const {
    const KernelEntry& entry = *GetParam().entry;
    return entry.supports(spec.problem, entry.config).ok();
  }
};

TEST_P(Kernels, EveryCaseIsWithinTheLimit) {
  const std::vector<testkit::Case> cases = load_cases("ci.txt");
  int64_t reached = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!serves(cases[i])) {
      continue;
    }
    // Parts take the kernel's own cases in turn, so that each has its share.
    if (reached++ % kParts != GetParam().part) {
      continue;
    }
    const testkit::RunReport report = testkit::run_case(
        cases[i],
        {.kernel = GetParam().entry->config.name, .threads = 1 + static_cast<int>(i % 3)});
    EXPECT_TRUE(report.passed()) << report.text();
  }
  EXPECT_GE(reached, kParts) << "too few cases of ci.txt reach this kernel";
}

INSTANTIATE_TEST_SUITE_P(Registry, Kernels, testing::ValuesIn(parts()), part_name);

// All outputs of a run, as written.
testkit::OutputValues outputs_of(const testkit::Case& spec, const std::string& kernel,
                                 int threads) {
  const Result<std::unique_ptr<testkit::CaseInputs>> inputs = testkit::CaseInputs::create(spec);
  EXPECT_TRUE(inputs.ok());
  PlanOptions options;
  options.force_kernel = kernel;
  const Plan plan = make_plan(spec.problem, host_device(), options).value();
  std::vector<char> workspace(plan.workspace_bytes(threads) + 64);
  char* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  ExecuteOptions execute_options;
  execute_options.threads = threads;
  const Status status =
      execute(plan, (*inputs)->tensors(), aligned, plan.workspace_bytes(threads), execute_options);
  EXPECT_TRUE(status.ok()) << status.message();
  return testkit::gather(spec.problem, (*inputs)->args());
}

class ThreadBits : public testing::TestWithParam<const KernelEntry*> {};

TEST_P(ThreadBits, AreTheSameForAnyThreadCount) {
  const KernelEntry& entry = *GetParam();
  int count = 0;
  for (const testkit::Case& spec : load_cases("threads.txt")) {
    if (!entry.supports(spec.problem, entry.config).ok()) {
      continue;
    }
    ++count;
    const testkit::OutputValues one = outputs_of(spec, entry.config.name, 1);
    for (const int threads : {2, 3, 7, 16}) {
      const testkit::OutputValues many = outputs_of(spec, entry.config.name, threads);
      for (int output = 0; output < testkit::kOutputCount; ++output) {
        const std::vector<double>& a = one[static_cast<size_t>(output)];
        const std::vector<double>& b = many[static_cast<size_t>(output)];
        ASSERT_EQ(a.size(), b.size());
        EXPECT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0)
            << to_string(spec) << ": " << testkit::to_string(static_cast<testkit::Output>(output))
            << " differs between 1 and " << threads << " threads";
      }
    }
  }
  EXPECT_GT(count, 0);
}

INSTANTIATE_TEST_SUITE_P(Registry, ThreadBits, testing::ValuesIn(main_kernels()),
                         [](const testing::TestParamInfo<const KernelEntry*>& row) {
                           return std::string(row.param->config.name);
                         });

}  // namespace
}  // namespace rowmax::test
