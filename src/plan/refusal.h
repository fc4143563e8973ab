// The message about a problem that no kernel serves.
#pragma once

#include <span>
#include <string>

#include "kernel_api/kernel.h"

namespace rowmax::plan {

struct Refusal {
  const KernelConfig* kernel = nullptr;
  std::string reason;
};

// "no kernel serves 'PROBLEM'; KERNELS: REASON; ...". Kernels that decline for the same reason, or
// for a size beyond limits of their own, are named together; reasons of kernels made for the
// problem's type, head dims and band come first.
std::string refusal_text(const AttentionProblem& problem, std::span<const Refusal> refusals);

}  // namespace rowmax::plan
