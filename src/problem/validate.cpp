// The rules of a problem, checked in the order of its fields.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "rowmax/problem.h"

namespace rowmax {
namespace {

// Lengths are positions of rows and keys: offsets of a band and dropout counters are derived for
// 32-bit lengths (band.h, philox.h). Totals of ragged storage are not positions and may be larger.
constexpr int64_t kMaxLength = std::numeric_limits<int32_t>::max();

template <class Value>
Status broken(const char* argument, const Value& value, const char* accepted) {
  return Status::invalid(fmt::format("{} is {}; accepted: {}", argument, value, accepted));
}

struct NamedSize {
  const char* name;
  int64_t value;
  int64_t least;
  int64_t most;
};

Status check_sizes(const Sizes& s) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  const NamedSize sizes[] = {
      {"batch", s.batch, 0, kAny},
      {"heads_q", s.heads_q, 1, kAny},
      {"heads_kv", s.heads_kv, 1, kAny},
      {"seqlen_q", s.seqlen_q, 0, kMaxLength},
      {"seqlen_k", s.seqlen_k, 0, kMaxLength},
      {"head_dim", s.head_dim, 1, kAny},
      {"head_dim_v", s.head_dim_v, 1, kAny},
  };
  for (const NamedSize& size : sizes) {
    if (size.value < size.least || size.value > size.most) {
      return Status::invalid(
          size.most == kAny
              ? fmt::format("{} is {}; accepted: at least {}", size.name, size.value, size.least)
              : fmt::format("{} is {}; accepted: {} to {}", size.name, size.value, size.least,
                            size.most));
    }
  }
  if (s.heads_q % s.heads_kv != 0) {
    return Status::invalid(fmt::format(
        "heads_q is {} with heads_kv {}; accepted: a multiple of heads_kv", s.heads_q, s.heads_kv));
  }
  return {};
}

Status check_side(const char* name, Source source, int64_t total, const char* total_name) {
  if (source == Source::kRagged) {
    return total >= 0 ? Status() : broken(total_name, total, "at least 0");
  }
  if (total != 0) {
    return Status::invalid(
        fmt::format("{} is {} while {} is not ragged; accepted: 0", total_name, total, name));
  }
  return {};
}

Status check_pages(const AttentionProblem& p) {
  const Storage& s = p.storage;
  if (s.key != Source::kPaged) {
    if (s.page_size != 0 || s.num_pages != 0 || s.max_pages != 0) {
      return Status::invalid(
          fmt::format("page_size, num_pages, max_pages are {}, {}, {} while storage.key is not "
                      "paged; accepted: 0, 0, 0",
                      s.page_size, s.num_pages, s.max_pages));
    }
    return {};
  }
  if (s.page_size < 1 || s.page_size > kMaxLength) {
    return Status::invalid(
        fmt::format("page_size is {}; accepted: 1 to {}", s.page_size, kMaxLength));
  }
  if (s.num_pages < 0 || s.num_pages > kMaxLength) {  // entries of the block table are int32
    return Status::invalid(
        fmt::format("num_pages is {}; accepted: 0 to {}", s.num_pages, kMaxLength));
  }
  if (s.max_pages < 0 || s.max_pages > kMaxLength) {
    return Status::invalid(
        fmt::format("max_pages is {}; accepted: 0 to {}", s.max_pages, kMaxLength));
  }
  if (p.sizes.seqlen_k > s.page_size * s.max_pages) {
    return Status::invalid(
        fmt::format("seqlen_k is {} with {} pages of {} slots in a block table row; accepted: at "
                    "most page_size * max_pages",
                    p.sizes.seqlen_k, s.max_pages, s.page_size));
  }
  if (!s.seqused_k) {
    return broken("seqused_k", false, "true for paged keys");
  }
  if (p.op != Op::kForward) {
    return broken("op", "backward", "forward for paged keys");
  }
  return {};
}

Status check_storage(const AttentionProblem& p) {
  const Storage& s = p.storage;
  if (s.query == Source::kPaged) {
    return broken("storage.query", "paged", "dense, ragged");
  }
  if (Status status = check_side("storage.query", s.query, s.total_q, "total_q"); !status.ok()) {
    return status;
  }
  if (Status status = check_side("storage.key", s.key, s.total_k, "total_k"); !status.ok()) {
    return status;
  }
  return check_pages(p);
}

// Largest tensor: what x86-64 can have as physical memory. Every tensor below it leaves room for
// the multiples of it that workspaces need (schedule_cpu.cpp: at most 1024 key ranges) in 64 bits.
constexpr int64_t kMostTensorBytes = int64_t{1} << 52;

// Whether a product of sizes that are not negative is at most `most`. Zero factors are taken as
// one: strides of an empty tensor are still products of the other sizes.
bool product_fits(int64_t most, std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor > 1 && __builtin_mul_overflow(product, factor, &product)) {
      return false;
    }
  }
  return product <= most;
}

