// Cases as they come from the command line and from the embedded suites.
#pragma once

#include <string>
#include <vector>

#include "testkit/case.h"

namespace rowmax::app {

// The words of one case, joined by single spaces.
std::string join_words(const std::vector<std::string>& words);

// The cases given as arguments or those of a suite, all parsed and validated: a typing error at the
// end costs no minutes. Each argument that holds a space is a case of its own; when none does, all
// arguments together are the words of one case. No arguments: the embedded suite `suite`
// (tests/cases/NAME.txt), or `default_suite`. `extra` is a suite of the caller's own, for messages.
std::vector<testkit::Case> read_cases(const std::vector<std::string>& arguments,
                                      const std::string& suite, const std::string& default_suite,
                                      const std::string& extra = "");

// "smoke, ci, ..." and `extra`.
std::string suite_names(const std::string& extra = "");

// Empty for a finite number that is not negative, else what is accepted: a check of options.
std::string check_seconds(const std::string& text);

}  // namespace rowmax::app
