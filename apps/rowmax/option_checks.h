// Checks of option values: the whole text must be what the option accepts, and the message says so.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace rowmax::app {

// A decimal integer from `least` to `most`. Nothing wraps, whatever the type of the option.
CLI::Validator integer(int64_t least, int64_t most);

// A decimal integer of 64 bits without a sign.
CLI::Validator unsigned_integer();

// A finite decimal number that a double can hold.
CLI::Validator number();

// The same, not negative.
CLI::Validator seconds();

// Any text but the empty one: an option that was given is never taken for one that was not.
CLI::Validator not_empty(const std::string& accepted);

// A file that a command reads or writes, and the option or argument that names it.
struct NamedPath {
  std::string option;
  std::string path;  // empty: none
};

// Throws a Failure when no file can be made in the folder of `output`: before the work, not after
// it.
void refuse_unwritable(const NamedPath& output);

// Throws a Failure when `output` is the same file as one of `others`, also by another spelling or
// through a link.
void refuse_same_file(const NamedPath& output, const std::vector<NamedPath>& others);

}  // namespace rowmax::app
