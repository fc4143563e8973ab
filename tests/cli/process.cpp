#include "process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "file_builder.h"

namespace rowmax::app::testing {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

}  // namespace

ProcessResult run_command(const std::vector<std::string>& arguments) {
  const TemporaryFolder folder;
  std::string line = shell_quoted(ROWMAX_COMMAND);
  for (const std::string& argument : arguments) {
    line += " " + shell_quoted(argument);
  }
  line += " >" + shell_quoted(folder.path("out")) + " 2>" + shell_quoted(folder.path("err"));
  const int status = std::system(line.c_str());
  ProcessResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = content_of(folder.path("out"));
  result.err = content_of(folder.path("err"));
  return result;
}

}  // namespace rowmax::app::testing
