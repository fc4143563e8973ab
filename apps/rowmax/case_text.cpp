#include "case_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "suites.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

std::vector<std::string> cases_from_arguments(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument.find(' ') != std::string::npos) {
      return arguments;
    }
  }
  return {join_words(arguments)};
}

std::vector<std::string> cases_of_suite(const std::string& name, const std::string& extra) {
  for (const Suite& suite : kSuites) {
    if (name != suite.name) {
      continue;
    }
    std::vector<std::string> cases;
    std::istringstream lines{std::string(suite.text)};
    for (std::string line; std::getline(lines, line);) {
      line.erase(std::min(line.find('#'), line.size()));
      line.erase(line.find_last_not_of(" \t\r") + 1);
      line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
      if (!line.empty()) {
        cases.push_back(line);
      }
    }
    return cases;
  }
  bad_input(fmt::format("suite '{}' is unknown; accepted: {}", name, suite_names(extra)));
}

}  // namespace

std::string join_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += text.empty() ? word : " " + word;
  }
  return text;
}

std::vector<testkit::Case> read_cases(const std::vector<std::string>& arguments,
                                      const std::string& suite, const std::string& default_suite,
                                      const std::string& extra) {
  if (!arguments.empty() && !suite.empty()) {
    bad_input("cases and --suite are given; accepted: one of them");
  }
  const std::vector<std::string> lines =
      arguments.empty() ? cases_of_suite(suite.empty() ? default_suite : suite, extra)
                        : cases_from_arguments(arguments);
  std::vector<testkit::Case> cases;
  for (const std::string& line : lines) {
    const std::string context = fmt::format("case \"{}\"", line);
    cases.push_back(require(testkit::parse_case(line), context));
    require(validate(cases.back().problem), context);
  }
  return cases;
}

std::string suite_names(const std::string& extra) {
  std::string names;
  for (const Suite& suite : kSuites) {
    names += names.empty() ? "" : ", ";
    names += suite.name;
  }
  return extra.empty() ? names : names + ", " + extra;
}

void out_of_memory(const testkit::Case& spec) {
  throw Failure(kExitInternal,
                fmt::format("case \"{}\": out of memory: its tensors, workspace and reference do "
                            "not fit this machine",
                            testkit::to_string(spec)));
}

}  // namespace rowmax::app
