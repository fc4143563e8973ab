// rowmax attend: attention on the tensors of a file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "attend_input.h"
#include "check.h"
#include "option_checks.h"
#include "rowmax/version.h"
#include "runner.h"
#include "safetensors.h"
#include "table.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

using Json = nlohmann::ordered_json;

// One executed plan and what is reported about it.
struct Pass {
  AttentionProblem problem;
  std::string kernel;
  double seconds = 0.0;
  double flops = 0.0;
  size_t workspace_bytes = 0;
  std::vector<TensorCheck> checks;

  double gflops() const { return seconds > 0.0 ? flops / seconds * 1e-9 : 0.0; }
};

// All tensors of the run; `outputs` become the file.
struct Session {
  AttendInput input;
  TensorFile outputs;
  AttentionTensors tensors;
  std::vector<Pass> passes;
};

// Outputs start as zeros: rows past the last sequence of a ragged batch are never written.
TensorView add_output(const std::string& name, DType dtype, std::vector<int64_t> shape,
                      Session* session) {
  HostTensor tensor = make_tensor(dtype, std::move(shape));
  std::memset(tensor.buffer.data(), 0, tensor.buffer.bytes());
  return session->outputs.tensors.insert_or_assign(name, std::move(tensor)).first->second.view();
}

void bind_forward(const AttentionProblem& problem, Session* session) {
  AttendInput& input = session->input;
  AttentionTensors& tensors = session->tensors;
  tensors.q = input.q.view();
  tensors.k = input.k.view();
  tensors.v = input.v.view();
  std::vector<int64_t> out_shape = input.q.shape;
  out_shape.back() = input.v.shape.back();
  tensors.out = add_output("out", problem.out_dtype, out_shape, session);
  const DType lse_dtype = problem.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const Sizes& sizes = problem.sizes;
  tensors.lse =
      add_output("lse", lse_dtype,
                 input.ragged() ? std::vector<int64_t>{sizes.heads_q, problem.storage.total_q}
                                : std::vector<int64_t>{sizes.batch, sizes.heads_q, sizes.seqlen_q},
                 session);
  if (input.ragged()) {
    tensors.lengths.cu_seqlens_q = input.cu_seqlens_q->view();
    tensors.lengths.cu_seqlens_k = input.cu_seqlens_k->view();
  }
}

void bind_backward(Session* session) {
  AttendInput& input = session->input;
  GradientTensors& grad = session->tensors.grad;
  grad.dout = input.dout->view();
  grad.dq = add_output("dq", input.q.dtype, input.q.shape, session);
  grad.dk = add_output("dk", input.k.dtype, input.k.shape, session);
  grad.dv = add_output("dv", input.v.dtype, input.v.shape, session);
}

void run_pass(const AttentionProblem& problem, const AttendOptions& options, Progress& progress,
              Session* session) {
  Runner runner(problem, problem.op == Op::kForward ? options.kernel : "", options.threads);
  Pass pass;
  pass.problem = problem;
  pass.kernel = runner.plan().kernel();
  pass.flops = exact_flops(problem, session->input);
  pass.workspace_bytes = runner.workspace_bytes();
  std::vector<double> seconds;
  for (int i = 0; i < options.repeat; ++i) {
    progress.show(fmt::format("{} run {} of {}", pass.kernel, i + 1, options.repeat));
    seconds.push_back(runner.run(session->tensors));
  }
  pass.seconds = median(seconds);
  if (options.check) {
    progress.show(fmt::format("checking {} against the fp64 reference", pass.kernel));
    pass.checks = check_against_reference(problem, session->tensors);
  }
  session->passes.push_back(std::move(pass));
}

bool all_pass(const Session& session) {
  return std::all_of(session.passes.begin(), session.passes.end(),
                     [](const Pass& pass) { return all_pass(pass.checks); });
}

std::string names_of(const TensorFile& file) {
  std::string names;
  for (const auto& [name, tensor] : file.tensors) {
    names += names.empty() ? name : ", " + name;
  }
  return names;
}

