// A case: a problem plus everything that fixes its tensors. One text form for tests, bench and the
// command line: the problem's words (docs/testing.md) and
//   seed7                       seed of every random value (default 1)
//   inputs=gaussian|large|near-100|minus5e5|equal|onekey|outlier|nansequence
//   strides=contiguous|fused_qkv|bhsd|broadcast_kv|padded|aligned
//   lengths=random|full|zero|one of ragged sequences and used lengths
//   qlens=1,5,3  klens=0,700,64 exact lengths instead
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rowmax/problem.h"
#include "rowmax/status.h"

namespace rowmax::testkit {

enum class InputKind : int {
  kGaussian = 0,
  kLarge,     // logits of a few hundred; biases hold the lowest finite value here and there
  kNear100,   // every logit near -100
  kMinus5e5,  // every logit near -5e5: LSE keeps a few percent of a unit only
  kEqual,     // all rows equal and large
  kOneKey,    // one key of each sequence takes nearly all the weight
  kOutlier,   // a few channels and tokens far larger than the rest
  // Forward: Q, K and V of the second sequence are NaN, the others gaussian. Its rows must each see
  // a key: what NaN does to a row without one is not fixed where others see that key. Case texts
  // with shared K and V, a mask or documents are refused, inputs with a row without keys.
  kNanSequence,
};
inline constexpr int kInputKindCount = 8;
inline constexpr int kFiniteInputKindCount = kInputKindCount - 1;  // the kinds before kNanSequence

enum class StrideKind : int {
  kContiguous = 0,
  kFusedQkv,     // q, k, v (and dq, dk, dv) are slices of one buffer where the shapes allow it
  kBhsd,         // heads before positions in memory
  kBroadcastKv,  // heads or batch elements share the memory of K and V
  kPadded,       // gaps after every head and row, odd offsets
  kAligned,      // the same, but every row starts at a multiple of 16 bytes
};
inline constexpr int kStrideKindCount = 6;

enum class LengthKind : int { kRandom = 0, kFull, kZero, kOne };
inline constexpr int kLengthKindCount = 4;

const char* to_string(InputKind kind);
const char* to_string(StrideKind kind);
const char* to_string(LengthKind kind);

struct Case {
  AttentionProblem problem;
  uint64_t seed = 1;
  InputKind inputs = InputKind::kGaussian;
  StrideKind strides = StrideKind::kContiguous;
  LengthKind lengths = LengthKind::kRandom;
  std::vector<int64_t> query_lengths;  // (B) or empty
  std::vector<int64_t> key_lengths;    // (B) or empty
};

std::string to_string(const Case& spec);

// Reads a case. Each fact may be stated once, and a word whose request the case cannot honour is
// refused: qlens without ragged or used query lengths, and what check_words refuses.
Result<Case> parse_case(std::string_view text);

// Refuses words of a problem that change nothing: topleft without a band or ALiBi, dlse where only
// dv is computed.
Status check_words(const AttentionProblem& problem);

// Takes from a drawn case what parse_case would refuse as having no effect.
void drop_idle_words(Case* spec);

// One case a line; empty lines and lines that start with # are skipped.
Result<std::vector<Case>> parse_cases(std::string_view text);

}  // namespace rowmax::testkit
