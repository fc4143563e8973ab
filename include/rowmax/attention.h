// execute: run a plan on tensors. The caller owns all memory and all threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rowmax/export.h"
#include "rowmax/plan.h"
#include "rowmax/status.h"
#include "rowmax/tensor.h"

namespace rowmax {

// Runs fn(arg, w) once for every w in [0, workers), concurrently if it can, and returns when all
// have returned. Must be callable from any thread. A single worker runs on the calling thread
// without it.
using ParallelFor = void (*)(void* context, int workers, void (*fn)(void* arg, int worker),
                             void* arg);

// Most threads of one execute: an OpenMP runtime ends the process where it cannot start them.
inline constexpr int kMaxThreads = 1024;

// Who runs an execute.
struct ExecuteOptions {
  int threads = 0;  // 0: the OpenMP default; at most kMaxThreads. Results never depend on it.
  ParallelFor parallel_for = nullptr;  // null: OpenMP (plain threads in a forked child)
  void* parallel_context = nullptr;
  // Plans of a GPU: a cudaStream_t (null: the default stream), and how many multiprocessors to
  // leave to other work.
  void* stream = nullptr;
  int sm_margin = 0;
};

// Lengths and page tables. int32 or int64 where not said otherwise; where the other tensors are.
struct LengthTensors {
  ConstTensorView cu_seqlens_q;  // (B + 1)
  ConstTensorView cu_seqlens_k;  // (B + 1)
  ConstTensorView seqused_q;     // (B)
  ConstTensorView seqused_k;     // (B)
  ConstTensorView block_table;   // (B, max_pages), int32
};

// Operands of the score.
struct ScoreTensors {
  ConstTensorView mask;         // broadcastable to (B, Hq, Sq, Sk), bool
  ConstTensorView bias;         // broadcastable to (B, Hq, Sq, Sk), floating
  ConstTensorView slopes;       // ALiBi: (Hq) or (B, Hq), fp32
  ConstTensorView documents_q;  // (B, Sq) or (total_q), int32
  ConstTensorView documents_k;  // (B, Sk) or (total_k), int32
  ConstTensorView sinks;        // (Hq), fp32
};

// State of the dropout generator. When `device_state` is not null it is read at execution and wins:
// two 64-bit words, seed then offset. Row and column bases place a rank's or a chunk's elements.
struct DropoutState {
  uint64_t seed = 0;
  uint64_t offset = 0;
  const uint64_t* device_state = nullptr;
  int64_t row_base = 0;
  int64_t col_base = 0;
};

// Gradients: dO and dLSE come in; those that the problem's `gradients` names go out. Everything
// else must be absent.
struct GradientTensors {
  ConstTensorView dout;  // as out
  ConstTensorView dlse;  // as lse
  TensorView dq;         // as q
  TensorView dk;         // as k
  TensorView dv;         // as v
  TensorView dbias;      // sizes as bias, any floating type
  TensorView dsinks;     // (Hq), fp32
  TensorView dslopes;    // as slopes, fp32
};

// Shapes: q (B, Sq, Hq, D) or (total_q, Hq, D); k, v (B, Sk, Hkv, D|Dv), (total_k, Hkv, D|Dv) or
// (pages, page_size, Hkv, D|Dv); out (B, Sq, Hq, Dv) or (total_q, Hq, Dv);
// lse (B, Hq, Sq) or (Hq, total_q), fp32, natural logarithm. Forward writes out and lse; backward
// reads them.
struct AttentionTensors {
  ConstTensorView q;
  ConstTensorView k;
  ConstTensorView v;
  TensorView out;
  TensorView lse;
  LengthTensors lengths;
  ScoreTensors score;
  DropoutState dropout;
  GradientTensors grad;
};

// Checks every tensor against the plan's problem (sizes, types, strides, alignment, lengths;
// tensors that the problem does not use must be absent; outputs may not share memory with each
// other or with an input, and the workspace with nothing), then computes. Nothing is written after
// an error, but for two that show only while it computes and leave the outputs incomplete: an
// executor that does not run every worker, and a reference kernel that finds no memory.
// `workspace`: plan.workspace_bytes(threads) bytes, 64-byte aligned, one per concurrent call.
// Thread-safe.
// A GPU's plan: every tensor and the workspace are memory of that GPU; lengths are not read by the
// host, values out of range are clamped to the storage. The call enqueues on options.stream and
// returns; it allocates nothing, never waits, may be captured in a graph, and leaves the current
// device as it was. The workspace stays in use until the enqueued work has finished: one for each
// stream, or graph that may run at the same time. It may hold anything before its first use;
// between uses it stays as the calls left it, or is filled with zeros. Q, K, V and O need 16-byte
// aligned pointers and outer strides.
ROWMAX_API Status execute(const Plan& plan, const AttentionTensors& tensors, void* workspace,
                          size_t workspace_bytes, const ExecuteOptions& options = {});

}  // namespace rowmax
