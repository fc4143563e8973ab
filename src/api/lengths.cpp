#include "api/lengths.h"

#include <fmt/format.h>

namespace rowmax {
namespace {

// One side of the problem, as messages name it.
struct Side {
  const char* cu_name;
  const char* used_name;
  const char* bound_name;
  const char* total_name;
  const IndexArg* cu;
  const IndexArg* used;
  int64_t bound;
  int64_t total;
};

Status check_offsets(const Side& side, int64_t batch) {
  const int64_t first = read_index(*side.cu, 0);
  if (first != 0) {
    return Status::invalid(fmt::format("{}[0]: is {}; accepted: 0", side.cu_name, first));
  }
  int64_t previous = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t next = read_index(*side.cu, b + 1);
    if (next < previous) {
      return Status::invalid(
          fmt::format("{}[{}]: {} is below the offset before it, {}; accepted: non-decreasing "
                      "offsets",
                      side.cu_name, b + 1, next, previous));
    }
    if (next > side.total) {
      return Status::invalid(
          fmt::format("{}[{}]: {} is past the end of the tensor; accepted: at "
                      "most {} = {}",
                      side.cu_name, b + 1, next, side.total_name, side.total));
    }
    if (next - previous > side.bound) {
      return Status::invalid(fmt::format("{}: sequence {} has length {}; accepted: at most {} = {}",
                                         side.cu_name, b, next - previous, side.bound_name,
                                         side.bound));
    }
    previous = next;
  }
  return {};
}

Status check_used(const Side& side, int64_t batch) {
  for (int64_t b = 0; b < batch; ++b) {
    int64_t length = side.bound;
    if (side.cu->data != nullptr) {
      length = read_index(*side.cu, b + 1) - read_index(*side.cu, b);
    }
    const int64_t used = read_index(*side.used, b);
    if (used < 0 || used > length) {
      return Status::invalid(
          fmt::format("{}[{}]: is {}; accepted: 0 to {}, the length of the "
                      "sequence",
                      side.used_name, b, used, length));
    }
  }
  return {};
}

Status check_side(const Side& side, int64_t batch) {
  if (side.cu->data != nullptr) {
    if (Status status = check_offsets(side, batch); !status.ok()) {
      return status;
    }
  }
  return side.used->data != nullptr ? check_used(side, batch) : Status();
}

Status check_pages(const AttentionProblem& problem, const SequenceArgs& sequence) {
  for (int64_t b = 0; b < problem.sizes.batch; ++b) {
    const int64_t length =
        sequence.used_k.data != nullptr ? read_index(sequence.used_k, b) : problem.sizes.seqlen_k;
    const int64_t pages = length / sequence.page_size + (length % sequence.page_size != 0 ? 1 : 0);
    if (pages > sequence.max_pages) {
      return Status::invalid(
          fmt::format("seqused_k[{}]: length {} needs {} pages of {}; accepted: at most max_pages "
                      "= {} pages",
                      b, length, pages, sequence.page_size, sequence.max_pages));
    }
    for (int64_t page = 0; page < pages; ++page) {
      const int32_t id = sequence.block_table[b * sequence.table_stride + page];
      if (id < 0 || id >= sequence.num_pages) {
        return Status::invalid(
            fmt::format("block_table[{}][{}]: page is {}; accepted: 0 to {} for "
                        "the first {} entries",
                        b, page, id, sequence.num_pages - 1, pages));
      }
    }
  }
  return {};
}

}  // namespace

Status check_lengths(const AttentionProblem& problem, const SequenceArgs& sequence) {
  const int64_t batch = problem.sizes.batch;
  const Side query = {"cu_seqlens_q",
                      "seqused_q",
                      "seqlen_q",
                      "total_q",
                      &sequence.cu_q,
                      &sequence.used_q,
                      problem.sizes.seqlen_q,
                      problem.storage.total_q};
  if (Status status = check_side(query, batch); !status.ok()) {
    return status;
  }
  const Side key = {"cu_seqlens_k",
                    "seqused_k",
                    "seqlen_k",
                    "total_k",
                    &sequence.cu_k,
                    &sequence.used_k,
                    problem.sizes.seqlen_k,
                    problem.storage.total_k};
  if (Status status = check_side(key, batch); !status.ok()) {
    return status;
  }
  return sequence.block_table != nullptr ? check_pages(problem, sequence) : Status();
}

}  // namespace rowmax
