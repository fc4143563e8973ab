// The case files of tests/cases/, embedded by the build.
#pragma once

#include <span>
#include <string_view>

namespace rowmax::app {

struct Suite {
  std::string_view name;
  std::string_view text;
};

extern const std::span<const Suite> kSuites;

}  // namespace rowmax::app
