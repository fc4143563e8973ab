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

// The values `stride` apart, with numbers between them that nothing may read.
template <class Int>
std::vector<Int> apart(const std::vector<Int>& values, int64_t stride) {
  std::vector<Int> out;
  for (const Int value : values) {
    out.resize(out.size() + static_cast<size_t>(stride), Int{-77});
    out[out.size() - static_cast<size_t>(stride)] = value;
  }
  return out;
}

// Whether cu_q, cu_k, used_q and used_k are there: bits of `present`.
template <class Int>
void expect_same(const std::vector<Int>& dense_offsets, const std::vector<Int>& dense_used,
                 int present, int64_t stride) {
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
  const std::vector<Int> offsets = apart(dense_offsets, stride);
  const std::vector<Int> used = apart(dense_used, stride);
  const auto put = [&](int bit, const std::vector<Int>& values, IndexArg& on_host,
                       cuda::tile::IndexArray& on_device) {
    if ((present >> bit & 1) != 0) {
      on_host = {values.data(), kWide, stride};
      on_device = {values.data(), stride, kWide};
    }
  };
  put(0, offsets, host.sequence.cu_q, device.cu_q);
  put(1, offsets, host.sequence.cu_k, device.cu_k);
  put(2, used, host.sequence.used_q, device.used_q);
  put(3, used, host.sequence.used_k, device.used_k);
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
      {0, 10, 10, 30, 70, 90, 100},
      {0, 10, 5, 30, 30, 20, 100},                // decreasing
      {0, 500, 501, 600, 700, 800, 900},          // beyond the storage
      {-5, -3, 0, 0, 99, 100, 2147483647},        // negative, and the largest
      {0, 100, 100, 100, 100, 100, -2147483647},  // longer than the bound
  };
  const std::vector<std::vector<Int>> all_used = {{0, 1, 40, 41, 7, 3},
                                                  {-1, 1000, 2147483647, -2147483647, 0, 1}};
  for (const std::vector<Int>& offsets : all_offsets) {
    for (const std::vector<Int>& used : all_used) {
      for (int present = 0; present < 16; ++present) {
        SCOPED_TRACE(present);
        expect_same(offsets, used, present, 1);
        expect_same(offsets, used, present, 3);
      }
    }
  }
}

TEST(CudaLengths, EqualTheHosts) {
  expect_same_for_all<int32_t>();
  expect_same_for_all<int64_t>();
}

}  // namespace
}  // namespace rowmax::test
