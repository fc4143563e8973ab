#include "attend_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

#include "npy.h"
#include "safetensors.h"
#include "scalar.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

constexpr uint64_t kGradientSeed = 1;

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

HostTensor take(TensorFile& file, const std::string& name, const std::string& path) {
  const auto found = file.tensors.find(name);
  if (found == file.tensors.end()) {
    bad_input(fmt::format("'{}' has no tensor '{}'; needed: q, k, v", path, name));
  }
  return std::move(found->second);
}

std::optional<HostTensor> take_optional(TensorFile& file, const std::string& name) {
  const auto found = file.tensors.find(name);
  if (found == file.tensors.end()) {
    return std::nullopt;
  }
  return std::move(found->second);
}

void load_lengths(TensorFile& file, const std::string& path, AttendInput* input) {
  std::optional<HostTensor> both = take_optional(file, "cu_seqlens");
  input->cu_seqlens_q = take_optional(file, "cu_seqlens_q");
  input->cu_seqlens_k = take_optional(file, "cu_seqlens_k");
  if (both && (input->cu_seqlens_q || input->cu_seqlens_k)) {
    bad_input(fmt::format(
        "'{}' has cu_seqlens and cu_seqlens_q or cu_seqlens_k; accepted: the one or the pair",
        path));
  }
  if (input->cu_seqlens_q.has_value() != input->cu_seqlens_k.has_value()) {
    bad_input(fmt::format("'{}' has only one of cu_seqlens_q and cu_seqlens_k", path));
  }
  if (both) {
    input->cu_seqlens_q = convert(*both, both->dtype);
    input->cu_seqlens_k = std::move(both);
  }
}