void print_json(const AttendOptions& options, const Session& session, int threads) {
  const AttendInput& input = session.input;
  Json object = {{"command", "attend"},
                 {"version", ROWMAX_VERSION_STRING},
                 {"files", options.files},
                 {"device", host_device().name},
                 {"isa", host_device().isa},
                 {"threads", threads},
                 {"repeat", options.repeat},
                 {"shapes", {{"q", input.q.shape}, {"k", input.k.shape}, {"v", input.v.shape}}}};
  if (input.dout) {
    object["do"] = input.dout_is_seeded ? "seeded Gaussian" : "from the input";
  }
  object["passes"] = Json::array();
  for (const Pass& pass : session.passes) {
    Json entry = {{"problem", to_string(pass.problem)},
                  {"kernel", pass.kernel},
                  {"seconds", pass.seconds},
                  {"flops", pass.flops},
                  {"gflops", pass.gflops()},
                  {"workspace_bytes", pass.workspace_bytes}};
    for (const TensorCheck& check : pass.checks) {
      entry["checks"].push_back(json_of(check));
    }
    object["passes"].push_back(std::move(entry));
  }
  if (options.check) {
    object["pass"] = all_pass(session);
  }
  if (!options.out.empty() && all_pass(session)) {
    object["out"] = options.out;
  }
  fmt::print("{}\n", object.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void print_text(const AttendOptions& options, const Session& session, int threads) {
  const AttendInput& input = session.input;
  fmt::print("q {}, k {}, v {}, {}", shape_text(input.q.shape), shape_text(input.k.shape),
             shape_text(input.v.shape), to_string(input.q.dtype));
  if (input.ragged()) {
    fmt::print(", {} sequences of up to {} tokens", session.passes[0].problem.sizes.batch,
               session.passes[0].problem.sizes.seqlen_q);
  }
  fmt::print("\n{}, {}, {}\n\n", host_device().name, host_device().isa, threads_text(threads));
  Table passes({"<pass", "<kernel", "time", "GFLOP", "GFLOP/s", "workspace"});
  for (const Pass& pass : session.passes) {
    passes.add({pass.problem.op == Op::kForward ? "forward" : "backward", pass.kernel,
                time_text(pass.seconds), number_text(pass.flops * 1e-9), number_text(pass.gflops()),
                bytes_text(static_cast<double>(pass.workspace_bytes))});
  }
  fmt::print("{}", passes.text());
  if (input.dout_is_seeded) {
    fmt::print("the input has no 'do': a seeded Gaussian one is used\n");
  }
  if (options.check) {
    Table checks({"<output", "max error", "closest to its limit", "error / limit", "<"});
    for (const Pass& pass : session.passes) {
      for (const TensorCheck& check : pass.checks) {
        checks.add({check.tensor, fmt::format("{:.2e}", check.max_error),
                    fmt::format("{:.2e} of {:.2e}", check.ratio * check.limit, check.limit),
                    fmt::format("{:.3f}", check.ratio),
                    check.pass ? "PASS" : "FAIL " + check.detail});
      }
    }
    fmt::print("\n{}{}\n", checks.text(), all_pass(session) ? "PASS" : "FAIL");
  }
  if (!options.out.empty() && all_pass(session)) {
    fmt::print("\nwrote {} to {}\n", names_of(session.outputs), options.out);
  }
}

void refuse_inputs_as_output(const AttendOptions& options) {
  std::vector<NamedPath> inputs;
  for (const std::string& file : options.files) {
    inputs.push_back({"the input", file});
  }
  refuse_same_file({"--out", options.out}, inputs);
  refuse_unwritable({"--out", options.out});
}

int attend(const AttendOptions& options) {
  if (options.device != "cpu") {
    bad_input(fmt::format("--device is '{}'; accepted: cpu", options.device));
  }
  refuse_inputs_as_output(options);
  Progress progress;
  progress.show("reading");
  Session session;
  session.input = load_attend_input(options);
  AttentionProblem problem = forward_problem(session.input, options);
  bind_forward(problem, &session);
  run_pass(problem, options, progress, &session);
  if (options.backward) {
    problem.op = Op::kBackward;
    bind_backward(&session);
    run_pass(problem, options, progress, &session);
  }
  progress.show("");
  const bool pass = all_pass(session);
  if (pass && !options.out.empty()) {
    session.outputs.metadata = {{"producer", "rowmax " ROWMAX_VERSION_STRING},
                                {"problem", to_string(session.passes[0].problem)}};
    require(write_safetensors(options.out, session.outputs));
  }
  const int threads = options.threads > 0 ? options.threads : default_threads();
  options.json ? print_json(options, session, threads) : print_text(options, session, threads);
  return pass ? kExitOk : kExitCheckFailed;
}

int run(const AttendOptions& options) {
  try {
    return attend(options);
  } catch (const std::bad_alloc&) {
    throw Failure(kExitInternal, fmt::format("out of memory with the tensors of '{}'",
                                             fmt::join(options.files, "', '")));
  }
}

constexpr const char* kFooter =
    R"(Input: one .safetensors file with tensors q, k, v of shape (batch, seq, heads, head_dim), or
(total, heads, head_dim) with cu_seqlens (or cu_seqlens_q and cu_seqlens_k); k and v may have
fewer heads. Or .npy files of q, k, v and, for --backward, do.
Output: a .safetensors file with out and lse, with --backward also dq, dk, dv. Without --out
nothing is written. The file appears only when everything succeeded.

Examples:
  rowmax attend data/minilm_layer3_varlen.safetensors --check --dtype bf16
  rowmax attend qkv.safetensors --causal --window 1024,0 --out result.safetensors
  rowmax attend q.npy k.npy v.npy do.npy --backward --out gradients.safetensors --json)";

}  // namespace

