// Random cases: every feature drawn independently, sizes small enough to be judged quickly.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "testkit/case.h"
#include "testkit/random.h"

namespace rowmax::testkit {

// Multiply-adds of the largest random case.
inline constexpr double kFuzzWork = 2e7;

// The next valid case of the generator.
Case random_case(Random* random);

// The next valid case of those that a GPU's kernels may serve: forward, bf16 and fp16, head dims up
// to 256 in multiples of 8, rows at multiples of 16 bytes.
Case random_gpu_case(Random* random);

// Whether a problem spans at least two query tiles and three key tiles of the CPU kernels.
bool spans_tiles(const AttentionProblem& problem);

// Names of what a case exercises: its op, dtype, storage, band, options, strides, inputs.
std::vector<std::string> features_of(const Case& spec);

// Every name that features_of can return: those that a long run must have seen.
const std::vector<std::string>& all_features();

}  // namespace rowmax::testkit
