#include "case_text.h"

#include <fmt/format.h>

#include <sstream>
#include <string_view>

#include "suites.h"
#include "verbs.h"

namespace rowmax::app {

std::string join_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += text.empty() ? word : " " + word;
  }
  return text;
}

std::vector<std::string> cases_from_arguments(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument.find(' ') != std::string::npos) {
      return arguments;
    }
  }
  if (arguments.empty()) {
    return {};
  }
  return {join_words(arguments)};
}

std::vector<std::string> cases_of_suite(const std::string& name) {
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
  bad_input(fmt::format("suite '{}' is unknown; accepted: {}", name, suite_names()));
}

std::string suite_names() {
  std::string names;
  for (const Suite& suite : kSuites) {
    names += names.empty() ? "" : ", ";
    names += suite.name;
  }
  return names;
}

}  // namespace rowmax::app
