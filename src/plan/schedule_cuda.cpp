#include "plan/schedule_cuda.h"

#include "kernel_api/schedule.h"

namespace rowmax::plan {

Schedule cuda_schedule(const AttentionProblem& problem, const KernelConfig& config) {
  const Sizes& s = problem.sizes;
  Schedule schedule;
  schedule.tile_q = config.tile_q;
  schedule.tile_k = config.tile_k;
  schedule.items = s.batch * s.heads_q * ceil_div(s.seqlen_q, config.tile_q);
  return schedule;
}

}  // namespace rowmax::plan
