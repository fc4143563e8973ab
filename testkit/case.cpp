#include "testkit/case.h"

#include <algorithm>
#include <charconv>
#include <set>

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

// A word of the case's own: what it starts with, its fact and how its value is read.
struct OwnWord {
  std::string_view prefix;
  const char* fact;
  bool (*parse)(std::string_view value, Case* spec);
};

constexpr OwnWord kOwnWords[] = {
    {"seed", "seed",
     [](std::string_view value, Case* spec) { return parse_integer(value, &spec->seed); }},
    {"inputs=", "inputs",
     [](std::string_view value, Case* spec) {
       return parse_kind(value, kInputKindCount, &spec->inputs);
     }},
    {"strides=", "strides",
     [](std::string_view value, Case* spec) {
       return parse_kind(value, kStrideKindCount, &spec->strides);
     }},
    {"lengths=", "lengths",
     [](std::string_view value, Case* spec) {
       return parse_kind(value, kLengthKindCount, &spec->lengths);
     }},
    {"qlens=", "qlens",
     [](std::string_view value, Case* spec) { return parse_list(value, &spec->query_lengths); }},
    {"klens=", "klens",
     [](std::string_view value, Case* spec) { return parse_list(value, &spec->key_lengths); }},
};

const OwnWord* own_word(std::string_view word) {
  for (const OwnWord& own : kOwnWords) {
    if (word.starts_with(own.prefix)) {
      return &own;
    }
  }
  return nullptr;
}

// Takes one word of the case's own; `facts` holds those that were stated before.
Status take_own_word(const OwnWord& own, std::string_view word, std::set<std::string>* facts,
                     Case* spec) {
  if (!own.parse(word.substr(own.prefix.size()), spec)) {
    return Status::invalid("word '" + std::string(word) +
                           "' is malformed; accepted words: docs/testing.md, \"Cases\"");
  }
  return facts->insert(own.fact).second ? Status()
                                        : Status::invalid("word '" + std::string(word) +
                                                          "': " + own.fact + " is stated twice");
}

Status no_effect(const char* word, const char* why) {
  return Status::invalid(std::string("word '") + word + "' has no effect: " + why);
}

// Whether a side of the case has lengths of its own, and whether some of them are drawn.
bool has_lengths(bool ragged, bool used) { return ragged || used; }
bool draws_lengths(bool ragged, bool used, const std::vector<int64_t>& given) {
  return given.empty() ? ragged || used : ragged && used;
}

bool alignment_matters(const AttentionProblem& p) { return !p.band.is_full() || p.score.alibi; }

bool lengths_matter(const Case& spec) {
  const Storage& s = spec.problem.storage;
  return draws_lengths(s.query == Source::kRagged, s.seqused_q, spec.query_lengths) ||
         draws_lengths(s.key == Source::kRagged, s.seqused_k, spec.key_lengths);
}

bool dlse_matters(const AttentionProblem& p) {
  const Gradients& g = p.gradients;
  return g.dq || g.dk || g.dbias || g.dsinks || g.dslopes;
}

// Whether two sequences may read the same elements of K and V.
bool sequences_share_keys(const Case& spec) {
  const AttentionProblem& p = spec.problem;
  const bool one_stride =
      spec.strides == StrideKind::kBroadcastKv && p.sizes.heads_kv == 1;  // else heads share
  return (p.storage.key != Source::kRagged && one_stride) ||
         (p.storage.key == Source::kPaged &&
          p.storage.num_pages / p.sizes.batch < p.storage.max_pages);
}

Status check_nan_sequence(const Case& spec) {
  const AttentionProblem& p = spec.problem;
  if (p.op != Op::kForward || p.sizes.batch < 2) {
    return Status::invalid("inputs=nansequence; accepted: with forward and two or more sequences");
  }
  if (sequences_share_keys(spec)) {
    return Status::invalid(
        "inputs=nansequence: the sequences share K and V; accepted: strides other than "
        "broadcast_kv where there is one KV head, pages for every entry of the block table");
  }
  if (p.score.mask.present || p.score.document_ids) {
    return Status::invalid(
        "inputs=nansequence: with a mask or documents a row may see no key; accepted: neither");
  }
  return {};
}

Status check_own_words(const Case& spec, const std::set<std::string>& facts) {
  const Storage& s = spec.problem.storage;
  if (!spec.query_lengths.empty() && !has_lengths(s.query == Source::kRagged, s.seqused_q)) {
    return no_effect("qlens", "query lengths need ragged_q or used_q");
  }
  if (!spec.key_lengths.empty() && !has_lengths(s.key == Source::kRagged, s.seqused_k)) {
    return no_effect("klens", "key lengths need ragged_k or used_k");
  }
  if (s.key == Source::kPaged && s.num_pages == 0 &&
      std::any_of(spec.key_lengths.begin(), spec.key_lengths.end(),
                  [](int64_t length) { return length != 0; })) {
    return Status::invalid("klens: there are keys but no pages; accepted: 0");
  }
  if (spec.inputs == InputKind::kNanSequence) {
    if (Status status = check_nan_sequence(spec); !status.ok()) {
      return status;
    }
  }
  if (facts.count("lengths") != 0 && !lengths_matter(spec)) {
    return no_effect("lengths",
                     "no length is drawn; it needs ragged_q, ragged_k, used_q or used_k without "
                     "qlens and klens");
  }
  return {};
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
      "gaussian", "large", "near-100", "minus5e5", "equal", "onekey", "outlier", "nansequence"};
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

Status check_words(const AttentionProblem& problem) {
  if (problem.band.alignment == Alignment::kTopLeft && !alignment_matters(problem)) {
    return no_effect("topleft", "it aligns a band or ALiBi; needed: causal, window or alibi");
  }
  if (problem.gradients.dlse && !dlse_matters(problem)) {
    return no_effect("dlse", "a gradient of the LSE reaches every gradient but dv");
  }
  return {};
}

void drop_idle_words(Case* spec) {
  AttentionProblem& problem = spec->problem;
  if (!alignment_matters(problem)) {
    problem.band.alignment = Alignment::kBottomRight;
  }
  problem.gradients.dlse = problem.gradients.dlse && dlse_matters(problem);
  if (!lengths_matter(*spec)) {
    spec->lengths = LengthKind::kRandom;
  }
}

Result<Case> parse_case(std::string_view text) {
  Case spec;
  std::string problem_words;
  std::set<std::string> facts;
  while (!text.empty()) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) {
      break;
    }
    text.remove_prefix(begin);
    const size_t size = std::min(text.find_first_of(" \t\r\n"), text.size());
    const std::string_view word = text.substr(0, size);
    text.remove_prefix(size);
    const OwnWord* own = own_word(word);
    if (own == nullptr) {
      problem_words += (problem_words.empty() ? "" : " ") + std::string(word);
    } else if (Status status = take_own_word(*own, word, &facts, &spec); !status.ok()) {
      return status;
    }
  }
  Result<AttentionProblem> problem = parse_problem(problem_words);
  if (!problem.ok()) {
    return problem.status();
  }
  spec.problem = *problem;
  const int64_t batch = problem->sizes.batch;
  for (const Status& status : {check_list(spec.query_lengths, batch, "qlens"),
                               check_list(spec.key_lengths, batch, "klens"),
                               check_own_words(spec, facts), check_words(*problem)}) {
    if (!status.ok()) {
      return status;
    }
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
