#include "kernel_api/kernel.h"

#include "kernel_api/layout.h"
#include "kernel_api/pieces.h"

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

namespace {

// Of a GPU's backward: see layout.h.
size_t tile_region_bytes(Region region, const AttentionProblem& problem, const Schedule& schedule) {
  const size_t tiles = static_cast<size_t>(schedule.query_tiles);
  const size_t rows = tiles * static_cast<size_t>(schedule.tile_q);
  switch (region) {
    case Region::kRowStats:
      return 2 * rows * sizeof(float);
    case Region::kDqPartials:
      return problem.gradients.dq ? rows * static_cast<size_t>(schedule.columns) * sizeof(float)
                                  : 0;
    case Region::kSinkPartials:
      return problem.gradients.dsinks ? tiles * sizeof(double) : 0;
    case Region::kTurns:
      return problem.gradients.dq ? tiles * sizeof(int32_t) : 0;
    default:
      return 0;
  }
}

// Of a GPU's forward: see pieces.h.
size_t piece_region_bytes(Region region, const KernelConfig& main, const Schedule& schedule) {
  const size_t pieces = static_cast<size_t>(most_pieces(schedule.cut_tiles, schedule.cut_ranges));
  switch (region) {
    case Region::kPartialStates:
      return pieces * static_cast<size_t>(piece_floats(main.tile_q, main.head_dim_v)) *
             sizeof(float);
    case Region::kTurns:
      return pieces * static_cast<size_t>(piece_warps(main.tile_q)) * sizeof(uint64_t);
    default:
      return 0;
  }
}

}  // namespace

size_t region_bytes(Region region, const AttentionProblem& problem, const KernelConfig& main,
                    const Schedule& schedule) {
  const bool backward = problem.op == Op::kBackward;
  if (is_gpu(main.isa)) {
    return backward ? tile_region_bytes(region, problem, schedule)
                    : piece_region_bytes(region, main, schedule);
  }
  const size_t element = main.compute == Compute::kF64 ? 8 : 4;
  const size_t rows = static_cast<size_t>(query_rows(problem) * problem.sizes.heads_q);
  const size_t heads = static_cast<size_t>(problem.sizes.batch * problem.sizes.heads_q);
  const size_t splits = static_cast<size_t>(schedule.splits);
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
    case Region::kTurns:
      return 0;
  }
  return 0;
}

}  // namespace rowmax
