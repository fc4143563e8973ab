#include "tensor_copy.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "runs.h"

namespace rowmax::test {
namespace {

constexpr int64_t kFarElements = int64_t{1} << 32;

template <class Visit>
void for_each_index(const ConstTensorView& view, Visit visit) {
  int64_t count = 1;
  for (int axis = 0; axis < view.rank; ++axis) {
    count *= view.sizes[axis];
  }
  for (int64_t flat = 0; flat < count; ++flat) {
    TensorIndex index;
    int64_t rest = flat;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      index.at[axis] = rest % view.sizes[axis];
      rest /= view.sizes[axis];
    }
    visit(index);
  }
}

const char* address(const ConstTensorView& view, const TensorIndex& index) {
  int64_t offset = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    offset += index.at[axis] * view.strides[axis];
  }
  return static_cast<const char*>(view.data) + offset * static_cast<int64_t>(size_of(view.dtype));
}

// The axis of operands (B, S, H, D), (total, H, D) or (pages, slots, H, D) that `far` names; -1 if
// the tensor has none, or none of a size above 1.
int operand_axis(const ConstTensorView& view, FarAxis far) {
  const int axis = far == FarAxis::kHead    ? view.rank - 2
                   : far == FarAxis::kBatch ? (view.rank == 4 ? 0 : -1)
                   : far == FarAxis::kRow   ? view.rank - 3
                                            : -1;
  return axis >= 0 && view.sizes[axis] > 1 ? axis : -1;
}

// Likewise for (B, H, S), (H, total) and for masks and biases (B, H, S, Sk).
int score_axis(const ConstTensorView& view, FarAxis far) {
  int axis = -1;
  if (view.rank == 4) {
    axis = far == FarAxis::kHead ? 1 : far == FarAxis::kBatch ? 0 : far == FarAxis::kRow ? 2 : -1;
  } else if (view.rank == 3) {
    axis = far == FarAxis::kHead ? 1 : far == FarAxis::kBatch ? 0 : -1;
  } else if (view.rank == 2) {
    axis = far == FarAxis::kHead ? 0 : -1;
  }
  return axis >= 0 && view.sizes[axis] > 1 ? axis : -1;
}

}  // namespace

uint64_t element_bits(const ConstTensorView& view, const TensorIndex& index) {
  uint64_t bits = 0;
  std::memcpy(&bits, address(view, index), size_of(view.dtype));
  return bits;
}

TensorCopy::TensorCopy(const AttentionTensors& from, FarAxis far) : tensors(from) {
  AttentionTensors& t = tensors;
  for (ConstTensorView* view : {&t.q, &t.k, &t.v, &t.grad.dout}) {
    copy(*view, operand_axis(*view, far));
  }
  for (TensorView* view : {&t.out, &t.grad.dq, &t.grad.dk, &t.grad.dv}) {
    copy(*view, operand_axis(*view, far));
  }
  for (ConstTensorView* view : {&t.grad.dlse, &t.score.mask, &t.score.bias}) {
    copy(*view, score_axis(*view, far));
  }
  for (TensorView* view : {&t.lse, &t.grad.dbias}) {
    copy(*view, score_axis(*view, far));
  }
  for (ConstTensorView* view :
       {&t.score.slopes, &t.score.documents_q, &t.score.documents_k, &t.score.sinks,
        &t.lengths.cu_seqlens_q, &t.lengths.cu_seqlens_k, &t.lengths.seqused_q,
        &t.lengths.seqused_k, &t.lengths.block_table}) {
    copy(*view, -1);
  }
  for (TensorView* view : {&t.grad.dsinks, &t.grad.dslopes}) {
    copy(*view, -1);
  }
}

TensorCopy::~TensorCopy() {
  for (const Mapping& mapping : mappings_) {
    munmap(mapping.data, mapping.bytes);
  }
}

