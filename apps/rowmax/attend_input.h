// The tensors of `rowmax attend`: read, checked against each other and turned into a problem.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rowmax/attention.h"
#include "rowmax/problem.h"
#include "tensor_file.h"

namespace rowmax::app {

struct AttendOptions {
  std::vector<std::string> files;
  std::string out;
  std::string dtype;
  std::string window;
  std::string kernel;
  std::string device = "cpu";
  double scale = 0.0;
  double softcap = 0.0;
  bool causal = false;
  bool top_left = false;
  bool backward = false;
  bool check = false;
  bool json = false;
  int threads = 0;
  int repeat = 1;
};

struct AttendInput {
  HostTensor q;                            // (B, Sq, Hq, D) or (total_q, Hq, D)
  HostTensor k;                            // (B, Sk, Hkv, D) or (total_k, Hkv, D)
  HostTensor v;                            // (B, Sk, Hkv, Dv) or (total_k, Hkv, Dv)
  std::optional<HostTensor> dout;          // (B, Sq, Hq, Dv) or (total_q, Hq, Dv)
  std::optional<HostTensor> cu_seqlens_q;  // (B + 1)
  std::optional<HostTensor> cu_seqlens_k;  // (B + 1)
  bool dout_is_seeded = false;

  bool ragged() const { return cu_seqlens_q.has_value(); }
};

// Reads and checks. Throws a Failure with kExitBadInput that names the tensor and its shape.
AttendInput load_attend_input(const AttendOptions& options);

// The forward problem of these tensors.
AttentionProblem forward_problem(const AttendInput& input, const AttendOptions& options);

// Exact FLOPs: of a ragged batch the sum over its sequences.
double exact_flops(const AttentionProblem& problem, const AttendInput& input);

}  // namespace rowmax::app
