#include <vector>

#include "backend/reference/registry.h"
#include "backend/reference/scores.h"

namespace rowmax::reference {
namespace {

void forward_row(const AttentionArgs& args, const SequenceExtent& extent, const RowId& row,
                 KeyValueRows* rows) {
  const ShapeArgs& shape = args.shape;
  const std::vector<double> q =
      load_row(args.q, query_offset(args.q, extent, row.b, row.i, row.head), shape.head_dim);
  std::vector<ScoredKey> keys = score_row(args, extent, row, q.data(), rows);
  const RowSoftmax softmax = softmax_row(args, row, &keys);

  std::vector<double> out(static_cast<size_t>(shape.head_dim_v), 0.0);
  for (const ScoredKey& entry : keys) {
    if (entry.kept != 0.0) {
      add_scaled(entry.weight * entry.kept, rows->value(entry.key), shape.head_dim_v, out.data());
    }
  }
  const int64_t offset = query_offset(args.out, extent, row.b, row.i, row.head);
  for (int64_t d = 0; d < shape.head_dim_v; ++d) {
    store(args.out.data, args.out.dtype, offset + d, out[static_cast<size_t>(d)]);
  }
  if (args.lse.data != nullptr) {
    store(args.lse.data, args.lse.dtype, row_offset(args.lse, extent, row.b, row.i, row.head),
          softmax.lse);
  }
}

}  // namespace

// An item is one (batch element, query head).
void run_forward(const KernelLaunch& launch, int /*worker*/) {
  const AttentionArgs& args = *launch.args;
  const int64_t items = args.shape.batch * args.shape.heads_q;
  const int64_t group = args.shape.heads_q / args.shape.heads_kv;
  for_each_item(launch, items, [&](int64_t item) {
    RowId row;
    row.b = item / args.shape.heads_q;
    row.head = item % args.shape.heads_q;
    const SequenceExtent extent = sequence_extent(args, row.b);
    KeyValueRows rows(args, extent, row.b, row.head / group);
    for (row.i = 0; row.i < extent.q_len; ++row.i) {
      forward_row(args, extent, row, &rows);
    }
  });
}

}  // namespace rowmax::reference
