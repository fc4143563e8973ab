// Which problems a CPU kernel serves, and what scratch it needs.
#pragma once

#include "kernel_api/kernel.h"

namespace rowmax::cpu {

// OK, or the first reason why a row of instances.def declines the problem.
Status supports(const AttentionProblem& problem, const KernelConfig& config);

// Elements of a vector register of a row's instruction set and compute type.
int64_t vector_width(const KernelConfig& config);

size_t forward_thread_bytes(const AttentionProblem& problem, const KernelConfig& config,
                            const Schedule& schedule);
size_t decode_thread_bytes(const AttentionProblem& problem, const KernelConfig& config,
                           const Schedule& schedule);
size_t backward_thread_bytes(const AttentionProblem& problem, const KernelConfig& config,
                             const Schedule& schedule);  // kBackward and kBiasGradient
size_t no_thread_bytes(const AttentionProblem& problem, const KernelConfig& config,
                       const Schedule& schedule);

}  // namespace rowmax::cpu
