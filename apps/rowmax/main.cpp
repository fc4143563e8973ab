// The command `rowmax`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "rowmax/version.h"
#include "verbs.h"

namespace rowmax::app {

void bad_input(const std::string& message) { throw Failure(kExitBadInput, message); }

void require(const Status& status, const std::string& context) {
  if (status.ok()) {
    return;
  }
  const bool internal =
      status.code() == StatusCode::kInternal || status.code() == StatusCode::kOutOfMemory;
  const std::string prefix = context.empty() ? "" : context + ": ";
  const std::string kind =
      status.code() == StatusCode::kIoError || status.code() == StatusCode::kInvalidArgument
          ? ""
          : fmt::format("{}: ", to_string(status.code()));
  throw Failure(internal ? kExitInternal : kExitBadInput, prefix + kind + status.message());
}

namespace {

constexpr const char* kFooter = R"(Exit codes:
  0  everything asked for was done and every check passed
  1  a check failed: an error is above its limit
  2  bad input: a file, a case or an option is wrong; nothing was written
  3  internal error

Results go to stdout, everything else to stderr.

Examples:
  rowmax attend data/minilm_layer3_dense.safetensors --check
  rowmax attend q.npy k.npy v.npy --causal --out result.safetensors
  rowmax verify --suite smoke
  rowmax bench "forward f32 b1 h8 s1024 d64" --baseline naive
  rowmax explain "backward bf16 b2 hq8 hkv2 s4096 d128 causal"
Environment:
  ROWMAX_MAX_ISA=portable|avx2   lowers the instruction set in use
  ROWMAX_FORCE_KERNEL=NAME       forces a kernel by name)";

struct NamedVerb {
  const char* name;
  const char* summary;
  Verb (*add)(CLI::App&);
};

constexpr NamedVerb kVerbs[] = {
    {"attend", "attention on the tensors of a file", add_attend},
    {"verify", "run cases against the fp64 reference", add_verify},
    {"bench", "time cases, also against a naive implementation", add_bench},
    {"tune", "time every kernel on a GPU and write the planner's ranking table", add_tune},
    {"explain", "what is chosen for a case, and why", add_explain},
    {"devices", "the devices, instruction sets and caches in use", add_devices},
};

// "--json=" would take the next argument for its value. Empty: no argument is one of these.
std::string option_without_value(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") {
      break;
    }
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) {
      return std::string(argument);
    }
  }
  return {};
}

int run(int argc, char** argv) {
  if (const std::string option = option_without_value(argc, argv); !option.empty()) {
    fmt::print(stderr, "rowmax: {0} has no value; accepted: {0}VALUE\n", option);
    return kExitBadInput;
  }
  CLI::App app("Exact attention without the score matrix.", "rowmax");
  app.set_version_flag("--version", "rowmax " ROWMAX_VERSION_STRING);
  app.footer(kFooter);
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  std::vector<std::pair<CLI::App*, Verb>> verbs;
  for (const NamedVerb& verb : kVerbs) {
    CLI::App* command = app.add_subcommand(verb.name, verb.summary);
    verbs.emplace_back(command, verb.add(*command));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version are not errors; the library's own codes are not ours.
    return app.exit(error) == 0 ? kExitOk : kExitBadInput;
  }
  for (const auto& [command, verb] : verbs) {
    if (!command->parsed()) {
      continue;
    }
    int exit_code = kExitOk;
    std::string message;
    try {
      exit_code = verb();
    } catch (const Failure& failure) {
      exit_code = failure.exit_code();
      message = failure.what();
    } catch (const std::bad_alloc&) {
      exit_code = kExitInternal;
      message = "out of memory";
    } catch (const std::exception& error) {
      exit_code = kExitInternal;
      message = error.what();
    }
    if (!message.empty()) {
      fmt::print(stderr, "rowmax {}: {}{}\n", command->get_name(),
                 exit_code == kExitInternal ? "internal error: " : "", message);
    }
    if (std::fflush(stdout) != 0 && exit_code == kExitOk) {
      fmt::print(stderr, "rowmax {}: cannot write to stdout\n", command->get_name());
      return kExitInternal;
    }
    return exit_code;
  }
  return kExitBadInput;
}

}  // namespace
}  // namespace rowmax::app

int main(int argc, char** argv) { return rowmax::app::run(argc, argv); }