// Tensors (widened to 8 bytes) must be addressable, the score matrix countable. A ragged side has
// no dense tensor: its lengths are bounds, which only have to be countable.
Status check_products(const AttentionProblem& p) {
  constexpr int64_t kCountable = std::numeric_limits<int64_t>::max();
  const Sizes& s = p.sizes;
  const Storage& t = p.storage;
  const int64_t dim = std::max(s.head_dim, s.head_dim_v);
  const int64_t most_q = t.query == Source::kDense ? kMostTensorBytes : kCountable;
  const int64_t most_k = t.key == Source::kDense ? kMostTensorBytes : kCountable;
  const struct {
    const char* name;
    bool fits;
  } products[] = {
      {"batch * seqlen_q * heads_q * max(head_dim, head_dim_v)",
       product_fits(most_q, {8, s.batch, s.seqlen_q, s.heads_q, dim})},
      {"batch * seqlen_k * heads_kv * max(head_dim, head_dim_v)",
       product_fits(most_k, {8, s.batch, s.seqlen_k, s.heads_kv, dim})},
      {"total_q * heads_q * max(head_dim, head_dim_v)",
       product_fits(kMostTensorBytes, {8, t.total_q, s.heads_q, dim})},
      {"total_k * heads_kv * max(head_dim, head_dim_v)",
       product_fits(kMostTensorBytes, {8, t.total_k, s.heads_kv, dim})},
      {"num_pages * page_size * heads_kv * max(head_dim, head_dim_v)",
       product_fits(kMostTensorBytes, {8, t.num_pages, t.page_size, s.heads_kv, dim})},
      {"batch * heads_q", product_fits(kMostTensorBytes, {8, s.batch, s.heads_q})},
      {"batch * max_pages", product_fits(kMostTensorBytes, {8, s.batch, t.max_pages})},
      {"batch * heads_q * seqlen_q * seqlen_k",
       product_fits(kCountable, {s.batch, s.heads_q, s.seqlen_q, s.seqlen_k})},
  };
  for (const auto& product : products) {
    if (!product.fits) {
      return broken(product.name, "too large",
                    "tensors of at most 2^52 bytes, lengths whose products fit 64 bits");
    }
  }
  return {};
}

Status check_broadcast(const char* name, const BroadcastShape& shape) {
  if (!shape.present && shape != BroadcastShape()) {
    return Status::invalid(fmt::format(
        "{} has axes or a dtype while {}.present is false; accepted: a default shape", name, name));
  }
  return {};
}

// Kernels hold the softcap, its inverse and the slope of its tanh in fp32.
constexpr double kLeastSoftcap = 1e-30;
constexpr double kMostSoftcap = 1e30;
// So is the scale, and scale / softcap, which must be a normal number there.
constexpr double kMostScale = 1e30;
constexpr double kLeastScaleOverSoftcap = 1e-37;
constexpr double kMostScaleOverSoftcap = 1e30;

Status check_score(const AttentionProblem& problem) {
  const ScoreOptions& score = problem.score;
  if (!(std::abs(score.scale) <= kMostScale)) {
    return broken("scale", score.scale, "-1e30 to 1e30 (0: 1 / sqrt(head_dim))");
  }
  // Written so that NaN fails too.
  if (score.softcap != 0.0 && !(score.softcap >= kLeastSoftcap && score.softcap <= kMostSoftcap)) {
    return broken("softcap", score.softcap, "0 (none), 1e-30 to 1e30");
  }
  if (score.softcap != 0.0) {
    const double ratio = std::abs(problem.effective_scale()) / score.softcap;
    if (ratio < kLeastScaleOverSoftcap || ratio > kMostScaleOverSoftcap) {
      return broken("scale / softcap", ratio, "1e-37 to 1e30");
    }
  }
  if (Status status = check_broadcast("mask", score.mask); !status.ok()) {
    return status;
  }
  if (score.mask.present && score.mask.dtype != DType::kBool) {
    return broken("mask dtype", to_string(score.mask.dtype), "bool");
  }
  if (Status status = check_broadcast("bias", score.bias); !status.ok()) {
    return status;
  }
  if (score.bias.present && !is_floating(score.bias.dtype)) {
    return broken("bias dtype", to_string(score.bias.dtype), "f64, f32, bf16, f16");
  }
  if (score.alibi_per_batch && !score.alibi) {
    return broken("alibi_per_batch", true, "false without alibi");
  }
  // Written so that NaN fails too.
  if (!(score.dropout_p >= 0.0 && score.dropout_p <= 1.0)) {
    return broken("dropout_p", score.dropout_p, "0 to 1");
  }
  return {};
}

Status check_gradients(const AttentionProblem& p) {
  const Gradients& g = p.gradients;
  if (p.op == Op::kForward) {
    return g == Gradients() ? Status()
                            : broken("gradients", "not the default", "the default for forward");
  }
  if (!p.lse) {
    return broken("lse", false, "true for backward, which reads it");
  }
  if (g.dbias && !p.score.bias.present) {
    return broken("gradients.dbias", true, "false without a bias");
  }
  if (g.dsinks && !p.score.sinks) {
    return broken("gradients.dsinks", true, "false without sinks");
  }
  if (g.dslopes && !p.score.alibi) {
    return broken("gradients.dslopes", true, "false without alibi");
  }
  if (!(g.dq || g.dk || g.dv || g.dbias || g.dsinks || g.dslopes)) {
    return broken("gradients", "empty", "at least one of dq, dk, dv, dbias, dsinks, dslopes");
  }
  return {};
}

}  // namespace

Status validate(const AttentionProblem& problem) {
  if (!is_floating(problem.dtype)) {
    return broken("dtype", to_string(problem.dtype), "f64, f32, bf16, f16");
  }
  if (problem.out_dtype != problem.dtype && problem.out_dtype != DType::kF32) {
    return Status::invalid(fmt::format("out_dtype is {}; accepted: {} (the dtype), f32",
                                       to_string(problem.out_dtype), to_string(problem.dtype)));
  }
  if (Status status = check_sizes(problem.sizes); !status.ok()) {
    return status;
  }
  if (Status status = check_storage(problem); !status.ok()) {
    return status;
  }
  if (Status status = check_products(problem); !status.ok()) {
    return status;
  }
  if (Status status = check_score(problem); !status.ok()) {
    return status;
  }
  return check_gradients(problem);
}

}  // namespace rowmax
