// The sizes of public reports whose tensors have more elements, or bytes, than 32 bits count. Parts
// of a result are compared, bit by bit, with the same kernels on those parts alone.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "device_case.h"
#include "kernels.h"

namespace rowmax::test {
namespace {

AttentionProblem problem_of(const std::string& text) { return parse_problem(text).value(); }

// Random operands of a backward problem, and its results with those of the forward pass before it.
class Operands {
 public:
  explicit Operands(const AttentionProblem& problem) : Operands(problem, AttentionTensors()) {}

  // Inputs that `given` holds are used as they are.
  Operands(const AttentionProblem& problem, const AttentionTensors& given) : tensors(given) {
    const Sizes& s = problem.sizes;
    const bool ragged = problem.storage.query == Source::kRagged;
    const auto tensor = [&](bool query, int64_t dim) {
      const int64_t heads = query ? s.heads_q : s.heads_kv;
      const int64_t total = query ? problem.storage.total_q : problem.storage.total_k;
      void* data = nullptr;
      return ragged ? contiguous(data, problem.dtype, {total, heads, dim})
                    : contiguous(data, problem.dtype,
                                 {s.batch, query ? s.seqlen_q : s.seqlen_k, heads, dim});
    };
    input(tensors.q, tensor(true, s.head_dim));
    input(tensors.k, tensor(false, s.head_dim));
    input(tensors.v, tensor(false, s.head_dim_v));
    input(tensors.grad.dout, tensor(true, s.head_dim_v));
    tensors.out = output(tensor(true, s.head_dim_v));
    void* data = nullptr;
    tensors.lse =
        output(ragged ? contiguous(data, DType::kF32, {s.heads_q, problem.storage.total_q})
                      : contiguous(data, DType::kF32, {s.batch, s.heads_q, s.seqlen_q}));
    if (problem.op == Op::kBackward) {
      tensors.grad.dq = output(tensor(true, s.head_dim));
      tensors.grad.dk = output(tensor(false, s.head_dim));
      tensors.grad.dv = output(tensor(false, s.head_dim_v));
    }
  }

  TensorView output(TensorView view) {
    const int64_t bytes = element_count(view) * static_cast<int64_t>(size_of(view.dtype));
    buffers_.push_back(std::make_unique<DeviceBuffer>(static_cast<size_t>(bytes)));
    view.data = buffers_.back()->data();
    return view;
  }

  AttentionTensors tensors;

 private:
  void input(ConstTensorView& given, const TensorView& view) {
    if (given.present()) {
      return;
    }
    const TensorView made = output(view);
    fill_bf16(made.data, element_count(made), buffers_.size(), nullptr);
    given = made;
  }

  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
};

// Names of the main kernels of both passes.
struct Kernels {
  std::string forward;
  std::string backward;
};

class LargeSizes : public DeviceTest {
 protected:
  // The planner's choice where a name is empty; returns what ran.
  std::string run_pass(const AttentionProblem& problem, AttentionTensors tensors,
                       const std::string& kernel) {
    if (problem.op == Op::kForward) {
      tensors.grad = GradientTensors();
    }
    PlanOptions options;
    options.force_kernel = kernel;
    const Result<Plan> plan = make_plan(problem, device_, options);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    if (!plan.ok()) {
      return kernel;
    }
    DeviceBuffer workspace(plan->workspace_bytes());
    const Status status = execute(*plan, tensors, workspace.data(), workspace.bytes());
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(succeeded(cudaDeviceSynchronize(), plan->kernel().c_str()));
    return plan->kernel();
  }

  // Forward, and backward where the problem is one; the order of backward's sums is that of tiles
  // in a sequence for every batch.
  Kernels run(const AttentionProblem& problem, const AttentionTensors& tensors,
              const Kernels& kernels = {}) {
    AttentionProblem forward = problem;
    forward.op = Op::kForward;
    forward.gradients = Gradients();
    forward.batch_invariant = true;  // parts must have the bits of the whole
    Kernels used;
    used.forward = run_pass(forward, tensors, kernels.forward);
    if (problem.op == Op::kBackward) {
      used.backward = run_pass(problem, tensors, kernels.backward);
    }
    return used;
  }

  // Elements [first, first + count) of an axis.
  template <class View>
  static View part(View view, int axis, int64_t first, int64_t count) {
    view.data =
        offset(view.data, first * view.strides[axis] * static_cast<int64_t>(size_of(view.dtype)));
    view.sizes[axis] = count;
    return view;
  }
  static const void* offset(const void* data, int64_t bytes) {
    return static_cast<const char*>(data) + bytes;
  }
  static void* offset(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }

