// AttentionProblem: what is to be computed, as plain data. No pointers, no length values: a problem
// is a key for planning and caching. The rules are in docs/semantics.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rowmax/dtype.h"
#include "rowmax/export.h"
#include "rowmax/status.h"

namespace rowmax {

enum class Op : int { kForward = 0, kBackward = 1 };

// One end of a band. Unbounded is a value of its own, not a number.
class Bound {
 public:
  constexpr Bound() = default;  // unbounded
  static constexpr Bound unbounded() { return {}; }
  static constexpr Bound at(int64_t value) {
    Bound bound;
    bound.bounded_ = true;
    bound.value_ = value;
    return bound;
  }
  constexpr bool bounded() const { return bounded_; }
  constexpr int64_t value() const { return value_; }  // meaningful when bounded()
  friend constexpr bool operator==(const Bound&, const Bound&) = default;

 private:
  bool bounded_ = false;
  int64_t value_ = 0;
};

// Which end of the key axis the diagonal is tied to.
enum class Alignment : int { kBottomRight = 0, kTopLeft = 1 };

// Key j is visible to row i iff  i + shift - left <= j <= i + shift + right,  both ends included,
// where shift = Sk - Sq (bottom-right) or 0 (top-left), with the lengths of the sequence at hand.
// Negative bounds are honoured as offsets.
struct Band {
  Bound left;
  Bound right;
  Alignment alignment = Alignment::kBottomRight;

  static constexpr Band full() { return {}; }
  static constexpr Band causal() { return {Bound::unbounded(), Bound::at(0)}; }
  static constexpr Band window(int64_t left, int64_t right) {
    return {Bound::at(left), Bound::at(right)};
  }
  constexpr bool is_full() const { return !left.bounded() && !right.bounded(); }
  friend constexpr bool operator==(const Band&, const Band&) = default;
};

// The band whose visible set is the intersection of both (the tighter bound at each end).
ROWMAX_API Band intersect(const Band& a, const Band& b);

// Where the rows of a side live.
enum class Source : int {
  kDense = 0,   // (B, S, H, D)
  kRagged = 1,  // (total, H, D) with cu_seqlens (B + 1)
  kPaged = 2,   // keys only: (pages, page_size, H, D) with block_table (B, max_pages)
};

// Sizes. For ragged and paged sides seqlen_* is an upper bound of the sequence lengths.
struct Sizes {
  int64_t batch = 1;
  int64_t heads_q = 1;
  int64_t heads_kv = 1;
  int64_t seqlen_q = 1;
  int64_t seqlen_k = 1;
  int64_t head_dim = 64;    // of Q and K
  int64_t head_dim_v = 64;  // of V and O
  friend bool operator==(const Sizes&, const Sizes&) = default;
};

// How sequences are stored.
struct Storage {
  Source query = Source::kDense;
  Source key = Source::kDense;
  int64_t total_q = 0;     // rows of a ragged query tensor, the tail past cu_seqlens[B] included
  int64_t total_k = 0;     // rows of ragged key and value tensors
  int64_t page_size = 0;   // paged keys: slots of a page, >= 1
  int64_t num_pages = 0;   // paged keys: pages in the pool
  int64_t max_pages = 0;   // paged keys: columns of the block table
  bool seqused_q = false;  // a (B) tensor of used query lengths is given
  bool seqused_k = false;  // a (B) tensor of used key lengths is given; needed for paged keys
  friend bool operator==(const Storage&, const Storage&) = default;
};

// Shape of a boolean mask or an additive bias: each axis of (B, Hq, Sq, Sk) is full or broadcast.
struct BroadcastShape {
  bool present = false;
  DType dtype = DType::kBool;  // kBool for a mask; any floating type for a bias
  bool batch = false;          // true: the axis has its full size; false: size 1
  bool heads = false;
  bool rows = false;
  bool cols = false;
  friend bool operator==(const BroadcastShape&, const BroadcastShape&) = default;
};

// Everything that changes a score after the product, besides the band.
struct ScoreOptions {
  double scale = 0.0;    // 0: 1 / sqrt(head_dim)
  double softcap = 0.0;  // 0: none; else 1e-30 to 1e30
  BroadcastShape mask;   // boolean, true = visible
  BroadcastShape bias;   // additive, converted by value
  bool alibi = false;    // slopes (Hq) or (B, Hq), fp32
  bool alibi_per_batch = false;
  bool document_ids = false;  // key j visible to row i iff their ids are equal
  bool block_mask = false;    // refused by name for now
  bool sinks = false;         // a logit per query head, fp32, in the denominator only
  double dropout_p = 0.0;
  friend bool operator==(const ScoreOptions&, const ScoreOptions&) = default;
};

// What backward computes; `dlse` says that a gradient of LSE comes in.
struct Gradients {
  bool dq = true;
  bool dk = true;
  bool dv = true;
  bool dbias = false;
  bool dsinks = false;
  bool dslopes = false;
  bool dlse = false;
  friend bool operator==(const Gradients&, const Gradients&) = default;
};

// What is to be computed; see the file comment.
struct AttentionProblem {
  Op op = Op::kForward;
  DType dtype = DType::kF32;      // of Q, K, V (and dO, dQ, dK, dV)
  DType out_dtype = DType::kF32;  // of O: dtype, or kF32 for partial results that will be merged
  Sizes sizes;
  Storage storage;
  Band band;
  ScoreOptions score;
  Gradients gradients;  // backward only
  bool lse = true;      // forward: LSE is written. Backward always reads it.
  // A row's bits do not depend on what else is in the batch, on one device: the tiles of forward
  // follow its caches.
  bool batch_invariant = false;
  friend bool operator==(const AttentionProblem&, const AttentionProblem&) = default;

  // scale, or its default 1 / sqrt(head_dim).
  ROWMAX_API double effective_scale() const;
};

// OK, or the first broken rule with the argument's name, its value and what is accepted.
ROWMAX_API Status validate(const AttentionProblem& problem);

// The text form, one word per fact, e.g. "forward bf16 b2 hq8 hkv2 sq113 sk203 d128 causal".
// Grammar: docs/testing.md. parse(to_string(p)) == p for every valid problem.
ROWMAX_API std::string to_string(const AttentionProblem& problem);
ROWMAX_API Result<AttentionProblem> parse_problem(std::string_view text);

// Exact work of a problem whose sequences all have the given upper-bound lengths.
struct WorkCount {
  int64_t visible_pairs = 0;  // (row, key) pairs inside the band, over batch and query heads
  double flops = 0.0;         // forward 2 (D + Dv) a pair, backward 2 (3 D + 2 Dv) a pair
  double bytes = 0.0;         // inputs read once and outputs written once
};
// Exact for dense batches; bounds of ragged ones, whose lengths a problem does not hold.
ROWMAX_API WorkCount count_work(const AttentionProblem& problem);

}  // namespace rowmax
