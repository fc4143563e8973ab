// rowmax explain: what is chosen for a problem, and why.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>

#include "case_text.h"
#include "option_checks.h"
#include "rowmax/plan.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

struct Options {
  std::vector<std::string> words;
  std::string kernel;
  std::string device = "cpu";
  int64_t max_workspace = 0;
};

int run(const Options& options) {
  const std::string context = fmt::format("case \"{}\"", join_words(options.words));
  const AttentionProblem problem = require(parse_problem(join_words(options.words)), context);
  require(testkit::check_words(problem), context);
  require(validate(problem), context);
  PlanOptions plan_options;
  plan_options.force_kernel = options.kernel;
  plan_options.max_workspace = options.max_workspace;
  const Result<Plan> plan = make_plan(problem, require(find_device(options.device)), plan_options);
  if (plan.status().code() == StatusCode::kOutOfMemory) {  // of the caller's limit
    bad_input(fmt::format("{}: {}", context, plan.status().message()));
  }
  require(plan.status(), context);
  const std::string text = explain(*plan);
  fmt::print("{}{}", text, text.empty() || text.back() != '\n' ? "\n" : "");
  return kExitOk;
}

}  // namespace

Verb add_explain(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("case", options->words, "the problem's text form, quoted or as words")->required();
  app.add_option("--kernel", options->kernel, "force a kernel by its exact name")
      ->check(not_empty("the name of a kernel"));
  app.add_option("--device", options->device,
                 "cpu (default), cuda, cuda:N, or a model that need not be here: h100, h200")
      ->check(not_empty("cpu, cuda, cuda:N, h100, h200"));
  app.add_option("--max-workspace", options->max_workspace,
                 "limit of one worker's workspace in bytes (0: none)")
      ->check(integer(0, std::numeric_limits<int64_t>::max()));
  app.footer(
      "Examples:\n  rowmax explain forward bf16 b2 hq8 hkv2 s4096 d128 causal\n"
      "  rowmax explain --device h200 forward bf16 b4 h16 s4096 d128");
  return [options] { return run(*options); };
}

}  // namespace rowmax::app
