// Runs the command as a child process.
#pragma once

#include <string>
#include <vector>

namespace rowmax::app::testing {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal when killed by one
  std::string out;
  std::string err;
};

ProcessResult run_command(const std::vector<std::string>& arguments);

}  // namespace rowmax::app::testing
