// Cases as they come from the command line and from the embedded suites.
#pragma once

#include <new>
#include <stdexcept>
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

// Throws the Failure of a case that finds no memory.
[[noreturn]] void out_of_memory(const testkit::Case& spec);

// Runs work(); memory that it does not find is reported with the case.
template <class Work>
auto with_memory_for(const testkit::Case& spec, Work&& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    out_of_memory(spec);
  } catch (const std::length_error&) {  // more than any vector holds
    out_of_memory(spec);
  }
}

}  // namespace rowmax::app
