// The text form of problems. Grammar: docs/testing.md, "Text form of problems".
#include <fmt/format.h>

#include <charconv>
#include <set>
#include <string>
#include <vector>

#include "rowmax/problem.h"

namespace rowmax {
namespace {

std::string bound_text(const Bound& bound) {
  return bound.bounded() ? std::to_string(bound.value()) : "inf";
}

std::string axes_text(const BroadcastShape& shape) {
  std::string text;
  text += shape.batch ? "b" : "";
  text += shape.heads ? "h" : "";
  text += shape.rows ? "r" : "";
  text += shape.cols ? "c" : "";
  return text.empty() ? "-" : text;
}

std::string gradients_text(const Gradients& g) {
  std::string text;
  const auto add = [&text](bool wanted, const char* name) {
    if (wanted) {
      text += text.empty() ? name : std::string(",") + name;
    }
  };
  add(g.dq, "dq");
  add(g.dk, "dk");
  add(g.dv, "dv");
  add(g.dbias, "dbias");
  add(g.dsinks, "dsinks");
  add(g.dslopes, "dslopes");
  return text.empty() ? "-" : text;
}

// Words in canonical order, joined by single spaces.
class Words {
 public:
  void add(const std::string& word) { text_ += text_.empty() ? word : " " + word; }
  void add_if(bool condition, const char* word) {
    if (condition) {
      add(word);
    }
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_sizes(const Sizes& s, Words& words) {
  words.add(fmt::format("b{}", s.batch));
  words.add(s.heads_q == s.heads_kv ? fmt::format("h{}", s.heads_q)
                                    : fmt::format("hq{} hkv{}", s.heads_q, s.heads_kv));
  words.add(s.seqlen_q == s.seqlen_k ? fmt::format("s{}", s.seqlen_q)
                                     : fmt::format("sq{} sk{}", s.seqlen_q, s.seqlen_k));
  words.add(fmt::format("d{}", s.head_dim));
  if (s.head_dim_v != s.head_dim) {
    words.add(fmt::format("dv{}", s.head_dim_v));
  }
}

void add_band(const Band& band, Words& words) {
  if (band.left == Bound::unbounded() && band.right == Bound::at(0)) {
    words.add("causal");
  } else if (!band.is_full()) {
    words.add(fmt::format("window={},{}", bound_text(band.left), bound_text(band.right)));
  }
  words.add_if(band.alignment == Alignment::kTopLeft, "topleft");
}

void add_storage(const Storage& s, Words& words) {
  if (s.query == Source::kRagged) {
    words.add(fmt::format("ragged_q={}", s.total_q));
  }
  if (s.key == Source::kRagged) {
    words.add(fmt::format("ragged_k={}", s.total_k));
  }
  if (s.key == Source::kPaged) {
    words.add(fmt::format("paged={},{},{}", s.page_size, s.num_pages, s.max_pages));
  }
  words.add_if(s.seqused_q, "used_q");
  words.add_if(s.seqused_k, "used_k");
}

void add_score(const ScoreOptions& score, Words& words) {
  if (score.mask.present) {
    words.add("mask=" + axes_text(score.mask));
  }
  if (score.bias.present) {
    words.add(fmt::format("bias={}:{}", to_string(score.bias.dtype), axes_text(score.bias)));
  }
  if (score.alibi) {
    words.add(score.alibi_per_batch ? "alibi=batch" : "alibi");
  }
  words.add_if(score.document_ids, "documents");
  words.add_if(score.block_mask, "blockmask");
  words.add_if(score.sinks, "sinks");
  // {} of a double is its shortest text that reads back to the same value.
  if (score.softcap != 0.0) {
    words.add(fmt::format("softcap={}", score.softcap));
  }
  if (score.scale != 0.0) {
    words.add(fmt::format("scale={}", score.scale));
  }
  if (score.dropout_p != 0.0) {
    words.add(fmt::format("dropout={}", score.dropout_p));
  }
}

// ---- parsing ------------------------------------------------------------------------------------

bool parse_int(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

bool parse_double(std::string_view text, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(at + 1);
  }
}

bool parse_bound(std::string_view text, Bound& bound) {
  int64_t value = 0;
  if (text == "inf") {
    bound = Bound::unbounded();
    return true;
  }
  if (!parse_int(text, value)) {
    return false;
  }
  bound = Bound::at(value);
  return true;
}

bool parse_axes(std::string_view text, BroadcastShape& shape) {
  shape.present = true;
  if (text == "-") {
    return true;
  }
  for (const char letter : text) {
    bool* axis = letter == 'b'   ? &shape.batch
                 : letter == 'h' ? &shape.heads
                 : letter == 'r' ? &shape.rows
                 : letter == 'c' ? &shape.cols
                                 : nullptr;
    if (axis == nullptr || *axis) {
      return false;
    }
    *axis = true;
  }
  return !text.empty();
}

bool parse_gradients(std::string_view text, Gradients& g) {
  g.dq = g.dk = g.dv = false;
  if (text == "-") {
    return true;
  }
  for (const std::string_view name : split(text, ',')) {
    bool* wanted = name == "dq"        ? &g.dq
                   : name == "dk"      ? &g.dk
                   : name == "dv"      ? &g.dv
                   : name == "dbias"   ? &g.dbias
                   : name == "dsinks"  ? &g.dsinks
                   : name == "dslopes" ? &g.dslopes
                                       : nullptr;
    if (wanted == nullptr || *wanted) {
      return false;
    }
    *wanted = true;
  }
  return true;
}

// Collects the words of one line. Facts that default to another fact (hkv to hq, dv to d, out to
// dtype) are completed by finish(), so that the order of words does not matter.
class Parser {
 public:
  Status take(std::string_view word);
  Result<AttentionProblem> finish();

 private:
  // Each fact once: "h8" states hq and hkv.
  Status once(std::string_view word, const std::string& fact) {
    return facts_.insert(fact).second
               ? Status()
               : Status::invalid(fmt::format("word '{}': {} is stated twice", word, fact));
  }
  bool stated(const char* fact) const { return facts_.count(fact) != 0; }
  Status bad(std::string_view word, const char* accepted) const {
    return Status::invalid(fmt::format("word '{}' is malformed; accepted: {}", word, accepted));
  }
  Status take_flag(std::string_view word, bool& known);
  Status take_dtype(std::string_view word, bool& known);
  Status take_size(std::string_view word, bool& known);
  Status take_value(std::string_view word, std::string_view key, std::string_view value);
  Status take_storage(std::string_view word, std::string_view key, std::string_view value,
                      bool& known);
  Status take_number(std::string_view word, std::string_view key, std::string_view value);

  AttentionProblem problem_;
  std::set<std::string> facts_;
  Band causal_;
  Band window_;
};

Status Parser::take_flag(std::string_view word, bool& known) {
  known = true;
  if (word == "forward" || word == "backward") {
    problem_.op = word == "forward" ? Op::kForward : Op::kBackward;
    return once(word, "op");
  }
  if (word == "causal") {
    causal_ = Band::causal();
    return once(word, "causal");
  }
  if (word == "topleft") {
    problem_.band.alignment = Alignment::kTopLeft;
    return once(word, "topleft");
  }
  if (word == "nolse") {
    problem_.lse = false;
    return once(word, "nolse");
  }
  const struct {
    std::string_view word;
    bool* flag;
  } flags[] = {
      {"used_q", &problem_.storage.seqused_q},   {"used_k", &problem_.storage.seqused_k},
      {"alibi", &problem_.score.alibi},          {"documents", &problem_.score.document_ids},
      {"blockmask", &problem_.score.block_mask}, {"sinks", &problem_.score.sinks},
      {"dlse", &problem_.gradients.dlse},        {"invariant", &problem_.batch_invariant},
  };
  for (const auto& flag : flags) {
    if (word == flag.word) {
      *flag.flag = true;
      return once(word, std::string(word));
    }
  }
  known = false;
  return {};
}

Status Parser::take_dtype(std::string_view word, bool& known) {
  const Result<DType> dtype = parse_dtype(word);
  known = dtype.ok();
  if (!known) {
    return {};
  }
  problem_.dtype = *dtype;
  return once(word, "dtype");
}

Status Parser::take_size(std::string_view word, bool& known) {
  Sizes& s = problem_.sizes;
  const struct {
    std::string_view prefix;
    int64_t* first;
    const char* first_fact;
    int64_t* second;  // of a word that states two facts
    const char* second_fact;
  } sizes[] = {
      {"b", &s.batch, "b", nullptr, nullptr},        {"h", &s.heads_q, "hq", &s.heads_kv, "hkv"},
      {"hq", &s.heads_q, "hq", nullptr, nullptr},    {"hkv", &s.heads_kv, "hkv", nullptr, nullptr},
      {"s", &s.seqlen_q, "sq", &s.seqlen_k, "sk"},   {"sq", &s.seqlen_q, "sq", nullptr, nullptr},
      {"sk", &s.seqlen_k, "sk", nullptr, nullptr},   {"d", &s.head_dim, "d", nullptr, nullptr},
      {"dv", &s.head_dim_v, "dv", nullptr, nullptr},
  };
  const size_t digits = word.find_first_of("-0123456789");
  known = false;
  if (digits == std::string_view::npos) {
    return {};
  }
  for (const auto& size : sizes) {
    if (word.substr(0, digits) != size.prefix) {
      continue;
    }
    known = true;
    if (!parse_int(word.substr(digits), *size.first)) {
      return bad(word, "an integer of 64 bits after the letters");
    }
    if (size.second == nullptr) {
      return once(word, size.first_fact);
    }
    *size.second = *size.first;
    const Status status = once(word, size.first_fact);
    return status.ok() ? once(word, size.second_fact) : status;
  }
  return {};
}

Status Parser::take_storage(std::string_view word, std::string_view key, std::string_view value,
                            bool& known) {
  Storage& storage = problem_.storage;
  known = true;
  if (key == "ragged_q") {
    storage.query = Source::kRagged;
    return parse_int(value, storage.total_q) ? once(word, "ragged_q") : bad(word, "ragged_q=TOTAL");
  }
  if (key == "ragged_k") {
    storage.key = Source::kRagged;
    return parse_int(value, storage.total_k) ? once(word, "the storage of keys")
                                             : bad(word, "ragged_k=TOTAL");
  }
  if (key == "paged") {
    const std::vector<std::string_view> parts = split(value, ',');
    storage.key = Source::kPaged;
    return parts.size() == 3 && parse_int(parts[0], storage.page_size) &&
                   parse_int(parts[1], storage.num_pages) && parse_int(parts[2], storage.max_pages)
               ? once(word, "the storage of keys")
               : bad(word, "paged=PAGE_SIZE,NUM_PAGES,MAX_PAGES");
  }
  known = false;
  return {};
}

Status Parser::take_number(std::string_view word, std::string_view key, std::string_view value) {
  ScoreOptions& score = problem_.score;
  double* number = key == "softcap"   ? &score.softcap
                   : key == "scale"   ? &score.scale
                   : key == "dropout" ? &score.dropout_p
                                      : nullptr;
  if (number == nullptr) {
    return Status::invalid(
        fmt::format("word '{}' is unknown; accepted words: docs/testing.md, \"Text form of "
                    "problems\"",
                    word));
  }
  return parse_double(value, *number) ? once(word, std::string(key))
                                      : bad(word, "a decimal number after '='");
}

Status Parser::take_value(std::string_view word, std::string_view key, std::string_view value) {
  ScoreOptions& score = problem_.score;
  if (key == "window") {
    const std::vector<std::string_view> parts = split(value, ',');
    return parts.size() == 2 && parse_bound(parts[0], window_.left) &&
                   parse_bound(parts[1], window_.right)
               ? once(word, "window")
               : bad(word, "window=LEFT,RIGHT, each an integer or inf");
  }
  if (key == "mask") {
    return parse_axes(value, score.mask) ? once(word, "mask")
                                         : bad(word, "mask= and letters of bhrc, or -");
  }
  if (key == "bias") {
    const std::vector<std::string_view> parts = split(value, ':');
    const Result<DType> dtype = parse_dtype(parts[0]);
    if (parts.size() != 2 || !dtype.ok() || !parse_axes(parts[1], score.bias)) {
      return bad(word, "bias=DTYPE: and letters of bhrc, or -");
    }
    score.bias.dtype = *dtype;
    return once(word, "bias");
  }
  if (key == "alibi") {
    score.alibi = score.alibi_per_batch = true;
    return value == "batch" ? once(word, "alibi") : bad(word, "alibi, alibi=batch");
  }
  if (key == "out") {
    const Result<DType> dtype = parse_dtype(value);
    if (!dtype.ok()) {
      return bad(word, "out=DTYPE");
    }
    problem_.out_dtype = *dtype;
    return once(word, "out");
  }
  if (key == "grads") {
    return parse_gradients(value, problem_.gradients)
               ? once(word, "grads")
               : bad(word, "grads= and names of dq,dk,dv,dbias,dsinks,dslopes, or -");
  }
  bool known = false;
  const Status status = take_storage(word, key, value, known);
  return known ? status : take_number(word, key, value);
}

Status Parser::take(std::string_view word) {
  const size_t equals = word.find('=');
  if (equals != std::string_view::npos) {
    return take_value(word, word.substr(0, equals), word.substr(equals + 1));
  }
  using Taker = Status (Parser::*)(std::string_view, bool&);
  for (const Taker taker : {&Parser::take_flag, &Parser::take_dtype, &Parser::take_size}) {
    bool known = false;
    const Status status = (this->*taker)(word, known);
    if (known) {
      return status;
    }
  }
  return take_number(word, word, {});
}

Result<AttentionProblem> Parser::finish() {
  for (const char* fact : {"op", "dtype", "sq", "sk", "d"}) {
    if (!stated(fact)) {
      return Status::invalid(fmt::format(
          "no word states {}; needed: forward or backward, a dtype, sN or sqN skN, dN", fact));
    }
  }
  Sizes& s = problem_.sizes;
  if (!stated("hkv")) {
    s.heads_kv = s.heads_q;
  } else if (!stated("hq")) {
    return Status::invalid("word 'hkv' comes without hq; accepted: hN, or hqN hkvN");
  }
  if (!stated("dv")) {
    s.head_dim_v = s.head_dim;
  }
  if (!stated("out")) {
    problem_.out_dtype = problem_.dtype;
  }
  const Band band = intersect(causal_, window_);
  problem_.band.left = band.left;
  problem_.band.right = band.right;
  return problem_;
}

}  // namespace

std::string to_string(const AttentionProblem& problem) {
  Words words;
  words.add(problem.op == Op::kForward ? "forward" : "backward");
  words.add(to_string(problem.dtype));
  add_sizes(problem.sizes, words);
  add_band(problem.band, words);
  add_storage(problem.storage, words);
  add_score(problem.score, words);
  if (problem.out_dtype != problem.dtype) {
    words.add(fmt::format("out={}", to_string(problem.out_dtype)));
  }
  words.add_if(!problem.lse, "nolse");
  const std::string gradients = gradients_text(problem.gradients);
  if (gradients != gradients_text(Gradients())) {
    words.add("grads=" + gradients);
  }
  words.add_if(problem.gradients.dlse, "dlse");
  words.add_if(problem.batch_invariant, "invariant");
  return words.text();
}

Result<AttentionProblem> parse_problem(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  Parser parser;
  for (;;) {
    const size_t begin = text.find_first_not_of(kSpaces);
    if (begin == std::string_view::npos) {
      return parser.finish();
    }
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find_first_of(kSpaces));
    if (Status status = parser.take(word); !status.ok()) {
      return status;
    }
    text.remove_prefix(word.size());
  }
}

}  // namespace rowmax
