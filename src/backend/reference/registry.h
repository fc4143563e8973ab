// The reference backend: fp64, obvious loops, the only oracle. Never chosen unless forced by name
// ("reference_forward", "reference_backward").
#pragma once

#include "kernel_api/kernel.h"

namespace rowmax::reference {

const Backend& backend();

// The two kernels' `run`. Forward needs schedule.splits == 1; backward does the whole pass: dQ, dK,
// dV, dbias, dsinks, dslopes.
void run_forward(const KernelLaunch& launch, int worker);
void run_backward(const KernelLaunch& launch, int worker);

}  // namespace rowmax::reference
