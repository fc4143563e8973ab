// Kernels of the tests. All return at once; errors show in the caller's next check.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rowmax::test {

// bf16 values in (-2, 2), deterministic from the seed and the index of the element.
void fill_bf16(void* data, int64_t elements, uint64_t seed, cudaStream_t stream);

// Adds to *count the 16-byte words in which two arrays differ.
void count_differences(const void* a, const void* b, int64_t bytes, unsigned long long* count,
                       cudaStream_t stream);

// Adds to *count the 16-byte words that are not all ones.
void count_written(const void* data, int64_t bytes, unsigned long long* count, cudaStream_t stream);

// Rows of elements on three outer axes, two bytes at a time. Without a source they become poison.
struct RowCopy {
  int64_t sizes[3] = {1, 1, 1};
  int64_t row_bytes = 0;
  char* to = nullptr;
  int64_t to_strides[3] = {};  // bytes
  const char* from = nullptr;
  int64_t from_strides[3] = {};
};
void copy_rows(const RowCopy& copy, cudaStream_t stream);

// Keeps `blocks` blocks busy for so many clocks.
void spin(int blocks, int64_t clocks, cudaStream_t stream);

// Ends with an error that no later call of the process recovers from.
void fault(cudaStream_t stream);

}  // namespace rowmax::test
