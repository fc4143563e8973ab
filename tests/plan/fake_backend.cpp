#include "fake_backend.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace rowmax::test {
namespace {

Status supports(const AttentionProblem& problem, const KernelConfig& config) {
  if (problem.score.block_mask) {
    return Status::unsupported("block masks are not served");
  }
  if (config.compute == Compute::kF32 && problem.dtype == DType::kF64) {
    return Status::unsupported("computes in f32, dtype is f64");
  }
  const int64_t rows = problem.sizes.seqlen_q * (problem.sizes.heads_q / problem.sizes.heads_kv);
  if (config.max_rows > 0 && rows > config.max_rows) {
    return Status::unsupported("too many query rows");
  }
  return {};
}

Status supports_all(const AttentionProblem& /*problem*/, const KernelConfig& /*config*/) {
  return {};
}

size_t thread_bytes(const AttentionProblem& problem, const KernelConfig& config,
                    const Schedule& /*schedule*/) {
  return static_cast<size_t>(config.tile_k * problem.sizes.head_dim) * sizeof(float) + 4;
}

void run(const KernelLaunch& /*launch*/, int /*worker*/) {}

constexpr KernelEntry row(const char* name, StepKind step, Isa isa, Compute compute, int tile_q,
                          int tile_k, int max_rows = 0) {
  KernelEntry entry;
  entry.config = {name, step, isa, compute, tile_q, tile_k, max_rows};
  entry.supports = supports;
  entry.thread_bytes = thread_bytes;
  entry.run = run;
  return entry;
}

constexpr Isa kPortable = Isa::kPortable;
constexpr Isa kAvx2 = Isa::kAvx2;
constexpr Compute kF32 = Compute::kF32;
constexpr Compute kF64 = Compute::kF64;

// Helpers of avx2 come last, so that a prefix of the array goes without them.
const KernelEntry kRows[] = {
    row("forward_f64_portable", StepKind::kForward, kPortable, kF64, 32, 128),
    row("forward_f32_portable", StepKind::kForward, kPortable, kF32, 32, 128),
    row("forward_f32_avx2", StepKind::kForward, kAvx2, kF32, 64, 256),
    row("decode_f64_portable", StepKind::kDecode, kPortable, kF64, 16, 64, 16),
    row("decode_f32_portable", StepKind::kDecode, kPortable, kF32, 16, 64, 16),
    row("decode_f32_avx2", StepKind::kDecode, kAvx2, kF32, 16, 64, 16),
    row("backward_f64_portable", StepKind::kBackward, kPortable, kF64, 32, 64),
    row("backward_f32_portable", StepKind::kBackward, kPortable, kF32, 32, 64),
    row("backward_f32_avx2", StepKind::kBackward, kAvx2, kF32, 64, 64),
    row("combine_f64_portable", StepKind::kCombine, kPortable, kF64, 64, 0),
    row("combine_f32_portable", StepKind::kCombine, kPortable, kF32, 64, 0),
    row("row_stats_f64_portable", StepKind::kRowStats, kPortable, kF64, 0, 0),
    row("row_stats_f32_portable", StepKind::kRowStats, kPortable, kF32, 0, 0),
    row("bias_gradient_f64_portable", StepKind::kBiasGradient, kPortable, kF64, 32, 64),
    row("bias_gradient_f32_portable", StepKind::kBiasGradient, kPortable, kF32, 32, 64),
    row("reduce_f64_portable", StepKind::kReduce, kPortable, kF64, 64, 0),
    row("reduce_f32_portable", StepKind::kReduce, kPortable, kF32, 64, 0),
    row("combine_f32_avx2", StepKind::kCombine, kAvx2, kF32, 64, 0),
    row("row_stats_f32_avx2", StepKind::kRowStats, kAvx2, kF32, 0, 0),
    row("bias_gradient_f32_avx2", StepKind::kBiasGradient, kAvx2, kF32, 64, 64),
    row("reduce_f32_avx2", StepKind::kReduce, kAvx2, kF32, 64, 0),
};
constexpr size_t kAvx2Helpers = 4;

const KernelEntry kReferenceRows[] = {
    {{"reference_forward", StepKind::kForward, kPortable, kF64, 0, 0, 0},
     supports_all,
     nullptr,
     run},
    {{"reference_backward", StepKind::kBackward, kPortable, kF64, 0, 0, 0},
     supports_all,
     nullptr,
     run},
};

const Backend kCpu = {"cpu", false, kRows};
const Backend kCpuWithoutHelpers = {"cpu", false,
                                    std::span(kRows).first(std::size(kRows) - kAvx2Helpers)};
const Backend kForwardOnly = {"cpu", false, std::span(kRows).first(6)};
const KernelEntry kGpuRows[] = {
    {{"gpu_forward", StepKind::kForward, Isa::kSm90, kF32, 128, 128, 0}, supports_all},
};
const Backend kGpu = {"cuda", false, kGpuRows, "cuda"};
const Backend kReference = {"reference", true, kReferenceRows};

}  // namespace

std::span<const Backend* const> fake_backends() {
  static const Backend* const kBackends[] = {&kCpu, &kReference};
  return kBackends;
}

std::span<const Backend* const> fake_backends_without_avx2_helpers() {
  static const Backend* const kBackends[] = {&kCpuWithoutHelpers, &kReference};
  return kBackends;
}

std::span<const Backend* const> fake_forward_only_backends() {
  static const Backend* const kBackends[] = {&kForwardOnly, &kGpu};
  return kBackends;
}

DeviceInfo fake_device(const std::string& isa) {
  DeviceInfo device;
  device.name = "test device";
  device.isa = isa;
  device.l1_bytes = int64_t{32} << 10;
  device.l2_bytes = int64_t{1} << 20;
  device.l3_bytes = int64_t{32} << 20;
  device.cores = 8;
  return device;
}

AttentionProblem problem_of(const std::string& line) {
  const Result<AttentionProblem> problem = parse_problem(line);
  EXPECT_TRUE(problem.ok()) << line << ": " << problem.status().message();
  return problem.value();
}

}  // namespace rowmax::test
