#include "testkit/case.h"

#include <charconv>

namespace rowmax::testkit {
namespace {

std::string list_text(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) {
    text += (text.empty() ? "" : ",") + std::to_string(value);
  }
  return text;
}

template <class Integer>
bool parse_integer(std::string_view text, Integer* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool parse_list(std::string_view text, std::vector<int64_t>* values) {
  values->clear();
  for (;;) {
    const size_t comma = text.find(',');
    int64_t value = 0;
    if (!parse_integer(text.substr(0, comma), &value)) {
      return false;
    }
    values->push_back(value);
    if (comma == std::string_view::npos) {
      return true;
    }
    text.remove_prefix(comma + 1);
  }
}

template <class Kind>
bool parse_kind(std::string_view text, int count, Kind* kind) {
  for (int value = 0; value < count; ++value) {
    if (text == to_string(static_cast<Kind>(value))) {
      *kind = static_cast<Kind>(value);
      return true;
    }
  }
  return false;
}

// Whether `word` is one of the case's own words; `well_formed` says whether its value is.
bool take_word(std::string_view word, Case* spec, bool* well_formed) {
  const auto value_of = [word](std::string_view prefix) { return word.substr(prefix.size()); };
  if (word.starts_with("seed")) {
    *well_formed = parse_integer(value_of("seed"), &spec->seed);
  } else if (word.starts_with("inputs=")) {
    *well_formed = parse_kind(value_of("inputs="), kInputKindCount, &spec->inputs);
  } else if (word.starts_with("strides=")) {
    *well_formed = parse_kind(value_of("strides="), kStrideKindCount, &spec->strides);
  } else if (word.starts_with("lengths=")) {
    *well_formed = parse_kind(value_of("lengths="), kLengthKindCount, &spec->lengths);
  } else if (word.starts_with("qlens=")) {
    *well_formed = parse_list(value_of("qlens="), &spec->query_lengths);
  } else if (word.starts_with("klens=")) {
    *well_formed = parse_list(value_of("klens="), &spec->key_lengths);
  } else {
    return false;
  }
  return true;
}

Status check_list(const std::vector<int64_t>& lengths, int64_t batch, const char* name) {
  if (!lengths.empty() && static_cast<int64_t>(lengths.size()) != batch) {
    return Status::invalid(std::string(name) + " has " + std::to_string(lengths.size()) +
                           " lengths; accepted: one for each of the " + std::to_string(batch) +
                           " batch elements");
  }
  return {};
}

}  // namespace

const char* to_string(InputKind kind) {
  static constexpr const char* kNames[kInputKindCount] = {
      "gaussian", "large", "near-100", "minus5e5", "equal", "onekey", "outlier"};
  return kNames[static_cast<int>(kind)];
}

const char* to_string(StrideKind kind) {
  static constexpr const char* kNames[kStrideKindCount] = {"contiguous",   "fused_qkv", "bhsd",
                                                           "broadcast_kv", "padded",    "aligned"};
  return kNames[static_cast<int>(kind)];
}

const char* to_string(LengthKind kind) {
  static constexpr const char* kNames[kLengthKindCount] = {"random", "full", "zero", "one"};
  return kNames[static_cast<int>(kind)];
}

std::string to_string(const Case& spec) {
  const Case defaults;
  std::string text = to_string(spec.problem) + " seed" + std::to_string(spec.seed);
  if (spec.inputs != defaults.inputs) {
    text += std::string(" inputs=") + to_string(spec.inputs);
  }
  if (spec.strides != defaults.strides) {
    text += std::string(" strides=") + to_string(spec.strides);
  }
  if (spec.lengths != defaults.lengths) {
    text += std::string(" lengths=") + to_string(spec.lengths);
  }
  if (!spec.query_lengths.empty()) {
    text += " qlens=" + list_text(spec.query_lengths);
  }
  if (!spec.key_lengths.empty()) {
    text += " klens=" + list_text(spec.key_lengths);
  }
  return text;
}

Result<Case> parse_case(std::string_view text) {
  Case spec;
  std::string problem_words;
  while (!text.empty()) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) {
      break;
    }
    text.remove_prefix(begin);
    const size_t size = std::min(text.find_first_of(" \t\r\n"), text.size());
    const std::string_view word = text.substr(0, size);
    text.remove_prefix(size);
    bool well_formed = true;
    if (!take_word(word, &spec, &well_formed)) {
      problem_words += (problem_words.empty() ? "" : " ") + std::string(word);
    } else if (!well_formed) {
      return Status::invalid("word '" + std::string(word) +
                             "' is malformed; accepted words: docs/testing.md, \"Cases\"");
    }
  }
  Result<AttentionProblem> problem = parse_problem(problem_words);
  if (!problem.ok()) {
    return problem.status();
  }
  spec.problem = *problem;
  if (Status status = check_list(spec.query_lengths, problem->sizes.batch, "qlens"); !status.ok()) {
    return status;
  }
  if (Status status = check_list(spec.key_lengths, problem->sizes.batch, "klens"); !status.ok()) {
    return status;
  }
  return spec;
}

Result<std::vector<Case>> parse_cases(std::string_view text) {
  std::vector<Case> cases;
  int line_number = 0;
  while (!text.empty()) {
    const size_t size = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, size);
    text.remove_prefix(std::min(size + 1, text.size()));
    ++line_number;
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') {
      continue;
    }
    Result<Case> spec = parse_case(line);
    if (!spec.ok()) {
      return Status::invalid("line " + std::to_string(line_number) + ": " +
                             spec.status().message());
    }
    cases.push_back(*spec);
  }
  return cases;
}

}  // namespace rowmax::testkit