AttendInput load_safetensors_input(const AttendOptions& options) {
  const std::string& path = options.files[0];
  std::set<std::string> names = {"q", "k", "v", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k"};
  if (options.backward) {
    names.insert("do");
  }
  TensorFile file = require(read_safetensors(path, names));
  AttendInput input;
  input.q = take(file, "q", path);
  input.k = take(file, "k", path);
  input.v = take(file, "v", path);
  load_lengths(file, path, &input);
  input.dout = take_optional(file, "do");
  return input;
}

[[noreturn]] void refuse_file_count(const AttendOptions& options) {
  bad_input(fmt::format(
      "{} files given; accepted: one .safetensors file, or .npy files of q, k, v (and do)",
      options.files.size()));
}

AttendInput load_npy_input(const AttendOptions& options) {
  if (options.files.size() != 3 && options.files.size() != 4) {
    refuse_file_count(options);
  }
  AttendInput input;
  input.q = require(read_npy(options.files[0]));
  input.k = require(read_npy(options.files[1]));
  input.v = require(read_npy(options.files[2]));
  if (options.files.size() == 4) {
    input.dout = require(read_npy(options.files[3]));
  }
  return input;
}

void check_rank(const char* name, const HostTensor& tensor, size_t rank) {
  if (tensor.shape.size() != rank) {
    bad_input(fmt::format(
        "{} has shape {}; accepted: {}", name, shape_text(tensor.shape),
        rank == 4 ? "(batch, seq, heads, head_dim), or (total, heads, head_dim) with cu_seqlens"
                  : "(total, heads, head_dim) with cu_seqlens"));
  }
}

void check_type(const char* name, const HostTensor& tensor) {
  if (!is_floating(tensor.dtype)) {
    bad_input(
        fmt::format("{} is {}; accepted: f64, f32, bf16, f16", name, to_string(tensor.dtype)));
  }
}

void check_equal(const char* what, const char* a, const HostTensor& ta, const char* b,
                 const HostTensor& tb, size_t axis) {
  if (ta.shape[axis] != tb.shape[axis]) {
    bad_input(fmt::format("{} {} has another {} than {} {}", b, shape_text(tb.shape), what, a,
                          shape_text(ta.shape)));
  }
}

void check_cu_seqlens(const char* name, const HostTensor& cu, int64_t total) {
  if (cu.dtype != DType::kI32 && cu.dtype != DType::kI64) {
    bad_input(fmt::format("{} is {}; accepted: i32, i64", name, to_string(cu.dtype)));
  }
  if (cu.shape.size() != 1 || cu.shape[0] < 1) {
    bad_input(fmt::format("{} has shape {}; accepted: (batch + 1)", name, shape_text(cu.shape)));
  }
  double before = 0;
  for (int64_t i = 0; i < cu.shape[0]; ++i) {
    const double value = load_scalar(cu.buffer.data(), cu.dtype, i);
    if (value < before || value > static_cast<double>(total)) {
      bad_input(fmt::format("{}[{}] is {}; accepted: non-decreasing from 0 to the {} rows stored",
                            name, i, value, total));
    }
    before = value;
  }
}

void check_shapes(const AttendInput& input) {
  const size_t rank = input.ragged() ? 3 : 4;
  check_rank("q", input.q, rank);
  check_rank("k", input.k, rank);
  check_rank("v", input.v, rank);
  const size_t seq = rank - 3;
  const size_t heads = rank - 2;
  const size_t dim = rank - 1;
  if (!input.ragged()) {
    check_equal("batch", "q", input.q, "k", input.k, 0);
  }
  for (size_t axis = 0; axis <= heads; ++axis) {
    check_equal(axis == heads ? "number of heads"
                : axis == seq ? "length"
                              : "batch",
                "k", input.k, "v", input.v, axis);
  }
  check_equal("head_dim", "q", input.q, "k", input.k, dim);
  const int64_t heads_q = input.q.shape[heads];
  const int64_t heads_kv = input.k.shape[heads];
  if (heads_q < 1 || heads_kv < 1 || heads_q % heads_kv != 0) {
    bad_input(
        fmt::format("q has {} heads and k has {}; accepted: a multiple of k's heads, both at "
                    "least 1",
                    heads_q, heads_kv));
  }
  if (!input.ragged()) {
    return;
  }
  check_cu_seqlens("cu_seqlens_q", *input.cu_seqlens_q, input.q.shape[0]);
  check_cu_seqlens("cu_seqlens_k", *input.cu_seqlens_k, input.k.shape[0]);
  if (input.cu_seqlens_q->shape != input.cu_seqlens_k->shape) {
    bad_input(fmt::format("cu_seqlens_q {} and cu_seqlens_k {} describe different batches",
                          shape_text(input.cu_seqlens_q->shape),
                          shape_text(input.cu_seqlens_k->shape)));
  }
}

std::vector<int64_t> output_shape(const AttendInput& input) {
  std::vector<int64_t> shape = input.q.shape;
  shape.back() = input.v.shape.back();
  return shape;
}

// Box-Muller on the standard generator, whose output is the same everywhere.
HostTensor seeded_gradient(const std::vector<int64_t>& shape, DType dtype) {
  HostTensor tensor = make_tensor(dtype, shape);
  std::mt19937_64 random(kGradientSeed);
  const auto uniform = [&random] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  constexpr double kTwoPi = 6.283185307179586;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    store_scalar(tensor.buffer.data(), dtype, i, radius * std::cos(kTwoPi * uniform()));
  }
  return tensor;
}

void load_gradient(const AttendOptions& options, AttendInput* input) {
  const std::vector<int64_t> shape = output_shape(*input);
  if (input->dout) {
    check_type("do", *input->dout);
    if (input->dout->shape != shape) {
      bad_input(fmt::format("do has shape {}; accepted: {}, the shape of out",
                            shape_text(input->dout->shape), shape_text(shape)));
    }
    return;
  }
  if (!options.check) {
    bad_input(
        "--backward needs a tensor 'do' in the input (with --check a seeded Gaussian one is "
        "used when it is absent)");
  }
  if (!options.out.empty()) {
    bad_input(
        "--out with --backward needs a tensor 'do' in the input: gradients of a made-up 'do' "
        "are only checked, not written");
  }
  input->dout_is_seeded = true;
  input->dout = seeded_gradient(shape, input->q.dtype);
}

void convert_inputs(const AttendOptions& options, AttendInput* input) {
  DType dtype = input->q.dtype;
  if (!options.dtype.empty()) {
    const Result<DType> parsed = parse_dtype(options.dtype);
    if (!parsed || !is_floating(*parsed)) {
      bad_input(fmt::format("--dtype is '{}'; accepted: f32, bf16, f16, f64", options.dtype));
    }
    dtype = *parsed;
  } else if (input->k.dtype != dtype || input->v.dtype != dtype) {
    bad_input(fmt::format("q is {}, k is {}, v is {}; accepted: one type, or --dtype to convert",
                          to_string(dtype), to_string(input->k.dtype), to_string(input->v.dtype)));
  }
  for (HostTensor* tensor : {&input->q, &input->k, &input->v}) {
    if (tensor->dtype != dtype) {
      *tensor = convert(*tensor, dtype);
    }
  }
  if (input->dout && input->dout->dtype != dtype) {
    input->dout = convert(*input->dout, dtype);
  }
}

