// Tensors of the caller -> resolved arguments of the kernels.
#pragma once

#include "kernel_api/args.h"
#include "rowmax/attention.h"
#include "rowmax/problem.h"
#include "rowmax/status.h"

namespace rowmax {

// Checks every tensor against a valid problem and resolves pointers and strides. Lengths, page
// tables and the dropout state are read here, on the host. The first broken rule comes back with
// the argument's name, its value and what is accepted:
//   - presence, rank, sizes, type; a tensor that the problem does not use is refused
//   - innermost stride 1 (any when that size is <= 1); offsets inside 64 bits of bytes
//   - data not null when there are elements, aligned to the element size
//   - outputs: elements share no memory with each other, with another output or with an input
Result<AttentionArgs> bind_arguments(const AttentionProblem& problem,
                                     const AttentionTensors& tensors);

}  // namespace rowmax
