// Cases as they come from the command line and from the embedded suites.
#pragma once

#include <string>
#include <vector>

namespace rowmax::app {

// The words of one case, joined by single spaces.
std::string join_words(const std::vector<std::string>& words);

// The cases given as arguments. Each argument that holds a space is a case of its own; when none
// does, all arguments together are the words of one case.
std::vector<std::string> cases_from_arguments(const std::vector<std::string>& arguments);

// The lines of an embedded suite (tests/cases/NAME.txt) without comments, or a Failure that names
// the suites.
std::vector<std::string> cases_of_suite(const std::string& name);

// "smoke, ci, ...".
std::string suite_names();

}  // namespace rowmax::app
