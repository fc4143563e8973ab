// The machine's own limits, measured beside the library: an FMA loop without memory operands and a
// streaming read. Called from compare_cpu.py.
#include <omp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

typedef float Vector __attribute__((vector_size(32)));

// Twelve independent accumulators of eight floats: two FMAs a cycle hide the latency. GFLOP/s.
double fma_loop(int64_t steps) {
  const Vector x = Vector{} + 1.0000001f;
  const Vector y = Vector{} + 1e-9f;
  Vector acc[12];
  for (int i = 0; i < 12; ++i) {
    acc[i] = Vector{} + static_cast<float>(i);
  }
  const double start = seconds();
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) {
      acc[i] = acc[i] * x + y;
    }
  }
  const double elapsed = seconds() - start;
  Vector total = acc[0];
  for (int i = 1; i < 12; ++i) {
    total += acc[i];
  }
  volatile float sink = total[0];
  (void)sink;
  return 2.0 * 12 * 8 * static_cast<double>(steps) / elapsed * 1e-9;
}

}  // namespace

extern "C" {

// GFLOP/s of the FMA loop summed over `threads` threads.
double rowmax_yardstick_fma(int threads) {
  double total = 0.0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
  total += fma_loop(400000);
  return total;
}

// GB/s of a streaming read of `bytes` by `threads` threads.
double rowmax_yardstick_read(int threads, size_t bytes) {
  static std::vector<float> buffer;
  buffer.resize(bytes / sizeof(float), 1.0f);
  float total = 0.0f;
  const double start = seconds();
#pragma omp parallel for num_threads(threads) reduction(+ : total) schedule(static)
  for (size_t block = 0; block < buffer.size() / 4096; ++block) {
    Vector sum{};
    const float* p = buffer.data() + block * 4096;
    for (size_t i = 0; i < 4096; i += 8) {
      Vector x;
      __builtin_memcpy(&x, p + i, sizeof(x));
      sum += x;
    }
    total += sum[0];
  }
  const double elapsed = seconds() - start;
  volatile float sink = total;
  (void)sink;
  return static_cast<double>(buffer.size() * sizeof(float)) / elapsed * 1e-9;
}

}  // extern "C"
