#include "kernel_api/kernel.h"

#include "kernel_api/layout.h"

namespace rowmax {

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kSm90:
      return "sm90";
  }
  return "?";
}

int64_t query_rows(const AttentionProblem& problem) {
  return problem.storage.query == Source::kRagged ? problem.storage.total_q
                                                  : problem.sizes.batch * problem.sizes.seqlen_q;
}

size_t region_bytes(Region region, const AttentionProblem& problem, const Schedule& schedule,
                    Compute compute) {
  const size_t element = compute == Compute::kF64 ? 8 : 4;
  const size_t rows = static_cast<size_t>(query_rows(problem) * problem.sizes.heads_q);
  const size_t heads = static_cast<size_t>(problem.sizes.batch * problem.sizes.heads_q);
  const size_t splits = static_cast<size_t>(schedule.splits);
  const bool backward = problem.op == Op::kBackward;
  switch (region) {
    case Region::kPartialStates:
      return !backward && schedule.splits > 1
                 ? splits * rows * (static_cast<size_t>(problem.sizes.head_dim_v) + 2) * element
                 : 0;
    case Region::kRowStats:
      return backward ? 2 * rows * element : 0;
    case Region::kDqPartials:
      return backward && schedule.splits > 1 && problem.gradients.dq
                 ? splits * rows * static_cast<size_t>(problem.sizes.head_dim) * element
                 : 0;
    case Region::kSinkPartials:
      return backward && problem.gradients.dsinks
                 ? heads * sizeof(double) *
                       static_cast<size_t>((problem.sizes.seqlen_q + kRowStatsChunk - 1) /
                                           kRowStatsChunk)
                 : 0;
    case Region::kSlopePartials:
      return backward && problem.gradients.dslopes ? heads * splits * sizeof(double) : 0;
  }
  return 0;
}

}  // namespace rowmax
