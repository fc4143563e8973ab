// Tensors of the caller -> resolved arguments of the kernels.
#pragma once

#include <cstddef>

#include "kernel_api/args.h"
#include "rowmax/attention.h"
#include "rowmax/problem.h"
#include "rowmax/status.h"

namespace rowmax {

// The workspace that a call will use; empty: none is at hand.
struct WorkspaceRange {
  const void* data = nullptr;
  size_t bytes = 0;
};

// Where the tensors are. Nothing of a GPU's memory is read: kernels clamp lengths themselves.
enum class Location { kHost, kGpu };

// Checks every tensor against a valid problem and resolves pointers and strides. Lengths, page
// tables and the dropout state are read here where they are in host memory. The first broken rule
// comes back with the argument's name, its value and what is accepted:
//   - presence, rank, sizes, type; a tensor that the problem does not use is refused
//   - innermost stride 1 (any when that size is <= 1); offsets inside 64 bits of bytes
//   - data not null when there are elements, aligned to the element size
//   - outputs: elements share no memory with each other, with another output or with an input, the
//     dropout state included
//   - the workspace shares no memory with any of them
Result<AttentionArgs> bind_arguments(const AttentionProblem& problem,
                                     const AttentionTensors& tensors,
                                     const WorkspaceRange& workspace = {},
                                     Location location = Location::kHost);

}  // namespace rowmax
