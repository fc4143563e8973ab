#include "api_fixture.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace rowmax::testing {
namespace {

constexpr size_t kAlignment = 64;

void* align(std::byte* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return data + (kAlignment - address % kAlignment) % kAlignment;
}

}  // namespace

AttentionProblem problem_of(const char* text) {
  const Result<AttentionProblem> problem = parse_problem(text);
  if (!problem.ok()) {
    std::fprintf(stderr, "%s\n", problem.status().message().c_str());
    std::abort();
  }
  return *problem;
}

TensorSet::TensorSet(const AttentionProblem& given) : problem(given) {
  make_operands();
  make_lengths();
  make_score();
  if (problem.op == Op::kBackward) {
    make_gradients();
  }
}

void* TensorSet::allocate(size_t bytes) {
  memory_.push_back(std::make_unique<std::byte[]>(bytes + kAlignment));
  return align(memory_.back().get());
}

TensorView TensorSet::view(DType dtype, std::initializer_list<int64_t> sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    count *= size;
  }
  return contiguous(allocate(static_cast<size_t>(count) * size_of(dtype)), dtype, sizes);
}

TensorView TensorSet::query_side(DType dtype, int64_t dim) {
  const Sizes& s = problem.sizes;
  return problem.storage.query == Source::kRagged
             ? view(dtype, {problem.storage.total_q, s.heads_q, dim})
             : view(dtype, {s.batch, s.seqlen_q, s.heads_q, dim});
}

TensorView TensorSet::key_side(DType dtype, int64_t dim) {
  const Sizes& s = problem.sizes;
  const Storage& storage = problem.storage;
  switch (storage.key) {
    case Source::kRagged:
      return view(dtype, {storage.total_k, s.heads_kv, dim});
    case Source::kPaged:
      return view(dtype, {storage.num_pages, storage.page_size, s.heads_kv, dim});
    case Source::kDense:
      break;
  }
  return view(dtype, {s.batch, s.seqlen_k, s.heads_kv, dim});
}

TensorView TensorSet::statistics() {
  const Sizes& s = problem.sizes;
  const DType dtype = problem.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  return problem.storage.query == Source::kRagged
             ? view(dtype, {s.heads_q, problem.storage.total_q})
             : view(dtype, {s.batch, s.heads_q, s.seqlen_q});
}

TensorView TensorSet::broadcast(const BroadcastShape& shape) {
  const Sizes& s = problem.sizes;
  return view(shape.dtype, {shape.batch ? s.batch : 1, shape.heads ? s.heads_q : 1,
                            shape.rows ? s.seqlen_q : 1, shape.cols ? s.seqlen_k : 1});
}

void TensorSet::make_operands() {
  tensors.q = query_side(problem.dtype, problem.sizes.head_dim);
  tensors.k = key_side(problem.dtype, problem.sizes.head_dim);
  tensors.v = key_side(problem.dtype, problem.sizes.head_dim_v);
  tensors.out = query_side(problem.out_dtype, problem.sizes.head_dim_v);
  if (problem.lse) {
    tensors.lse = statistics();
  }
}

TensorView TensorSet::offsets(int64_t total, int64_t bound) {
  const int64_t batch = problem.sizes.batch;
  const TensorView out = view(DType::kI32, {batch + 1});
  const int64_t length = std::min(bound, total / std::max<int64_t>(batch, 1));
  for (int64_t b = 0; b <= batch; ++b) {
    static_cast<int32_t*>(out.data)[b] = static_cast<int32_t>(b * length);
  }
  return out;
}

void TensorSet::make_lengths() {
  const Sizes& s = problem.sizes;
  const Storage& storage = problem.storage;
  LengthTensors& lengths = tensors.lengths;
  int64_t length_q = s.seqlen_q;
  int64_t length_k = s.seqlen_k;
  if (storage.query == Source::kRagged) {
    lengths.cu_seqlens_q = offsets(storage.total_q, s.seqlen_q);
    length_q = static_cast<const int32_t*>(lengths.cu_seqlens_q.data)[1];
  }
  if (storage.key == Source::kRagged) {
    lengths.cu_seqlens_k = offsets(storage.total_k, s.seqlen_k);
    length_k = static_cast<const int32_t*>(lengths.cu_seqlens_k.data)[1];
  }
  const auto used = [&](int64_t length) {
    const TensorView out = view(DType::kI32, {s.batch});
    std::fill_n(static_cast<int32_t*>(out.data), s.batch, static_cast<int32_t>(length));
    return out;
  };
  if (storage.seqused_q) {
    lengths.seqused_q = used(length_q);
  }
  if (storage.seqused_k) {
    lengths.seqused_k = used(length_k);
  }
  if (storage.key == Source::kPaged) {
    const TensorView table = view(DType::kI32, {s.batch, storage.max_pages});
    for (int64_t i = 0; i < s.batch * storage.max_pages; ++i) {
      static_cast<int32_t*>(table.data)[i] = static_cast<int32_t>(i % storage.num_pages);
    }
    lengths.block_table = table;
  }
}

void TensorSet::make_score() {
  const Sizes& s = problem.sizes;
  const ScoreOptions& options = problem.score;
  ScoreTensors& score = tensors.score;
  if (options.mask.present) {
    score.mask = broadcast(options.mask);
  }
  if (options.bias.present) {
    score.bias = broadcast(options.bias);
  }
  if (options.alibi) {
    score.slopes = options.alibi_per_batch ? view(DType::kF32, {s.batch, s.heads_q})
                                           : view(DType::kF32, {s.heads_q});
  }
  if (options.document_ids) {
    score.documents_q = problem.storage.query == Source::kRagged
                            ? view(DType::kI32, {problem.storage.total_q})
                            : view(DType::kI32, {s.batch, s.seqlen_q});
    score.documents_k = problem.storage.key == Source::kRagged
                            ? view(DType::kI32, {problem.storage.total_k})
                            : view(DType::kI32, {s.batch, s.seqlen_k});
  }
  if (options.sinks) {
    score.sinks = view(DType::kF32, {s.heads_q});
  }
}

void TensorSet::make_gradients() {
  const Sizes& s = problem.sizes;
  const Gradients& want = problem.gradients;
  GradientTensors& grad = tensors.grad;
  grad.dout = query_side(problem.dtype, s.head_dim_v);
  grad.dlse = want.dlse ? ConstTensorView(statistics()) : ConstTensorView();
  grad.dq = want.dq ? query_side(problem.dtype, s.head_dim) : TensorView();
  grad.dk = want.dk ? key_side(problem.dtype, s.head_dim) : TensorView();
  grad.dv = want.dv ? key_side(problem.dtype, s.head_dim_v) : TensorView();
  grad.dbias = want.dbias ? broadcast(problem.score.bias) : TensorView();
  grad.dsinks = want.dsinks ? view(DType::kF32, {s.heads_q}) : TensorView();
  if (want.dslopes) {
    grad.dslopes = problem.score.alibi_per_batch ? view(DType::kF32, {s.batch, s.heads_q})
                                                 : view(DType::kF32, {s.heads_q});
  }
}

Workspace::Workspace(const Plan& plan, int threads) : bytes_(plan.workspace_bytes(threads)) {
  memory_ = std::make_unique<std::byte[]>(bytes_ + kAlignment);
  data_ = align(memory_.get());
}

void fill(const TensorView& view, int seed) {
  uint32_t state = 2654435761u * static_cast<uint32_t>(seed + 1);
  for (int64_t i = 0; i < element_count(view); ++i) {
    state = state * 1664525u + 1013904223u;
    static_cast<float*>(view.data)[i] = static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
  }
}

}  // namespace rowmax::testing
