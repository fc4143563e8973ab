// Band -> key ranges, one row or a block of rows at a time. Shared by every backend and the tests.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define ROWMAX_HOST_DEVICE __host__ __device__
#else
#define ROWMAX_HOST_DEVICE
#endif
#define ROWMAX_FORCE_INLINE ROWMAX_HOST_DEVICE inline __attribute__((always_inline))

namespace rowmax {

// A band with the sequence's lengths resolved: key j is visible to row i iff
// i + lo <= j <= i + hi (each end only where bounded). Plain data.
struct RowBand {
  int64_t lo = 0;
  int64_t hi = 0;
  bool has_lo = false;
  bool has_hi = false;
};

// Half-open range of keys.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Band as plain data, before the lengths are known (see rowmax::Band for the rule).
struct BandArgs {
  int64_t left = 0;
  int64_t right = 0;
  bool has_left = false;
  bool has_right = false;
  bool top_left = false;
};

// Offsets beyond +-kBandLimit act like it: sums with int32-sized lengths then stay in range.
inline constexpr int64_t kBandLimit = int64_t{1} << 60;

ROWMAX_FORCE_INLINE int64_t clamp_offset(int64_t x) {
  return x > kBandLimit ? kBandLimit : x < -kBandLimit ? -kBandLimit : x;
}

ROWMAX_FORCE_INLINE RowBand resolve_band(const BandArgs& band, int64_t seqlen_q, int64_t seqlen_k) {
  const int64_t shift = band.top_left ? 0 : seqlen_k - seqlen_q;
  RowBand out;
  out.has_lo = band.has_left;
  out.has_hi = band.has_right;
  out.lo = band.has_left ? shift - clamp_offset(band.left) : 0;
  out.hi = band.has_right ? shift + clamp_offset(band.right) : 0;
  return out;
}

// Keys visible to row i, inside [0, seqlen_k). Empty ranges have begin == end.
ROWMAX_FORCE_INLINE KeyRange row_keys(const RowBand& band, int64_t row, int64_t seqlen_k) {
  int64_t begin = band.has_lo ? row + band.lo : 0;
  int64_t end = band.has_hi ? row + band.hi + 1 : seqlen_k;
  begin = begin < 0 ? 0 : begin > seqlen_k ? seqlen_k : begin;
  end = end > seqlen_k ? seqlen_k : end < begin ? begin : end;
  return {begin, end};
}

// Smallest range that holds every key visible to some row of [row_begin, row_end). Empty when no
// row of the block sees a key. Rows need row_begin < row_end.
ROWMAX_FORCE_INLINE KeyRange block_keys(const RowBand& band, int64_t row_begin, int64_t row_end,
                                        int64_t seqlen_k) {
  int64_t begin = band.has_lo ? row_begin + band.lo : 0;
  int64_t end = band.has_hi ? row_end - 1 + band.hi + 1 : seqlen_k;
  begin = begin < 0 ? 0 : begin > seqlen_k ? seqlen_k : begin;
  end = end > seqlen_k ? seqlen_k : end < begin ? begin : end;
  if (band.has_lo && band.has_hi && band.hi < band.lo) {
    end = begin;
  }
  return {begin, end};
}

// Smallest range of rows in [0, seqlen_q) that may see a key of [key_begin, key_end).
ROWMAX_FORCE_INLINE KeyRange block_rows(const RowBand& band, int64_t key_begin, int64_t key_end,
                                        int64_t seqlen_q) {
  int64_t begin = band.has_hi ? key_begin - band.hi : 0;
  int64_t end = band.has_lo ? key_end - 1 - band.lo + 1 : seqlen_q;
  begin = begin < 0 ? 0 : begin > seqlen_q ? seqlen_q : begin;
  end = end > seqlen_q ? seqlen_q : end < begin ? begin : end;
  return {begin, end};
}

// True when every key of [key_begin, key_end) is visible to every row of [row_begin, row_end).
ROWMAX_FORCE_INLINE bool block_is_clean(const RowBand& band, int64_t row_begin, int64_t row_end,
                                        int64_t key_begin, int64_t key_end) {
  return (!band.has_lo || row_end - 1 + band.lo <= key_begin) &&
         (!band.has_hi || key_end - 1 <= row_begin + band.hi);
}

}  // namespace rowmax
