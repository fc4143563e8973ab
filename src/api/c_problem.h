// The C structs of a problem and of tensors <-> the C++ ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "rowmax/attention.h"
#include "rowmax/c_api.h"
#include "rowmax/problem.h"
#include "rowmax/status.h"

namespace rowmax {

// Largest struct_size that is believed: a field that the caller left unset is not followed through
// memory.
inline constexpr size_t kMostStructBytes = size_t{64} << 10;

// What rowmax_problem measured in every version of the header, growing.
inline constexpr std::initializer_list<size_t> kProblemSizes = {
    offsetof(rowmax_problem, batch_invariant) + sizeof(int32_t)};

// The same of rowmax_plan_options and rowmax_execute_options: without and with what GPUs need.
inline constexpr std::initializer_list<size_t> kPlanOptionsSizes = {
    offsetof(rowmax_plan_options, device), sizeof(rowmax_plan_options)};
inline constexpr std::initializer_list<size_t> kExecuteOptionsSizes = {
    offsetof(rowmax_execute_options, stream), sizeof(rowmax_execute_options)};

// Refuses a struct_size that no version had and that no later one can have.
Status check_struct_size(const char* name, size_t size, std::initializer_list<size_t> sizes);

// Copies a versioned struct of the caller into *out. `sizes`: what it measured in every version of
// the header, growing, the last one being *out's. Fields that the caller's version lacks become
// zero. Null, other sizes, and unknown bytes that are not zero are refused; `name` is for messages.
Status read_versioned(const char* name, const void* in, void* out,
                      std::initializer_list<size_t> sizes);

// A struct that has had one version so far.
template <class Struct>
Status read_versioned(const char* name, const Struct* in, Struct* out) {
  return read_versioned(name, in, out, {sizeof(Struct)});
}

// Enumerators and flags are checked here, the rules by validate().
Result<AttentionProblem> problem_from_c(const rowmax_problem& in);
rowmax_problem problem_to_c(const AttentionProblem& in);

Result<AttentionTensors> tensors_from_c(const rowmax_tensors& in);

}  // namespace rowmax
