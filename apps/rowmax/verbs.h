// The verbs of the command. Each registers its options and returns what runs it.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "rowmax/status.h"

namespace CLI {
class App;
}

namespace rowmax::app {

// Exit codes, as documented by --help.
inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitInternal = 3;

// Ends a verb with an exit code and a message on stderr.
class Failure : public std::runtime_error {
 public:
  Failure(int exit_code, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

[[noreturn]] void bad_input(const std::string& message);

// Throws a Failure unless `status` is ok: kInternal and kOutOfMemory are internal, the rest is the
// caller's input.
void require(const Status& status, const std::string& context = "");

template <class T>
T require(Result<T> result, const std::string& context = "") {
  require(result.status(), context);
  return std::move(result).value();
}

using Verb = std::function<int()>;
Verb add_attend(CLI::App& app);
Verb add_verify(CLI::App& app);
Verb add_bench(CLI::App& app);
Verb add_tune(CLI::App& app);
Verb add_explain(CLI::App& app);
Verb add_devices(CLI::App& app);

}  // namespace rowmax::app