  // The same elements of both, wherever they lie.
  void expect_same(const char* name, const ConstTensorView& a, const ConstTensorView& b) {
    TensorView packed = contiguous(static_cast<void*>(nullptr), a.dtype,
                                   {a.rank == 4 ? a.sizes[0] : 1, a.sizes[a.rank == 4 ? 1 : 0],
                                    a.sizes[a.rank == 4 ? 2 : 1], a.sizes[a.rank - 1]});
    const auto bytes = static_cast<size_t>(element_count(packed)) * size_of(a.dtype);
    const DeviceBuffer first((bytes + 15) / 16 * 16);
    const DeviceBuffer second((bytes + 15) / 16 * 16);
    packed.data = first.data();
    copy_view(packed, a);
    packed.data = second.data();
    copy_view(packed, b);
    EXPECT_EQ(differences(first.data(), second.data(), static_cast<int64_t>(first.bytes())), 0u)
        << name;
  }

  // Two batch elements from `first` on against a run of their own.
  void expect_batches(const AttentionProblem& problem, const AttentionTensors& whole,
                      const Kernels& kernels, int64_t first) {
    SCOPED_TRACE("batch element " + std::to_string(first));
    AttentionProblem few = problem;
    few.sizes.batch = 2;
    AttentionTensors given;
    given.q = part(whole.q, 0, first, 2);
    given.k = part(whole.k, 0, first, 2);
    given.v = part(whole.v, 0, first, 2);
    given.grad.dout = part(whole.grad.dout, 0, first, 2);
    const Operands own(few, given);
    run(few, own.tensors, kernels);
    const AttentionTensors& t = own.tensors;
    expect_same("out", part(whole.out, 0, first, 2), t.out);
    expect_same("lse", part(whole.lse, 0, first, 2), t.lse);
    if (problem.op == Op::kBackward) {
      expect_same("dq", part(whole.grad.dq, 0, first, 2), t.grad.dq);
      expect_same("dk", part(whole.grad.dk, 0, first, 2), t.grad.dk);
      expect_same("dv", part(whole.grad.dv, 0, first, 2), t.grad.dv);
    }
  }

