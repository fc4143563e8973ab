#include "api/tensor_check.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace rowmax {
namespace {

std::string list(const int64_t* values, int count) {
  return fmt::format("({})", fmt::join(values, values + count, ", "));
}

Status check_shape(const ConstTensorView& view, const TensorRule& rule) {
  if (!view.present()) {
    return Status::invalid(fmt::format("{}: absent; accepted: a tensor {} = {}", rule.name,
                                       rule.shape, list(rule.sizes, rule.rank)));
  }
  if (view.rank != rule.rank) {
    return Status::invalid(fmt::format("{}: rank is {}; accepted: {}, {} = {}", rule.name,
                                       view.rank, rule.rank, rule.shape,
                                       list(rule.sizes, rule.rank)));
  }
  for (int axis = 0; axis < rule.rank; ++axis) {
    if (view.sizes[axis] != rule.sizes[axis]) {
      return Status::invalid(fmt::format("{}: sizes are {}; accepted: {} = {}", rule.name,
                                         list(view.sizes, view.rank), rule.shape,
                                         list(rule.sizes, rule.rank)));
    }
  }
  if (view.dtype != rule.dtype && view.dtype != rule.other_dtype) {
    const std::string other =
        rule.other_dtype == rule.dtype ? "" : fmt::format(" or {}", to_string(rule.other_dtype));
    return Status::invalid(fmt::format("{}: dtype is {}; accepted: {}{}", rule.name,
                                       to_string(view.dtype), to_string(rule.dtype), other));
  }
  return {};
}

Status range_error(const ConstTensorView& view, const TensorRule& rule) {
  return Status::invalid(
      fmt::format("{}: strides {} with sizes {} give offsets outside 64 bits; accepted: byte "
                  "offsets below 2^63",
                  rule.name, list(view.strides, view.rank), list(view.sizes, view.rank)));
}

// An axis of size > 1 and the magnitude of its stride, in elements.
struct Axis {
  int64_t size = 1;
  int64_t stride = 0;
};

// Axes of size > 1 by growing stride. Returns their number.
int sorted_axes(const ConstTensorView& view, Axis* axes) {
  int count = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.sizes[axis] <= 1) {
      continue;
    }
    Axis inserted{view.sizes[axis], std::llabs(view.strides[axis])};
    for (int i = 0; i < count; ++i) {
      if (axes[i].stride > inserted.stride) {
        std::swap(axes[i], inserted);
      }
    }
    axes[count++] = inserted;
  }
  return count;
}

// True when every stride steps over everything the smaller ones reach, so that no two index tuples
// meet. The offsets were checked to fit 64 bits.
bool strides_nest(const Axis* axes, int count) {
  int64_t reach = 0;
  for (int i = 0; i < count; ++i) {
    if (axes[i].stride <= reach) {
      return false;
    }
    reach += (axes[i].size - 1) * axes[i].stride;
  }
  return true;
}

// First and last offset in elements; false when they, or their distance, leave 64 bits in bytes.
bool offset_range(const ConstTensorView& view, int64_t* lowest, int64_t* highest) {
  *lowest = 0;
  *highest = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.sizes[axis] <= 1) {
      continue;
    }
    int64_t* end = view.strides[axis] < 0 ? lowest : highest;
    int64_t reach = 0;
    if (__builtin_mul_overflow(view.sizes[axis] - 1, view.strides[axis], &reach) ||
        __builtin_add_overflow(*end, reach, end)) {
      return false;
    }
  }
  int64_t distance = 0;
  int64_t bytes = 0;
  return !__builtin_sub_overflow(*highest, *lowest, &distance) &&
         !__builtin_add_overflow(distance, int64_t{1}, &distance) &&
         !__builtin_mul_overflow(distance, static_cast<int64_t>(size_of(view.dtype)), &bytes);
}

// The innermost axes that form one contiguous run, and the common period of the others.
void fill_pattern(const Axis* axes, int count, uint64_t element, Footprint* footprint) {
  int64_t run = 1;
  int64_t period = 0;
  for (int i = 0; i < count; ++i) {
    if (period == 0 && axes[i].stride == run) {
      run *= axes[i].size;
    } else {
      period = std::gcd(period, axes[i].stride);
    }
  }
  footprint->run_bytes = static_cast<uint64_t>(run) * element;
  footprint->period_bytes = static_cast<uint64_t>(period) * element;
}

}  // namespace

Status check_tensor(const ConstTensorView& view, const TensorRule& rule, Access access,
                    Footprint* footprint) {
  *footprint = Footprint{rule.name};
  if (Status status = check_shape(view, rule); !status.ok()) {
    return status;
  }
  if (element_count(view) == 0) {
    return {};
  }
  const int last = rule.rank - 1;
  if (last >= 0 && view.sizes[last] > 1 && view.strides[last] != 1) {
    return Status::invalid(fmt::format("{}: innermost stride is {} (size {}); accepted: 1",
                                       rule.name, view.strides[last], view.sizes[last]));
  }
  int64_t lowest = 0;
  int64_t highest = 0;
  if (!offset_range(view, &lowest, &highest)) {
    return range_error(view, rule);
  }
  const uint64_t element = size_of(view.dtype);
  const uint64_t base = reinterpret_cast<uintptr_t>(view.data);
  if (base == 0) {
    return Status::invalid(fmt::format("{}: data is null; accepted: a pointer to {} elements",
                                       rule.name, element_count(view)));
  }
  if (base % element != 0) {
    return Status::invalid(
        fmt::format("{}: address {:#x} is not a multiple of {} bytes; accepted: {} data aligned to "
                    "its element size",
                    rule.name, base, element, to_string(view.dtype)));
  }
  Axis axes[kMaxRank];
  const int count = sorted_axes(view, axes);
  if (access == Access::kWrite && !strides_nest(axes, count)) {
    return Status::invalid(
        fmt::format("{}: strides {} with sizes {} let elements of an output share memory; "
                    "accepted: strides that step over the axes inside them",
                    rule.name, list(view.strides, view.rank), list(view.sizes, view.rank)));
  }
  footprint->begin = base + static_cast<uint64_t>(lowest) * element;
  footprint->end = base + (static_cast<uint64_t>(highest) + 1) * element;
  fill_pattern(axes, count, element, footprint);
  return {};
}

bool may_overlap(const Footprint& a, const Footprint& b) {
  if (a.begin == a.end || b.begin == b.end || a.end <= b.begin || b.end <= a.begin) {
    return false;
  }
  const uint64_t period = std::gcd(a.period_bytes, b.period_bytes);
  if (period == 0) {
    return true;
  }
  // Modulo the common period every run of `a` lies at one place and every run of `b` at another.
  const uint64_t distance = a.begin <= b.begin ? (b.begin - a.begin) % period
                                               : (period - (a.begin - b.begin) % period) % period;
  return distance < a.run_bytes || distance + b.run_bytes > period;
}

Status check_apart(const Footprint& written, const Footprint& other, const char* accepted) {
  if (!may_overlap(written, other)) {
    return {};
  }
  return Status::invalid(fmt::format(
      "{}: shares memory with {} (bytes [{:#x}, {:#x}) and [{:#x}, {:#x})); accepted: {}",
      written.name, other.name, written.begin, written.end, other.begin, other.end, accepted));
}

int64_t kernel_stride(const ConstTensorView& view, int axis) {
  return view.sizes[axis] <= 1 || element_count(view) == 0 ? 0 : view.strides[axis];
}

}  // namespace rowmax
