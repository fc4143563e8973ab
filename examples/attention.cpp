// Causal attention of two heads over four positions: plan once, execute in memory of our own.
#include <rowmax/rowmax.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main() {
  const auto problem = rowmax::parse_problem("forward f32 b1 h2 s4 d8 causal").value();
  const rowmax::Plan plan = rowmax::make_plan(problem).value();
  std::vector<float> q(64), k(64), v(64), out(64), lse(8);
  std::fill(v.begin() + 48, v.end(), 4.0f);  // values of position 3
  const auto view = [](std::vector<float>& x) {
    return rowmax::contiguous(x.data(), rowmax::DType::kF32, {1, 4, 2, 8});
  };
  rowmax::AttentionTensors tensors{view(q), view(k), view(v), view(out)};
  tensors.lse = rowmax::contiguous(lse.data(), rowmax::DType::kF32, {1, 2, 4});
  void* workspace = std::aligned_alloc(64, plan.workspace_bytes());
  const rowmax::Status status = execute(plan, tensors, workspace, plan.workspace_bytes());
  std::printf("%s: row 3 = %g, lse = %g\n", to_string(status.code()), out[48], lse[3]);
  std::free(workspace);
}