int64_t length_at(const HostTensor& cu, int64_t b) {
  return static_cast<int64_t>(load_scalar(cu.buffer.data(), cu.dtype, b + 1) -
                              load_scalar(cu.buffer.data(), cu.dtype, b));
}

int64_t longest(const HostTensor& cu) {
  int64_t most = 0;
  for (int64_t b = 0; b + 1 < cu.shape[0]; ++b) {
    most = std::max(most, length_at(cu, b));
  }
  return most;
}

Bound parse_bound(std::string_view text) {
  if (text == "-1" || text == "inf") {
    return Bound::unbounded();
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < 0) {
    bad_input(fmt::format("--window bound is '{}'; accepted: 0 or more, or -1 or inf for unbounded",
                          text));
  }
  return Bound::at(value);
}

Band band_of(const AttendOptions& options) {
  Band band;
  if (!options.window.empty()) {
    const size_t comma = options.window.find(',');
    if (comma == std::string::npos) {
      bad_input(fmt::format(
          "--window is '{}'; accepted: LEFT,RIGHT, each 0 or more, or -1 or inf for unbounded",
          options.window));
    }
    const std::string_view text = options.window;
    band.left = parse_bound(text.substr(0, comma));
    band.right = parse_bound(text.substr(comma + 1));
  }
  if (options.causal) {
    band = intersect(band, Band::causal());
  }
  if (options.top_left && band.is_full()) {
    bad_input("--top-left has no effect: it aligns a band; needed: --causal or --window");
  }
  band.alignment = options.top_left ? Alignment::kTopLeft : Alignment::kBottomRight;
  return band;
}

}  // namespace

AttendInput load_attend_input(const AttendOptions& options) {
  const bool npy = ends_with(options.files[0], ".npy");
  if (!npy && options.files.size() != 1) {
    refuse_file_count(options);
  }
  AttendInput input = npy ? load_npy_input(options) : load_safetensors_input(options);
  check_type("q", input.q);
  check_type("k", input.k);
  check_type("v", input.v);
  check_shapes(input);
  if (options.backward) {
    load_gradient(options, &input);
  }
  convert_inputs(options, &input);
  return input;
}

AttentionProblem forward_problem(const AttendInput& input, const AttendOptions& options) {
  AttentionProblem problem;
  problem.dtype = input.q.dtype;
  problem.out_dtype = input.q.dtype;
  const size_t rank = input.q.shape.size();
  problem.sizes.heads_q = input.q.shape[rank - 2];
  problem.sizes.heads_kv = input.k.shape[rank - 2];
  problem.sizes.head_dim = input.q.shape[rank - 1];
  problem.sizes.head_dim_v = input.v.shape[rank - 1];
  if (input.ragged()) {
    problem.storage.query = Source::kRagged;
    problem.storage.key = Source::kRagged;
    problem.storage.total_q = input.q.shape[0];
    problem.storage.total_k = input.k.shape[0];
    problem.sizes.batch = input.cu_seqlens_q->shape[0] - 1;
    problem.sizes.seqlen_q = longest(*input.cu_seqlens_q);
    problem.sizes.seqlen_k = longest(*input.cu_seqlens_k);
  } else {
    problem.sizes.batch = input.q.shape[0];
    problem.sizes.seqlen_q = input.q.shape[1];
    problem.sizes.seqlen_k = input.k.shape[1];
  }
  problem.band = band_of(options);
  problem.score.scale = options.scale;
  problem.score.softcap = options.softcap;
  return problem;
}

double exact_flops(const AttentionProblem& problem, const AttendInput& input) {
  if (!input.ragged()) {
    return count_work(problem).flops;
  }
  AttentionProblem one = problem;
  one.storage = {};
  one.sizes.batch = 1;
  double flops = 0;
  for (int64_t b = 0; b < problem.sizes.batch; ++b) {
    one.sizes.seqlen_q = length_at(*input.cu_seqlens_q, b);
    one.sizes.seqlen_k = length_at(*input.cu_seqlens_k, b);
    flops += count_work(one).flops;
  }
  return flops;
}

}  // namespace rowmax::app