ConstTensorView TensorCopy::copied(const ConstTensorView& view, int far_axis) {
  ConstTensorView copy = view;
  int64_t packed = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    if (axis != far_axis) {
      copy.strides[axis] = packed;
      packed *= std::max<int64_t>(view.sizes[axis], 1);
    }
  }
  int64_t elements = packed;
  if (far_axis >= 0) {
    const int64_t steps = view.sizes[far_axis] - 1;
    const int64_t stride = std::max(packed, kFarElements / steps + 64) / 64 * 64 + 64;
    copy.strides[far_axis] = stride;
    elements += steps * stride;
  }
  Mapping mapping;
  mapping.bytes = static_cast<size_t>(elements) * size_of(view.dtype);
  mapping.data = mmap(nullptr, mapping.bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping.data == MAP_FAILED) {
    throw std::runtime_error("no address space for " + std::to_string(mapping.bytes) + " bytes");
  }
  // A touched element must not bring in 2 MiB.
  madvise(mapping.data, mapping.bytes, MADV_NOHUGEPAGE);
  mappings_.push_back(mapping);
  copy.data = mapping.data;
  for_each_index(view, [&](const TensorIndex& index) {
    std::memcpy(const_cast<char*>(address(copy, index)), address(view, index), size_of(view.dtype));
  });
  return copy;
}

void TensorCopy::copy(ConstTensorView& view, int far_axis) {
  if (view.present()) {
    view = copied(view, far_axis);
  }
}

void TensorCopy::copy(TensorView& view, int far_axis) {
  if (view.present()) {
    const ConstTensorView to = copied(view, far_axis);
    view.data = const_cast<void*>(to.data);
    std::copy(std::begin(to.strides), std::end(to.strides), std::begin(view.strides));
  }
}

void TensorCopy::fill(const ConstTensorView& view, uint64_t bits,
                      const std::function<bool(const TensorIndex&)>& where) {
  for_each_index(view, [&](const TensorIndex& index) {
    if (where(index)) {
      std::memcpy(const_cast<char*>(address(view, index)), &bits, size_of(view.dtype));
    }
  });
}

std::vector<NamedView> outputs_of(const AttentionProblem& problem,
                                  const AttentionTensors& tensors) {
  const AttentionTensors& t = tensors;
  std::vector<NamedView> all;
  if (problem.op == Op::kForward) {
    all = {{"out", t.out}, {"lse", t.lse}};
  } else {
    all = {{"dq", t.grad.dq},       {"dk", t.grad.dk},         {"dv", t.grad.dv},
           {"dbias", t.grad.dbias}, {"dsinks", t.grad.dsinks}, {"dslopes", t.grad.dslopes}};
  }
  std::erase_if(all, [](const NamedView& output) { return !output.view.present(); });
  return all;
}

std::string first_difference(
    const AttentionProblem& problem, const AttentionTensors& a, const AttentionTensors& b,
    const std::function<bool(const NamedView&, const TensorIndex&)>& where) {
  const std::vector<NamedView> of_a = outputs_of(problem, a);
  const std::vector<NamedView> of_b = outputs_of(problem, b);
  std::string difference;
  for (size_t i = 0; i < of_a.size() && difference.empty(); ++i) {
    for_each_index(of_a[i].view, [&](const TensorIndex& index) {
      if (difference.empty() && (!where || where(of_a[i], index)) &&
          element_bits(of_a[i].view, index) != element_bits(of_b[i].view, index)) {
        difference = of_a[i].name;
        for (int axis = 0; axis < of_a[i].view.rank; ++axis) {
          difference += " " + std::to_string(index.at[axis]);
        }
      }
    });
  }
  return difference;
}

Status run_on(const AttentionProblem& problem, const AttentionTensors& tensors,
              const std::string& kernel, int threads) {
  PlanOptions options;
  options.force_kernel = kernel;
  const Result<Plan> plan = make_plan(problem, host_device(), options);
  if (!plan.ok()) {
    return plan.status();
  }
  const size_t bytes = (plan->workspace_bytes(threads) + 63) / 64 * 64 + 64;
  const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(64, bytes),
                                                              &std::free);
  std::memset(workspace.get(), 0xff, bytes);  // NaN
  ExecuteOptions execute_options;
  execute_options.threads = threads;
  return execute(*plan, tensors, workspace.get(), bytes, execute_options);
}

}  // namespace rowmax::test
