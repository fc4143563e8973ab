// A backend with the CPU backend's names and steps and no code behind them, and a reference
// backend: what the planner decides must follow from configs alone.
#pragma once

#include <span>
#include <string>

#include "kernel_api/kernel.h"
#include "rowmax/plan.h"

namespace rowmax::test {

// All rows of the fake CPU backend, and the fake reference.
std::span<const Backend* const> fake_backends();

// The same without helper kernels for avx2.
std::span<const Backend* const> fake_backends_without_avx2_helpers();

// Forward kernels only: three of forward and three of decode of the fake CPU backend, and one of a
// fake GPU backend.
std::span<const Backend* const> fake_forward_only_backends();

// A fixed device: "portable" or "avx2".
DeviceInfo fake_device(const std::string& isa);

// A parsed problem; aborts the test when the line is not valid.
AttentionProblem problem_of(const std::string& line);

}  // namespace rowmax::test
