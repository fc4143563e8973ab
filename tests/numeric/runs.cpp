#include "runs.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <ostream>
#include <sstream>

#include "api/backends.h"
#include "tensor_copy.h"
#include "testkit/random.h"

namespace rowmax {

void PrintTo(const KernelEntry* entry, std::ostream* out) { *out << entry->config.name; }

}  // namespace rowmax

namespace rowmax::test {

std::vector<const KernelEntry*> main_kernels() {
  const std::string isa = host_device().isa;
  std::vector<const KernelEntry*> kernels;
  for (const Backend* backend : all_backends()) {
    if (std::string_view(backend->device_kind) != "cpu") {
      continue;  // rowmax verify --device walks the rows of a GPU
    }
    for (const KernelEntry& entry : backend->kernels) {
      const StepKind step = entry.config.step;
      const bool is_main =
          step == StepKind::kForward || step == StepKind::kDecode || step == StepKind::kBackward;
      if (is_main && (entry.config.isa == Isa::kPortable || isa != to_string(Isa::kPortable))) {
        kernels.push_back(&entry);
      }
    }
  }
  return kernels;
}

std::vector<testkit::Case> load_cases(const std::string& name) {
  std::ifstream file(std::string(ROWMAX_CASES_DIR) + "/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return testkit::parse_cases(text.str()).value();
}

std::vector<float> gaussian(int64_t count, uint64_t seed, double deviation) {
  testkit::Random random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(deviation * random.normal());
  }
  return values;
}

DenseRun::DenseRun(const std::string& problem_text, uint64_t seed)
    : problem(parse_problem(problem_text).value()) {
  const Sizes& s = problem.sizes;
  q = gaussian(s.batch * s.seqlen_q * s.heads_q * s.head_dim, seed);
  k = gaussian(s.batch * s.seqlen_k * s.heads_kv * s.head_dim, seed + 1);
  v = gaussian(s.batch * s.seqlen_k * s.heads_kv * s.head_dim_v, seed + 2);
  dout = gaussian(s.batch * s.seqlen_q * s.heads_q * s.head_dim_v, seed + 3);
  out.resize(dout.size());
  lse.resize(static_cast<size_t>(s.batch * s.heads_q * s.seqlen_q));
  dq.resize(q.size());
  dk.resize(k.size());
  dv.resize(v.size());
}

Status DenseRun::run(const std::string& kernel, int threads) {
  const Sizes& s = problem.sizes;
  tensors.q = contiguous(q.data(), DType::kF32, {s.batch, s.seqlen_q, s.heads_q, s.head_dim});
  tensors.k = contiguous(k.data(), DType::kF32, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim});
  tensors.v = contiguous(v.data(), DType::kF32, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim_v});
  tensors.out = contiguous(out.data(), DType::kF32, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v});
  tensors.lse = contiguous(lse.data(), DType::kF32, {s.batch, s.heads_q, s.seqlen_q});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (problem.op == Op::kBackward) {
    tensors.grad.dout =
        contiguous(dout.data(), DType::kF32, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v});
    tensors.grad.dq =
        contiguous(dq.data(), DType::kF32, {s.batch, s.seqlen_q, s.heads_q, s.head_dim});
    tensors.grad.dk =
        contiguous(dk.data(), DType::kF32, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim});
    tensors.grad.dv =
        contiguous(dv.data(), DType::kF32, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim_v});
    for (std::vector<float>* gradient : {&dq, &dk, &dv}) {
      gradient->assign(gradient->size(), nan);
    }
  } else {
    out.assign(out.size(), nan);
    lse.assign(lse.size(), nan);
  }
  return run_on(problem, tensors, kernel, threads);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace rowmax::test
