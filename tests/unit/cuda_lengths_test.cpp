// Lengths as GPU kernels read them equal those of the host, whatever the offsets say.
#include <gtest/gtest.h>

#include <vector>

#include "backend/cuda/tile/lengths.cuh"
#include "kernel_api/args.h"

namespace rowmax::test {
namespace {

constexpr int kBatch = 6;
constexpr int kTotal = 100;
constexpr int kBound = 40;

template <class Int>
void expect_same(const std::vector<Int>& offsets, const std::vector<Int>& used) {
  constexpr bool kWide = sizeof(Int) == 8;
  AttentionArgs host;
  host.shape.batch = kBatch;
  host.shape.seqlen_q = kBound;
  host.shape.seqlen_k = kBound + 3;
  host.sequence.total_q = kTotal;
  host.sequence.total_k = kTotal - 7;
  cuda::tile::LengthArgs device;
  device.seqlen_q = kBound;
  device.seqlen_k = kBound + 3;
  device.total_q = kTotal;
  device.total_k = kTotal - 7;
  if (!offsets.empty()) {
    host.sequence.cu_q = host.sequence.cu_k = {offsets.data(), kWide, 1};
    device.cu_q = device.cu_k = {offsets.data(), 1, kWide};
  }
  if (!used.empty()) {
    host.sequence.used_q = host.sequence.used_k = {used.data(), kWide, 1};
    device.used_q = device.used_k = {used.data(), 1, kWide};
  }
  for (int b = 0; b < kBatch; ++b) {
    SCOPED_TRACE(b);
    const SequenceExtent expected = sequence_extent(host, b);
    const cuda::tile::Extent got = cuda::tile::extent(device, b);
    EXPECT_EQ(got.q_begin, expected.q_begin);
    EXPECT_EQ(got.q_len, expected.q_len);
    EXPECT_EQ(got.k_begin, expected.k_begin);
    EXPECT_EQ(got.k_len, expected.k_len);
    EXPECT_EQ(cuda::tile::query_length(device, b), expected.q_len);
  }
}

template <class Int>
void expect_same_for_all() {
  const std::vector<std::vector<Int>> all_offsets = {
      {},
      {0, 10, 10, 30, 70, 90, 100},
      {0, 10, 5, 30, 30, 20, 100},                // decreasing
      {0, 500, 501, 600, 700, 800, 900},          // beyond the storage
      {-5, -3, 0, 0, 99, 100, 2147483647},        // negative, and the largest
      {0, 100, 100, 100, 100, 100, -2147483647},  // longer than the bound
  };
  const std::vector<std::vector<Int>> all_used = {
      {}, {0, 1, 40, 41, 7, 3}, {-1, 1000, 2147483647, -2147483647, 0, 1}};
  for (const std::vector<Int>& offsets : all_offsets) {
    for (const std::vector<Int>& used : all_used) {
      expect_same(offsets, used);
    }
  }
}

TEST(CudaLengths, EqualTheHosts) {
  expect_same_for_all<int32_t>();
  expect_same_for_all<int64_t>();
}

}  // namespace
}  // namespace rowmax::test
