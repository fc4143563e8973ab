#include "kernels.h"

namespace rowmax::test {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 2048;

// The finaliser of SplitMix64.
__device__ uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ int64_t first_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t index_step() { return int64_t{gridDim.x} * blockDim.x; }

__global__ void fill_bf16_kernel(uint16_t* data, int64_t elements, uint64_t seed) {
  for (int64_t i = first_index(); i < elements; i += index_step()) {
    const float value = static_cast<float>(mixed(seed * 0x9E3779B97F4A7C15ull + i) >> 40) *
                            (4.0f / (1 << 24)) -
                        2.0f;
    data[i] = static_cast<uint16_t>(__float_as_uint(value) >> 16);
  }
}

__global__ void count_differences_kernel(const uint4* a, const uint4* b, int64_t words,
                                         unsigned long long* count) {
  unsigned long long different = 0;
  for (int64_t i = first_index(); i < words; i += index_step()) {
    const uint4 x = a[i];
    const uint4 y = b[i];
    different += x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w;
  }
  if (different != 0) {
    atomicAdd(count, different);
  }
}

__global__ void count_written_kernel(const uint4* data, int64_t words, unsigned long long* count) {
  unsigned long long written = 0;
  for (int64_t i = first_index(); i < words; i += index_step()) {
    const uint4 x = data[i];
    written += (x.x & x.y & x.z & x.w) != 0xffffffffu;
  }
  if (written != 0) {
    atomicAdd(count, written);
  }
}

__global__ void copy_rows_kernel(const RowCopy copy) {
  const int64_t rows = copy.sizes[0] * copy.sizes[1] * copy.sizes[2];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t at[3] = {row / (copy.sizes[1] * copy.sizes[2]),
                           row / copy.sizes[2] % copy.sizes[1], row % copy.sizes[2]};
    char* to = copy.to;
    const char* from = copy.from;
    for (int axis = 0; axis < 3; ++axis) {
      to += at[axis] * copy.to_strides[axis];
      from += at[axis] * copy.from_strides[axis];
    }
    for (int64_t i = threadIdx.x; i < copy.row_bytes / 2; i += blockDim.x) {
      reinterpret_cast<uint16_t*>(to)[i] =
          copy.from != nullptr ? reinterpret_cast<const uint16_t*>(from)[i] : 0xffff;
    }
  }
}

__global__ void spin_kernel(int64_t clocks) {
  const int64_t begin = clock64();
  while (clock64() - begin < clocks) {
  }
}

__global__ void fault_kernel() { __trap(); }

}  // namespace

void fill_bf16(void* data, int64_t elements, uint64_t seed, cudaStream_t stream) {
  fill_bf16_kernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<uint16_t*>(data), elements, seed);
}

void count_differences(const void* a, const void* b, int64_t bytes, unsigned long long* count,
                       cudaStream_t stream) {
  count_differences_kernel<<<kBlocks, kThreads, 0, stream>>>(
      static_cast<const uint4*>(a), static_cast<const uint4*>(b), bytes / 16, count);
}

void count_written(const void* data, int64_t bytes, unsigned long long* count,
                   cudaStream_t stream) {
  count_written_kernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data),
                                                         bytes / 16, count);
}

void copy_rows(const RowCopy& copy, cudaStream_t stream) {
  copy_rows_kernel<<<kBlocks, kThreads, 0, stream>>>(copy);
}

void spin(int blocks, int64_t clocks, cudaStream_t stream) {
  spin_kernel<<<blocks, 32, 0, stream>>>(clocks);
}

void fault(cudaStream_t stream) { fault_kernel<<<1, 1, 0, stream>>>(); }

}  // namespace rowmax::test
