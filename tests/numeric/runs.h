// Running a problem on plain dense tensors, for tests that compare runs with each other.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "kernel_api/kernel.h"
#include "rowmax/attention.h"
#include "testkit/case.h"

namespace rowmax {

// How parameterised tests print an entry: its name.
void PrintTo(const KernelEntry* entry, std::ostream* out);

}  // namespace rowmax

namespace rowmax::test {

// Entries of all backends that can be the main kernel of a plan on this machine.
std::vector<const KernelEntry*> main_kernels();

// Every case line of tests/cases/<name>.
std::vector<testkit::Case> load_cases(const std::string& name);

// Gaussian values, deterministic from the seed.
std::vector<float> gaussian(int64_t count, uint64_t seed, double deviation = 1.0);

// Dense f32 operands of a problem with contiguous (B, S, H, D) layout.
struct DenseRun {
  explicit DenseRun(const std::string& problem_text, uint64_t seed = 1);

  // Executes; outputs are filled with NaN first. Empty kernel: the planner's choice.
  Status run(const std::string& kernel = "", int threads = 1);

  AttentionProblem problem;
  std::vector<float> q, k, v, dout;
  std::vector<float> out, lse, dq, dk, dv;
  AttentionTensors tensors;  // score operands may be added before run()
};

// Whether two arrays hold the same bits.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace rowmax::test
