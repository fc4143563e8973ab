#include "option_checks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include "verbs.h"

namespace rowmax::app {
namespace {

template <class Value>
bool parse(const std::string& text, Value* value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return !text.empty() && error == std::errc() && stop == end;
}

std::string refused(const std::string& text, const std::string& accepted) {
  return fmt::format("is '{}'; accepted: {}", text, accepted);
}

// The text is replaced by the plain digits of its value, so that what is read later is what was
// checked ("010" is ten).
template <class Integer>
CLI::Validator integer_of(Integer least, Integer most) {
  return {[least, most](std::string& text) -> std::string {
            Integer value = 0;
            if (!parse(text, &value) || value < least || value > most) {
              return refused(text, fmt::format("{} to {}", least, most));
            }
            text = fmt::format("{}", value);
            return {};
          },
          fmt::format("{} to {}", least, most)};
}

CLI::Validator number_from(double least, const char* accepted) {
  return {[least, accepted](std::string& text) -> std::string {
            double value = 0.0;
            const bool good = parse(text, &value) && std::isfinite(value) && value >= least;
            return good ? "" : refused(text, accepted);
          },
          ""};
}

// Absolute and without links as far as the path exists.
std::filesystem::path resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(absolute, error);
  return error ? absolute.lexically_normal() : canonical;
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return resolved(a) == resolved(b) || std::filesystem::equivalent(a, b, error);
}

}  // namespace

CLI::Validator integer(int64_t least, int64_t most) { return integer_of<int64_t>(least, most); }

CLI::Validator unsigned_integer() {
  return integer_of<uint64_t>(0, std::numeric_limits<uint64_t>::max());
}

CLI::Validator number() {
  return number_from(std::numeric_limits<double>::lowest(), "a finite decimal number");
}

CLI::Validator seconds() { return number_from(0.0, "seconds, finite and not negative"); }

CLI::Validator not_empty(const std::string& accepted) {
  return {[accepted](std::string& text) { return text.empty() ? refused(text, accepted) : ""; },
          ""};
}

void refuse_unwritable(const NamedPath& output) {
  if (output.path.empty()) {
    return;
  }
  std::error_code error;
  const std::filesystem::path target = resolved(output.path);
  // A file is made anew in its folder; a device or a pipe is written to (write_file_atomically).
  const bool special = std::filesystem::exists(output.path, error) &&
                       !std::filesystem::is_regular_file(target, error) &&
                       !std::filesystem::is_directory(target, error);
  const std::filesystem::path written =
      special ? std::filesystem::path(output.path) : target.parent_path();
  if (std::filesystem::is_directory(target, error) || ::access(written.c_str(), W_OK) != 0) {
    bad_input(fmt::format("{} is '{}'; accepted: a file in a folder that can be written to",
                          output.option, output.path));
  }
}

void refuse_same_file(const NamedPath& output, const std::vector<NamedPath>& others) {
  for (const NamedPath& other : others) {
    if (!output.path.empty() && !other.path.empty() && same_file(output.path, other.path)) {
      bad_input(fmt::format("{} is '{}', the file of {} '{}'; accepted: a file of its own",
                            output.option, output.path, other.option, other.path));
    }
  }
}

}  // namespace rowmax::app
