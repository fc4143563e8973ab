// State (m, l, O): the partial result of attention over any set of keys, and its monoid.
// Source: docs/architecture.md ("One idea"); online softmax as an associative operator.
#pragma once

#include "rowmax/export.h"
#include "rowmax/status.h"
#include "rowmax/tensor.h"

namespace rowmax {

// Memory: outputs may not share it with each other or with an input. The exception is in place: the
// output is that input, pointer and row stride (m or lse for m or lse, o or out for o or out, l for
// l). Everything else is refused by name, and nothing is written.

// Views of one state of `rows` rows and `dims` values a row, fp32.
//   m (rows): reference of the exponentials, natural-log units; -inf for an empty row
//   l (rows): sum of exp(score - m); 0 for an empty row
//   o (rows, dims): sum of exp(score - m) * v, not normalised; rows may have any stride
struct AttentionState {
  float* m = nullptr;
  float* l = nullptr;
  float* o = nullptr;
  int64_t rows = 0;
  int64_t dims = 0;
  int64_t o_stride = 0;  // elements between rows of o
};

// into := parts[0] + ... + parts[count - 1], folded left to right. `into` may be one of the parts.
// Stable for any finite or -inf statistics; merging with an empty state returns the other bit for
// bit; empty with empty is empty. Sinks never enter here.
ROWMAX_API Status merge(const AttentionState* parts, int count, const AttentionState& into);

// Reads a normalised output and its LSE as a state: m = lse, l = 1, o = out (l = 0 where lse is
// -inf), also in place. A finalised LSE that contains a sink must not come back this way.
ROWMAX_API Status state_from_output(const float* out, int64_t out_stride, const float* lse,
                                    const AttentionState& into);

// out = o / (l + exp(sink - m)), lse = m + log(l + exp(sink - m)); `sinks` has one logit per row or
// is null. Empty rows: out = 0, lse = -inf or the sink. `lse` may be null. Also in place.
ROWMAX_API Status finalize(const AttentionState& state, const float* sinks, float* out,
                           int64_t out_stride, float* lse);

}  // namespace rowmax
