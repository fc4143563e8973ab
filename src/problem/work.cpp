// Exact counts of a problem's work.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "problem/band.h"
#include "rowmax/problem.h"

namespace rowmax {
namespace {

// Sum over i in [0, n) of clamp(i + offset, 0, limit). At most n * limit, which the caller knows to
// fit; the doubled series fits 64 unsigned bits.
int64_t sum_of_clamped(int64_t n, int64_t offset, int64_t limit) {
  const int64_t ramp_begin = std::clamp<int64_t>(-offset, 0, n);
  const int64_t ramp_end = std::clamp<int64_t>(limit - offset, ramp_begin, n);
  const int64_t at_limit = n - ramp_end;
  uint64_t ramp = 0;
  if (ramp_end > ramp_begin) {
    const uint64_t first = static_cast<uint64_t>(ramp_begin + offset);
    const uint64_t last = static_cast<uint64_t>(ramp_end - 1 + offset);
    ramp = (first + last) * static_cast<uint64_t>(ramp_end - ramp_begin) / 2;
  }
  return static_cast<int64_t>(ramp) + at_limit * limit;
}

int64_t visible_pairs_of_head(const Band& band, int64_t seqlen_q, int64_t seqlen_k) {
  BandArgs args;
  args.left = band.left.value();
  args.right = band.right.value();
  args.has_left = band.left.bounded();
  args.has_right = band.right.bounded();
  args.top_left = band.alignment == Alignment::kTopLeft;
  const RowBand rows = resolve_band(args, seqlen_q, seqlen_k);
  if (rows.has_lo && rows.has_hi && rows.hi < rows.lo) {
    return 0;
  }
  const int64_t ends =
      rows.has_hi ? sum_of_clamped(seqlen_q, rows.hi + 1, seqlen_k) : seqlen_q * seqlen_k;
  const int64_t begins = rows.has_lo ? sum_of_clamped(seqlen_q, rows.lo, seqlen_k) : 0;
  return ends - begins;
}

double elements_of(const BroadcastShape& shape, const Sizes& sizes) {
  if (!shape.present) {
    return 0.0;
  }
  return (shape.batch ? static_cast<double>(sizes.batch) : 1.0) *
         (shape.heads ? static_cast<double>(sizes.heads_q) : 1.0) *
         (shape.rows ? static_cast<double>(sizes.seqlen_q) : 1.0) *
         (shape.cols ? static_cast<double>(sizes.seqlen_k) : 1.0);
}

double bytes_of(const BroadcastShape& shape, const Sizes& sizes) {
  return elements_of(shape, sizes) * static_cast<double>(size_of(shape.dtype));
}

double count_bytes(const AttentionProblem& problem) {
  const Sizes& s = problem.sizes;
  const ScoreOptions& score = problem.score;
  const Gradients& grad = problem.gradients;
  const bool backward = problem.op == Op::kBackward;
  const double element = static_cast<double>(size_of(problem.dtype));
  const double statistic = problem.dtype == DType::kF64 ? 8.0 : 4.0;
  const double rows = static_cast<double>(s.batch) * static_cast<double>(s.heads_q) *
                      static_cast<double>(s.seqlen_q);
  const double keys = static_cast<double>(s.batch) * static_cast<double>(s.heads_kv) *
                      static_cast<double>(s.seqlen_k);
  const double d = static_cast<double>(s.head_dim);
  const double dv = static_cast<double>(s.head_dim_v);
  const double slopes = score.alibi
                            ? static_cast<double>(s.heads_q) *
                                  (score.alibi_per_batch ? static_cast<double>(s.batch) : 1.0) * 4.0
                            : 0.0;
  const double sinks = score.sinks ? static_cast<double>(s.heads_q) * 4.0 : 0.0;

  double bytes = (rows * d + keys * (d + dv)) * element;                 // Q, K, V
  bytes += rows * dv * static_cast<double>(size_of(problem.out_dtype));  // O
  bytes += backward || problem.lse ? rows * statistic : 0.0;             // LSE
  bytes += bytes_of(score.mask, s) + bytes_of(score.bias, s) + slopes + sinks;
  if (score.document_ids) {
    bytes += static_cast<double>(s.batch) *
             (static_cast<double>(s.seqlen_q) + static_cast<double>(s.seqlen_k)) * 4.0;
  }
  if (backward) {
    bytes += rows * dv * element;  // dO
    bytes += grad.dq ? rows * d * element : 0.0;
    bytes += grad.dk ? keys * d * element : 0.0;
    bytes += grad.dv ? keys * dv * element : 0.0;
    bytes += grad.dlse ? rows * statistic : 0.0;
    bytes += grad.dbias ? bytes_of(score.bias, s) : 0.0;
    bytes += grad.dsinks ? sinks : 0.0;
    bytes += grad.dslopes ? slopes : 0.0;
  }
  return bytes;
}

}  // namespace

double AttentionProblem::effective_scale() const {
  return score.scale != 0.0 ? score.scale : 1.0 / std::sqrt(static_cast<double>(sizes.head_dim));
}

WorkCount count_work(const AttentionProblem& problem) {
  const Sizes& s = problem.sizes;
  WorkCount work;
  work.visible_pairs =
      s.batch * s.heads_q * visible_pairs_of_head(problem.band, s.seqlen_q, s.seqlen_k);
  const double dims =
      problem.op == Op::kBackward
          ? 3.0 * static_cast<double>(s.head_dim) + 2.0 * static_cast<double>(s.head_dim_v)
          : static_cast<double>(s.head_dim) + static_cast<double>(s.head_dim_v);
  work.flops = 2.0 * dims * static_cast<double>(work.visible_pairs);
  work.bytes = count_bytes(problem);
  return work;
}

}  // namespace rowmax
