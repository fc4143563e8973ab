// Costs that do not scale with the work: planning, call overhead, state operations.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "rowmax/rowmax.h"

namespace {

rowmax::AttentionProblem dense_problem(int64_t seqlen_q, int64_t seqlen_k) {
  rowmax::AttentionProblem problem;
  problem.sizes.heads_q = 1;
  problem.sizes.heads_kv = 1;
  problem.sizes.seqlen_q = seqlen_q;
  problem.sizes.seqlen_k = seqlen_k;
  return problem;
}

void make_plan(benchmark::State& state) {
  const rowmax::AttentionProblem problem = dense_problem(1024, 1024);
  const rowmax::DeviceInfo device = rowmax::host_device();
  for (auto _ : state) {
    benchmark::DoNotOptimize(rowmax::make_plan(problem, device));
  }
}
BENCHMARK(make_plan);

// One thread, one head, D = 64: mostly checks and the trip through the plan.
void execute_tiny(benchmark::State& state) {
  const int64_t seqlen_q = state.range(0);
  const int64_t seqlen_k = state.range(1);
  const rowmax::AttentionProblem problem = dense_problem(seqlen_q, seqlen_k);
  const rowmax::Plan plan = rowmax::make_plan(problem).value();
  std::vector<float> q(static_cast<size_t>(seqlen_q * 64), 0.25f);
  std::vector<float> kv(static_cast<size_t>(seqlen_k * 64), 0.5f);
  std::vector<float> out(q.size());
  std::vector<float> lse(static_cast<size_t>(seqlen_q));
  rowmax::AttentionTensors tensors;
  tensors.q = rowmax::contiguous(q.data(), rowmax::DType::kF32, {1, seqlen_q, 1, 64});
  tensors.k = rowmax::contiguous(kv.data(), rowmax::DType::kF32, {1, seqlen_k, 1, 64});
  tensors.v = tensors.k;
  tensors.out = rowmax::contiguous(out.data(), rowmax::DType::kF32, {1, seqlen_q, 1, 64});
  tensors.lse = rowmax::contiguous(lse.data(), rowmax::DType::kF32, {1, 1, seqlen_q});
  const size_t bytes = plan.workspace_bytes(1);
  const std::unique_ptr<void, decltype(&std::free)> workspace(
      std::aligned_alloc(64, (bytes + 63) / 64 * 64), &std::free);
  rowmax::ExecuteOptions options;
  options.threads = 1;
  for (auto _ : state) {
    if (!rowmax::execute(plan, tensors, workspace.get(), bytes, options).ok()) {
      state.SkipWithError("execute failed");
      break;
    }
  }
}
BENCHMARK(execute_tiny)->Args({1, 1})->Args({1, 64})->Args({16, 16})->Args({64, 64});

void merge_states(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t dims = 128;
  std::vector<float> m(static_cast<size_t>(2 * rows), 0.0f);
  std::vector<float> l(static_cast<size_t>(2 * rows), 1.0f);
  std::vector<float> o(static_cast<size_t>(2 * rows * dims), 0.5f);
  rowmax::AttentionState parts[2];
  for (int part = 0; part < 2; ++part) {
    parts[part] = {m.data() + part * rows,
                   l.data() + part * rows,
                   o.data() + part * rows * dims,
                   rows,
                   dims,
                   dims};
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(rowmax::merge(parts, 2, parts[0]).ok());
    for (int64_t row = 0; row < rows; ++row) {
      l[static_cast<size_t>(row)] = 1.0f;
    }
  }
  state.SetBytesProcessed(state.iterations() * rows * (dims + 2) * 4 * 3);
}
BENCHMARK(merge_states)->Arg(64)->Arg(4096);

}  // namespace

BENCHMARK_MAIN();
