// What forward and backward of the reference share: element access in fp64, and one row's scores
// and softmax in the order of docs/semantics.md. The test kit derives its error bounds from them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_api/args.h"

namespace rowmax::reference {

// Element `index` of a floating array.
double load(const void* data, DType dtype, int64_t index);
// Stores with one rounding to nearest even (never through an intermediate type).
void store(void* data, DType dtype, int64_t index, double value);

// Offsets in elements of the first value of a row. `i` and `j` are positions in the sequence.
int64_t query_offset(const TensorArg& tensor, const SequenceExtent& extent, int64_t b, int64_t i,
                     int64_t head);
int64_t key_offset(const AttentionArgs& args, const TensorArg& tensor, const SequenceExtent& extent,
                   int64_t b, int64_t j, int64_t head_kv);
int64_t row_offset(const RowArg& tensor, const SequenceExtent& extent, int64_t b, int64_t i,
                   int64_t head);

// `count` values from `offset` on, in fp64.
std::vector<double> load_row(const TensorArg& tensor, int64_t offset, int64_t count);

double dot(const double* a, const double* b, int64_t count);
// target += factor * source
void add_scaled(double factor, const double* source, int64_t count, double* target);

// K and V rows of one (batch element, kv head). Rows are converted when first asked for, so a key
// that no row sees, and the page that holds it, are never touched.
class KeyValueRows {
 public:
  KeyValueRows(const AttentionArgs& args, const SequenceExtent& extent, int64_t b, int64_t head_kv);

  const double* key(int64_t j);    // (D)
  const double* value(int64_t j);  // (Dv)

 private:
  const double* row(const TensorArg& tensor, int64_t width, int64_t j, std::vector<double>* rows,
                    std::vector<bool>* loaded) const;

  const AttentionArgs& args_;
  SequenceExtent extent_;
  int64_t b_;
  int64_t head_kv_;
  std::vector<double> keys_;    // (k_len, D)
  std::vector<double> values_;  // (k_len, Dv)
  std::vector<bool> key_loaded_;
  std::vector<bool> value_loaded_;
};

// One visible key of a row.
struct ScoredKey {
  int64_t key = 0;         // position in the sequence
  double product = 0.0;    // scale * dot(q, k), before the softcap
  double cap_slope = 1.0;  // d(capped score) / d(product): 1 - tanh^2
  double bias = 0.0;       // additive bias, 0 without one
  double distance = 0.0;   // |i + shift - j|: the ALiBi term is -slope * distance
  double logit = 0.0;      // what enters the softmax
  double weight = 0.0;     // probability, before dropout; set by softmax_row
  double kept = 1.0;       // dropout: 0 or 1 / (1 - p)
};

// Which row: batch element, query head, position.
struct RowId {
  int64_t b = 0;
  int64_t head = 0;
  int64_t i = 0;
};

// The visible keys of a row with their logits, ascending in key.
std::vector<ScoredKey> score_row(const AttentionArgs& args, const SequenceExtent& extent,
                                 const RowId& row, const double* q, KeyValueRows* rows);

struct RowSoftmax {
  double lse = 0.0;          // natural log, the sink included; -inf for an empty row
  double sink_weight = 0.0;  // probability of the sink
};

// Sets the keys' weights. An empty row has no weights and lse -inf, or the sink's logit.
RowSoftmax softmax_row(const AttentionArgs& args, const RowId& row, std::vector<ScoredKey>* keys);

}  // namespace rowmax::reference