  // First, middle and last batch elements of a contiguous run.
  void run_batches(const char* text) {
    const AttentionProblem problem = problem_of(text);
    const Operands operands(problem);
    const Kernels kernels = run(problem, operands.tensors);
    const int64_t batch = problem.sizes.batch;
    for (const int64_t first : {int64_t{0}, batch / 2, batch - 2}) {
      expect_batches(problem, operands.tensors, kernels, first);
    }
  }
};

// One key: O is V and dV is dO.
TEST_F(LargeSizes, BC052_OneKey) {
  const AttentionProblem problem = problem_of("backward bf16 b8300 h16 s1 d128");
  const Operands operands(problem);
  const AttentionTensors& t = operands.tensors;
  const Kernels kernels = run(problem, t);
  expect_same("out", t.out, t.v);
  expect_same("dv", t.grad.dv, t.grad.dout);
  expect_batches(problem, t, kernels, problem.sizes.batch - 2);
}

TEST_F(LargeSizes, BC053_ShortSequences) { run_batches("backward bf16 b28800 h16 s15 d72"); }

TEST_F(LargeSizes, BC054_ManyHeads) { run_batches("forward bf16 b2700 h729 s16 d72"); }

// Rows whose window lies in the part alone. It begins at a multiple of every tile.
TEST_F(LargeSizes, BC062_OneLongSequence) {
  constexpr int64_t kBegin = 50 * 40320;
  constexpr int64_t kCompared = 32768;
  const AttentionProblem problem = problem_of("backward bf16 b1 h16 s2097153 d64 window=255,255");
  const Operands operands(problem);
  const AttentionTensors& whole = operands.tensors;
  const Kernels kernels = run(problem, whole);
  AttentionProblem end = problem;
  const int64_t length = problem.sizes.seqlen_q - kBegin;
  end.sizes.seqlen_q = end.sizes.seqlen_k = length;
  AttentionTensors given;
  given.q = part(whole.q, 1, kBegin, length);
  given.k = part(whole.k, 1, kBegin, length);
  given.v = part(whole.v, 1, kBegin, length);
  given.grad.dout = part(whole.grad.dout, 1, kBegin, length);
  const Operands own(end, given);
  run(end, own.tensors, kernels);
  const auto compare = [&](const char* name, const TensorView& a, const TensorView& b, int axis) {
    expect_same(name, part(a, axis, problem.sizes.seqlen_q - kCompared, kCompared),
                part(b, axis, length - kCompared, kCompared));
  };
  const AttentionTensors& t = own.tensors;
  compare("out", whole.out, t.out, 1);
  compare("lse", whole.lse, t.lse, 2);
  compare("dq", whole.grad.dq, t.grad.dq, 1);
  compare("dk", whole.grad.dk, t.grad.dk, 1);
  compare("dv", whole.grad.dv, t.grad.dv, 1);
}

// K, V and their gradients stored as (Sk, B, D).
TEST_F(LargeSizes, BC064_SequenceMajorKeys) {
  const AttentionProblem problem = problem_of("backward bf16 b700 h1 sq256 sk24000 d128");
  Operands operands(problem);
  AttentionTensors& t = operands.tensors;
  const auto sequence_major = [&](auto& view) {
    view.strides[0] = 128;
    view.strides[1] = 128 * problem.sizes.batch;
  };
  sequence_major(t.k);
  sequence_major(t.v);
  sequence_major(t.grad.dk);
  sequence_major(t.grad.dv);
  const Kernels kernels = run(problem, t);
  for (const int64_t first : {int64_t{0}, int64_t{349}, int64_t{698}}) {
    expect_batches(problem, t, kernels, first);
  }
}

// Rows of dO are those of a much wider tensor.
TEST_F(LargeSizes, BC061_RaggedRowsOfAWideTensor) {
  constexpr int64_t kRows = 410923;
  constexpr int64_t kLength = 1024;
  constexpr int64_t kRowStride = 9728;
  constexpr int64_t kSequences = (kRows + kLength - 1) / kLength;
  const AttentionProblem problem = problem_of(
      "backward bf16 b" + std::to_string(kSequences) + " h16 s" + std::to_string(kLength) +
      " d96 ragged_q=" + std::to_string(kRows) + " ragged_k=" + std::to_string(kRows));
  std::vector<int32_t> starts;
  for (int64_t n = 0; n <= kSequences; ++n) {
    starts.push_back(static_cast<int32_t>(std::min(n * kLength, kRows)));
  }
  const DeviceBuffer lengths(starts.size() * sizeof(int32_t));
  (void)cudaMemcpy(lengths.data(), starts.data(), lengths.bytes(), cudaMemcpyHostToDevice);
  AttentionTensors given;
  given.lengths.cu_seqlens_q = given.lengths.cu_seqlens_k =
      contiguous(static_cast<const void*>(lengths.data()), DType::kI32, {kSequences + 1});
  const Operands packed(problem, given);
  const Kernels kernels = run(problem, packed.tensors);
  const DeviceBuffer wide(static_cast<size_t>(kRows * kRowStride) * 2);
  TensorView dout = contiguous(static_cast<void*>(wide.data()), DType::kBF16, {kRows, 16, 96});
  dout.strides[0] = kRowStride;
  copy_view(dout, packed.tensors.grad.dout);
  given = packed.tensors;
  given.grad.dout = dout;
  const Operands strided(problem, given);
  run(problem, strided.tensors, kernels);
  expect_same("dq", packed.tensors.grad.dq, strided.tensors.grad.dq);
  expect_same("dk", packed.tensors.grad.dk, strided.tensors.grad.dk);
  expect_same("dv", packed.tensors.grad.dv, strided.tensors.grad.dv);
}

// One query and as many keys: dO is one row for all heads and batch elements.
TEST_F(LargeSizes, BC082_OneRowOfDoForAll) {
  const AttentionProblem problem = problem_of("backward bf16 b2 h16 sq1 sk65536 d64");
  const Operands operands(problem);
  AttentionTensors t = operands.tensors;
  const Kernels kernels = run(problem, t);
  t.grad.dout.strides[0] = t.grad.dout.strides[2] = 0;
  Operands expanded(problem, t);
  run(problem, expanded.tensors, kernels);
  AttentionTensors repeated = t;
  TensorView dout = contiguous(static_cast<void*>(nullptr), DType::kBF16, {2, 1, 16, 64});
  dout = expanded.output(dout);
  copy_view(dout, t.grad.dout);
  repeated.grad.dout = dout;
  const Operands materialised(problem, repeated);
  run(problem, materialised.tensors, kernels);
  expect_same("dq", expanded.tensors.grad.dq, materialised.tensors.grad.dq);
  expect_same("dk", expanded.tensors.grad.dk, materialised.tensors.grad.dk);
  expect_same("dv", expanded.tensors.grad.dv, materialised.tensors.grad.dv);
}

}  // namespace
}  // namespace rowmax::test