Verb add_attend(CLI::App& app) {
  auto options = std::make_shared<AttendOptions>();
  app.add_option("files", options->files, "FILE.safetensors, or q.npy k.npy v.npy [do.npy]")
      ->required()
      ->check(not_empty("the path of a file"));
  app.add_option("--out", options->out, "write the results to this safetensors file")
      ->check(not_empty("the path of a file"));
  app.add_flag("--causal", options->causal, "row i sees keys up to its own position");
  app.add_option("--window", options->window,
                 "LEFT,RIGHT: keys seen to each side, both ends included; -1 or inf is unbounded")
      ->check(not_empty("LEFT,RIGHT, each 0 or more, or -1 or inf for unbounded"));
  app.add_flag("--top-left", options->top_left,
               "tie the diagonal to the first key instead of the last");
  app.add_option("--scale", options->scale, "factor of q k' (0, the default: 1 / sqrt(head_dim))")
      ->check(number());
  app.add_option("--softcap", options->softcap,
                 "scores become C tanh(score / C) (0, the default: they do not)")
      ->check(number());
  app.add_option("--dtype", options->dtype, "convert the inputs: f32, bf16, f16 or f64")
      ->check(not_empty("f32, bf16, f16, f64"));
  app.add_option("--device", options->device, "where to compute: cpu")->check(not_empty("cpu"));
  app.add_option("--threads", options->threads, "threads (0: all; results never depend on it)")
      ->check(integer(0, kMaxThreads));
  app.add_option("--kernel", options->kernel, "force the forward kernel by its exact name")
      ->check(not_empty("the name of a kernel"));
  app.add_option("--repeat", options->repeat, "runs; the median time is reported")
      ->check(integer(1, 1000000));
  app.add_flag("--backward", options->backward, "also the gradients dq, dk, dv from 'do'");
  app.add_flag("--check", options->check, "compare with the fp64 reference");
  app.add_flag("--json", options->json, "one JSON object instead of text");
  app.footer(kFooter);
  return [options] { return run(*options); };
}

}  // namespace rowmax::app
