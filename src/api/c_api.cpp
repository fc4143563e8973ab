// The C ABI. Nothing thrown leaves a function of this file.
#include "rowmax/c_api.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "api/c_problem.h"
#include "rowmax/attention.h"
#include "rowmax/plan.h"
#include "rowmax/state.h"
#include "rowmax/version.h"

struct rowmax_plan {
  rowmax::Plan plan;
};

namespace {

using rowmax::Result;
using rowmax::Status;
using rowmax::StatusCode;

// Copies as much as fits, with a final zero.
void copy_text(std::string_view text, char* out, size_t out_bytes) noexcept {
  if (out == nullptr || out_bytes == 0) {
    return;
  }
  const size_t length = std::min(text.size(), out_bytes - 1);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

// Runs fn() -> Status and reports it the C way, whatever happens inside.
template <class Function>
rowmax_status guarded(char* message, size_t message_bytes, const Function& fn) noexcept {
  try {
    const Status status = fn();
    copy_text(status.message(), message, message_bytes);
    return static_cast<rowmax_status>(status.code());
  } catch (const std::exception& error) {
    copy_text(error.what(), message, message_bytes);
  } catch (...) {
    copy_text("unknown exception", message, message_bytes);
  }
  return ROWMAX_INTERNAL;
}

Status null_argument(const char* name) {
  return Status::invalid(std::string(name) + ": null; accepted: a valid pointer");
}

Status give_text(const std::string& text, char* out, size_t out_bytes, size_t* needed) {
  if (out == nullptr && out_bytes != 0) {
    return null_argument("text");
  }
  copy_text(text, out, out_bytes);
  if (needed != nullptr) {
    *needed = text.size() + 1;
  }
  return {};
}

Result<rowmax::AttentionProblem> read_problem(const rowmax_problem* problem) {
  rowmax_problem known;
  if (Status status = rowmax::read_versioned("problem", problem, &known, rowmax::kProblemSizes);
      !status.ok()) {
    return status;
  }
  return rowmax::problem_from_c(known);
}

Status check_reserved(const char* name, int32_t reserved) {
  return reserved == 0 ? Status()
                       : Status::invalid(std::string(name) + ".reserved: is " +
                                         std::to_string(reserved) + "; accepted: 0");
}

rowmax::AttentionState state_of(const rowmax_state& state) {
  return {state.m, state.l, state.o, state.rows, state.dims, state.o_stride};
}

}  // namespace

const char* rowmax_version(void) { return ROWMAX_VERSION_STRING; }

const char* rowmax_status_name(rowmax_status status) {
  return rowmax::to_string(static_cast<StatusCode>(status));
}

rowmax_tensor rowmax_contiguous(void* data, rowmax_dtype dtype, int32_t rank,
                                const int64_t* sizes) {
  rowmax_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = rank;
  uint64_t stride = 1;  // unsigned: sizes that overflow are refused later, by execute
  for (int axis = std::min(rank, rowmax::kMaxRank) - 1; axis >= 0; --axis) {
    tensor.sizes[axis] = sizes[axis];
    tensor.strides[axis] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(sizes[axis]);
  }
  return tensor;
}

void rowmax_problem_init(rowmax_problem* problem, size_t struct_size) {
  if (problem == nullptr) {
    return;
  }
  rowmax_problem defaults = rowmax::problem_to_c(rowmax::AttentionProblem());
  defaults.struct_size = struct_size;
  std::memset(static_cast<void*>(problem), 0, struct_size);
  std::memcpy(static_cast<void*>(problem), &defaults, std::min(struct_size, sizeof(defaults)));
}

rowmax_status rowmax_problem_parse(const char* text, rowmax_problem* problem, char* message,
                                   size_t message_bytes) {
  return guarded(message, message_bytes, [&]() -> Status {
    if (text == nullptr || problem == nullptr) {
      return null_argument(text == nullptr ? "text" : "problem");
    }
    const size_t struct_size = problem->struct_size;
    if (Status status = rowmax::check_struct_size("problem", struct_size, rowmax::kProblemSizes);
        !status.ok()) {
      return status;
    }
    const Result<rowmax::AttentionProblem> parsed = rowmax::parse_problem(text);
    if (!parsed.ok()) {
      return parsed.status();
    }
    rowmax_problem written = rowmax::problem_to_c(*parsed);
    written.struct_size = struct_size;
    // The caller's struct may be of an older or a newer header.
    std::memset(static_cast<void*>(problem), 0, struct_size);
    std::memcpy(static_cast<void*>(problem), &written, std::min(struct_size, sizeof(written)));
    return {};
  });
}

rowmax_status rowmax_problem_format(const rowmax_problem* problem, char* text, size_t text_bytes,
                                    size_t* needed, char* message, size_t message_bytes) {
  return guarded(message, message_bytes, [&]() -> Status {
    const Result<rowmax::AttentionProblem> read = read_problem(problem);
    if (!read.ok()) {
      return read.status();
    }
    if (Status status = rowmax::validate(*read); !status.ok()) {
      return status;
    }
    return give_text(rowmax::to_string(*read), text, text_bytes, needed);
  });
}

rowmax_status rowmax_plan_create(const rowmax_problem* problem, const rowmax_plan_options* options,
                                 rowmax_plan** plan, char* message, size_t message_bytes) {
  return guarded(message, message_bytes, [&]() -> Status {
    if (plan == nullptr) {
      return null_argument("plan");
    }
    *plan = nullptr;
    const Result<rowmax::AttentionProblem> read = read_problem(problem);
    if (!read.ok()) {
      return read.status();
    }
    rowmax::PlanOptions plan_options;
    std::string device_name = "cpu";
    if (options != nullptr) {
      rowmax_plan_options known;
      if (Status status =
              rowmax::read_versioned("options", options, &known, rowmax::kPlanOptionsSizes);
          !status.ok()) {
        return status;
      }
      for (const int32_t reserved : known.reserved) {
        if (Status status = check_reserved("options", reserved); !status.ok()) {
          return status;
        }
      }
      plan_options.force_kernel = known.force_kernel != nullptr ? known.force_kernel : "";
      plan_options.max_workspace = known.max_workspace;
      device_name = known.device != nullptr ? known.device : device_name;
    }
    const Result<rowmax::DeviceInfo> device = rowmax::find_device(device_name);
    if (!device.ok()) {
      return device.status();
    }
    Result<rowmax::Plan> made = rowmax::make_plan(*read, *device, plan_options);
    if (!made.ok()) {
      return made.status();
    }
    *plan = new rowmax_plan{std::move(made).value()};
    return {};
  });
}

void rowmax_plan_destroy(rowmax_plan* plan) { delete plan; }

const char* rowmax_plan_kernel(const rowmax_plan* plan) {
  return plan != nullptr ? plan->plan.kernel().c_str() : "";
}

size_t rowmax_plan_workspace_bytes(const rowmax_plan* plan, int32_t threads) {
  return plan != nullptr ? plan->plan.workspace_bytes(threads) : 0;
}

rowmax_status rowmax_plan_explain(const rowmax_plan* plan, char* text, size_t text_bytes,
                                  size_t* needed, char* message, size_t message_bytes) {
  return guarded(message, message_bytes, [&]() -> Status {
    if (plan == nullptr) {
      return null_argument("plan");
    }
    return give_text(rowmax::explain(plan->plan), text, text_bytes, needed);
  });
}

rowmax_status rowmax_execute(const rowmax_plan* plan, const rowmax_tensors* tensors,
                             void* workspace, size_t workspace_bytes,
                             const rowmax_execute_options* options, char* message,
                             size_t message_bytes) {
  return guarded(message, message_bytes, [&]() -> Status {
    if (plan == nullptr) {
      return null_argument("plan");
    }
    rowmax_tensors known;
    if (Status status = rowmax::read_versioned("tensors", tensors, &known); !status.ok()) {
      return status;
    }
    const Result<rowmax::AttentionTensors> read = rowmax::tensors_from_c(known);
    if (!read.ok()) {
      return read.status();
    }
    rowmax::ExecuteOptions execute_options;
    if (options != nullptr) {
      rowmax_execute_options known_options;
      if (Status status = rowmax::read_versioned("options", options, &known_options,
                                                 rowmax::kExecuteOptionsSizes);
          !status.ok()) {
        return status;
      }
      for (const int32_t reserved : {known_options.reserved, known_options.reserved2}) {
        if (Status status = check_reserved("options", reserved); !status.ok()) {
          return status;
        }
      }
      execute_options.threads = known_options.threads;
      execute_options.parallel_for = known_options.parallel_for;
      execute_options.parallel_context = known_options.parallel_context;
      execute_options.stream = known_options.stream;
      execute_options.sm_margin = known_options.sm_margin;
    }
    return rowmax::execute(plan->plan, *read, workspace, workspace_bytes, execute_options);
  });
}

rowmax_status rowmax_merge(const rowmax_state* parts, int32_t count, const rowmax_state* into,
                           char* message, size_t message_bytes) {
  return guarded(message, message_bytes, [&]() -> Status {
    if (into == nullptr || (parts == nullptr && count > 0)) {
      return null_argument(into == nullptr ? "into" : "parts");
    }
    std::vector<rowmax::AttentionState> states;
    for (int32_t i = 0; i < count; ++i) {
      states.push_back(state_of(parts[i]));
    }
    return rowmax::merge(states.data(), count, state_of(*into));
  });
}

rowmax_status rowmax_state_from_output(const float* out, int64_t out_stride, const float* lse,
                                       const rowmax_state* into, char* message,
                                       size_t message_bytes) {
  return guarded(message, message_bytes, [&]() -> Status {
    if (into == nullptr) {
      return null_argument("into");
    }
    return rowmax::state_from_output(out, out_stride, lse, state_of(*into));
  });
}

rowmax_status rowmax_finalize(const rowmax_state* state, const float* sinks, float* out,
                              int64_t out_stride, float* lse, char* message, size_t message_bytes) {
  return guarded(message, message_bytes, [&]() -> Status {
    if (state == nullptr) {
      return null_argument("state");
    }
    return rowmax::finalize(state_of(*state), sinks, out, out_stride, lse);
  });
}
