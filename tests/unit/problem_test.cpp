// Text form and rules of problems.
#include "rowmax/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace rowmax {
namespace {

AttentionProblem parsed(const std::string& text) {
  Result<AttentionProblem> problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << text << ": " << problem.status().message();
  return problem.ok() ? *problem : AttentionProblem();
}

TEST(ProblemText, CanonicalLinesAreFixedPoints) {
  const char* const lines[] = {
      "forward bf16 b2 hq8 hkv2 sq113 sk203 d128 causal",
      "forward f32 b1 h8 s512 d64",
      "forward f64 b0 h1 sq0 sk5 d1 dv576 nolse",
      "forward f16 b3 hq6 hkv2 sq7 sk40 d80 dv64 window=5,inf topleft",
      "forward f32 b3 h2 sq7 sk40 d8 window=-3,12 ragged_q=21 ragged_k=130 used_q used_k",
      "forward f16 b3 h2 sq1 sk64 d8 paged=16,40,4 used_k out=f32",
      "forward f32 b1 h4 s16 d8 mask=bhrc bias=bf16:hc alibi=batch documents blockmask sinks",
      "forward f32 b1 h4 s16 d8 mask=- bias=f32:- alibi softcap=30 scale=0.1 dropout=0.1",
      "forward bf16 b1 h4 s16 d8 out=f32 invariant",
      "backward f32 b1 h4 s16 d8 bias=f32:rc alibi sinks "
      "grads=dq,dk,dv,dbias,dsinks,dslopes dlse",
      "backward f32 b1 h4 s16 d8 grads=dv",
  };
  for (const std::string line : lines) {
    EXPECT_EQ(to_string(parsed(line)), line);
  }
}

TEST(ProblemText, WordsInAnyOrderAndShortForms) {
  EXPECT_EQ(to_string(parsed("causal d128 sk203 hkv2 sq113 bf16 hq8 b2 forward")),
            "forward bf16 b2 hq8 hkv2 sq113 sk203 d128 causal");
  EXPECT_EQ(to_string(parsed("dv16 out=f32 d16 s4 h2 f32 forward")), "forward f32 b1 h2 s4 d16");
  EXPECT_EQ(to_string(parsed("  forward\tf32 sq4 sk4 d8 hq4 hkv4 \n")), "forward f32 b1 h4 s4 d8");
  EXPECT_EQ(to_string(parsed("forward f32 s4 d8 hq4")), "forward f32 b1 h4 s4 d8");
  EXPECT_EQ(to_string(parsed("backward f32 s4 d8 grads=dv,dq,dk")), "backward f32 b1 h1 s4 d8");
}

TEST(ProblemText, CausalWithWindowTakesTheTighterBound) {
  EXPECT_EQ(to_string(parsed("forward f32 s64 d8 causal window=5,3")),
            "forward f32 b1 h1 s64 d8 window=5,0");
  EXPECT_EQ(to_string(parsed("forward f32 s64 d8 window=5,-3 causal")),
            "forward f32 b1 h1 s64 d8 window=5,-3");
  EXPECT_EQ(to_string(parsed("forward f32 s64 d8 window=inf,0")),
            "forward f32 b1 h1 s64 d8 causal");
  EXPECT_EQ(to_string(parsed("forward f32 s64 d8 window=inf,inf causal topleft")),
            "forward f32 b1 h1 s64 d8 causal topleft");
  EXPECT_TRUE(parsed("forward f32 s64 d8 window=inf,inf").band.is_full());
}

TEST(ProblemText, ErrorsNameTheWord) {
  const struct {
    const char* text;
    const char* named;
  } cases[] = {
      {"forward f32 s4 d8 fnord", "'fnord'"},
      {"forward f32 s4 d8 causal=1", "'causal=1'"},
      {"forward f32 s4x d8", "'s4x'"},
      {"forward f32 s d8", "'s'"},
      {"forward f32 s99999999999999999999 d8", "'s99999999999999999999'"},
      {"forward f32 s4 d8 window=3", "'window=3'"},
      {"forward f32 s4 d8 window=3,y", "'window=3,y'"},
      {"forward f32 s4 d8 mask=bb", "'mask=bb'"},
      {"forward f32 s4 d8 mask=", "'mask='"},
      {"forward f32 s4 d8 bias=f32", "'bias=f32'"},
      {"forward f32 s4 d8 bias=f99:h", "'bias=f99:h'"},
      {"forward f32 s4 d8 alibi=head", "'alibi=head'"},
      {"forward f32 s4 d8 paged=1,2", "'paged=1,2'"},
      {"forward f32 s4 d8 softcap=", "'softcap='"},
      {"forward f32 s4 d8 softcap=3z", "'softcap=3z'"},
      {"backward f32 s4 d8 grads=dx", "'grads=dx'"},
      {"forward f32 s4 d8 out=f31", "'out=f31'"},
      {"forward f32 s4 d8 s4", "'s4'"},
      {"forward f32 s4 d8 sq4", "'sq4'"},
      {"forward backward f32 s4 d8", "'backward'"},
      {"forward f32 f16 s4 d8", "'f16'"},
      {"forward f32 s4 d8 causal causal", "'causal'"},
      {"forward f32 s4 d8 alibi alibi=batch", "'alibi=batch'"},
      {"forward f32 s4 d8 ragged_k=4 paged=1,2,3", "'paged=1,2,3'"},
      {"forward f32 s4 d8 hkv2", "hkv"},
      {"forward f32 sq4 d8", "sk"},
      {"f32 s4 d8", "op"},
      {"forward s4 d8", "dtype"},
      {"forward f32 s4", "d"},
      {"", "op"},
  };
  for (const auto& c : cases) {
    const Result<AttentionProblem> problem = parse_problem(c.text);
    ASSERT_FALSE(problem.ok()) << c.text;
    EXPECT_EQ(problem.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(problem.status().message().find(c.named), std::string::npos)
        << c.text << ": " << problem.status().message();
  }
}

// ---- random problems ----------------------------------------------------------------------------

class RandomProblem {
 public:
  explicit RandomProblem(uint32_t seed) : generator_(seed) {}

  AttentionProblem next() {
    AttentionProblem p;
    p.op = flip() ? Op::kForward : Op::kBackward;
    p.dtype = floating();
    p.out_dtype = flip() ? p.dtype : DType::kF32;
    p.sizes.batch = below(4);
    p.sizes.heads_kv = 1 + below(3);
    p.sizes.heads_q = p.sizes.heads_kv * (1 + below(3));
    p.sizes.seqlen_q = below(100);
    p.sizes.seqlen_k = flip() ? p.sizes.seqlen_q : below(100);
    p.sizes.head_dim = 1 + below(100);
    p.sizes.head_dim_v = flip() ? p.sizes.head_dim : 1 + below(100);
    p.band.left = bound();
    p.band.right = bound();
    p.band.alignment = flip() ? Alignment::kBottomRight : Alignment::kTopLeft;
    fill_storage(p);
    fill_score(p.score);
    fill_gradients(p);
    p.lse = p.op == Op::kBackward || flip();
    p.batch_invariant = flip();
    return p;
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(generator_() % static_cast<uint64_t>(n)); }
  bool flip() { return below(2) == 0; }
  double real() {
    return std::ldexp(static_cast<double>(generator_()) + 1.0, -40 + int(below(40)));
  }
  DType floating() { return static_cast<DType>(below(4)); }
  Bound bound() { return flip() ? Bound::unbounded() : Bound::at(below(41) - 20); }
  BroadcastShape shape(DType dtype) {
    if (flip()) {
      return {};
    }
    return {true, dtype, flip(), flip(), flip(), flip()};
  }
  void fill_storage(AttentionProblem& p) {
    Storage& s = p.storage;
    s.seqused_q = flip();
    s.seqused_k = flip();
    if (flip()) {
      s.query = Source::kRagged;
      s.total_q = below(1000);
    }
    const int64_t source = below(3);
    if (source == 1) {
      s.key = Source::kRagged;
      s.total_k = below(1000);
    } else if (source == 2 && p.op == Op::kForward) {
      s.key = Source::kPaged;
      s.page_size = 1 + below(20);
      s.num_pages = below(50);
      s.max_pages = (p.sizes.seqlen_k + s.page_size - 1) / s.page_size;
      s.seqused_k = true;
    }
  }
  void fill_score(ScoreOptions& score) {
    score.scale = flip() ? 0.0 : real();
    score.softcap = flip() ? 0.0 : real();
    score.mask = shape(DType::kBool);
    score.bias = shape(floating());
    score.alibi = flip();
    score.alibi_per_batch = score.alibi && flip();
    score.document_ids = flip();
    score.block_mask = flip();
    score.sinks = flip();
    score.dropout_p = flip() ? 0.0 : static_cast<double>(generator_()) / 4294967296.0;
  }
  void fill_gradients(AttentionProblem& p) {
    if (p.op == Op::kForward) {
      return;
    }
    Gradients& g = p.gradients;
    g.dq = flip();
    g.dk = flip();
    g.dv = true;
    g.dbias = p.score.bias.present && flip();
    g.dsinks = p.score.sinks && flip();
    g.dslopes = p.score.alibi && flip();
    g.dlse = flip();
  }

  std::mt19937 generator_;
};

TEST(ProblemText, RandomProblemsRoundTrip) {
  RandomProblem random(7);
  for (int i = 0; i < 5000; ++i) {
    const AttentionProblem problem = random.next();
    ASSERT_TRUE(validate(problem).ok())
        << to_string(problem) << ": " << validate(problem).message();
    const Result<AttentionProblem> back = parse_problem(to_string(problem));
    ASSERT_TRUE(back.ok()) << to_string(problem) << ": " << back.status().message();
    ASSERT_TRUE(*back == problem) << to_string(problem) << "\n" << to_string(*back);
  }
}

// ---- rules --------------------------------------------------------------------------------------

TEST(ProblemRules, EmptySizesAreLegal) {
  for (const char* line :
       {"forward f32 b0 h1 s8 d8", "forward f32 h1 s0 d8", "forward f32 h1 sq0 sk8 d8",
        "backward f32 h1 sq8 sk0 d8", "forward f32 h1 s8 d8 ragged_q=0 ragged_k=0",
        "forward f32 h1 sq1 sk0 d8 paged=1,0,0 used_k"}) {
    EXPECT_TRUE(validate(parsed(line)).ok()) << line << ": " << validate(parsed(line)).message();
  }
}

// Upper bounds of ragged lengths are not sizes of a tensor.
TEST(ProblemRules, RaggedBoundsMayBeLoose) {
  const char* line = "forward f32 b1000 h32 s2147483647 d128 ragged_q=50000 ragged_k=50000";
  EXPECT_FALSE(validate(parsed(line)).ok());  // the score matrix is not countable
  const char* fewer =
      "forward f32 b1000 h32 sq2147483647 sk4096 d128 ragged_q=50000 ragged_k=50000";
  EXPECT_TRUE(validate(parsed(fewer)).ok()) << validate(parsed(fewer)).message();
}

TEST(ProblemRules, EndsOfTheSoftcapAreLegal) {
  for (const char* softcap : {"0", "1e-30", "1e30"}) {
    const std::string line = std::string("backward f32 s4 d8 softcap=") + softcap;
    EXPECT_TRUE(validate(parsed(line)).ok()) << line << ": " << validate(parsed(line)).message();
  }
}

TEST(ProblemRules, BlockMaskIsLegal) {
  EXPECT_TRUE(validate(parsed("forward f32 h1 s8 d8 blockmask")).ok());
}

TEST(ProblemRules, BrokenRulesNameTheArgument) {
  const struct {
    const char* text;
    const char* named;
  } cases[] = {
      {"forward i32 s4 d8", "dtype is i32"},
      {"forward f32 s4 d8 out=bf16", "out_dtype is bf16"},
      {"forward f32 b-1 s4 d8", "batch is -1"},
      {"forward f32 h0 s4 d8", "heads_q is 0"},
      {"forward f32 hq4 hkv0 s4 d8", "heads_kv is 0"},
      {"forward f32 sq-1 sk4 d8", "seqlen_q is -1"},
      {"forward f32 sq4 sk-1 d8", "seqlen_k is -1"},
      {"forward f32 s3000000000 d8", "seqlen_q is 3000000000"},
      {"forward f32 s4 d0", "head_dim is 0"},
      {"forward f32 s4 d8 dv-2", "head_dim_v is -2"},
      {"forward f32 b100 h100 s1000000000 d8", "batch * heads_q * seqlen_q * seqlen_k"},
      {"forward f32 b9000000000 h9000000000 s1 d8", "batch * seqlen_q * heads_q"},
      {"forward f64 h268435456 sq2147483647 sk1 d1", "batch * seqlen_q * heads_q"},
      {"forward f64 h268435456 sq1 sk2147483647 d1", "batch * seqlen_k * heads_kv"},
      {"forward f64 b1125899906842624 h1 s1 d1 ragged_q=9 ragged_k=9", "batch * heads_q"},
      {"forward f32 h2 s4 d8 ragged_q=90000000000000", "total_q * heads_q"},
      {"forward f32 s4 d8 ragged_q=-1", "total_q is -1"},
      {"forward f32 s4 d8 ragged_k=-1", "total_k is -1"},
      {"forward f32 s4 d8 ragged_k=9000000000000000000", "total_k * heads_kv"},
      {"forward f32 s4 d8 paged=4,4,4", "seqused_k is false"},
      {"forward f32 s4 d8 paged=0,4,4 used_k", "page_size is 0"},
      {"forward f32 s4 d8 paged=4,-1,4 used_k", "num_pages is -1"},
      {"forward f32 s4 d8 paged=4,4,-1 used_k", "max_pages is -1"},
      {"forward f32 s17 d8 paged=4,9,4 used_k", "seqlen_k is 17"},
      {"backward f32 s4 d8 paged=4,4,4 used_k", "op is backward"},
      {"forward f32 s4 d8 scale=inf", "scale is inf"},
      {"forward f32 s4 d8 scale=nan", "scale is nan"},
      {"forward f32 s4 d8 scale=1.1e30", "scale is 1.1e+30; accepted: -1e30 to 1e30"},
      {"forward f64 s4 d8 scale=-1.1e30", "scale is -1.1e+30"},
      {"forward f32 s4 d8 scale=1e10 softcap=1e-21", "scale / softcap is"},
      {"backward bf16 s4 d8 scale=-1e-20 softcap=1e18", "accepted: 1e-37 to 1e30"},
      {"forward f32 s4 d8 softcap=-1", "softcap is -1"},
      {"forward f32 s4 d8 softcap=inf", "softcap is inf; accepted: 0 (none), 1e-30 to 1e30"},
      {"forward f32 s4 d8 softcap=nan", "softcap is nan"},
      {"forward bf16 s4 d8 softcap=9.9e-31", "softcap is 9.9e-31; accepted: 0 (none), 1e-30 to"},
      {"backward f64 s4 d8 softcap=1.1e30", "softcap is 1.1e+30; accepted: 0 (none), 1e-30 to"},
      {"forward f32 s4 d8 bias=i32:h", "bias dtype is i32"},
      {"forward f32 s4 d8 dropout=1.5", "dropout_p is 1.5"},
      {"forward f32 s4 d8 dropout=-0.1", "dropout_p is -0.1"},
      {"forward f32 s4 d8 dropout=nan", "dropout_p is nan"},
      {"forward f32 s4 d8 grads=dq", "gradients"},
      {"forward f32 s4 d8 dlse", "gradients"},
      {"backward f32 s4 d8 nolse", "lse is false"},
      {"backward f32 s4 d8 grads=dbias", "gradients.dbias"},
      {"backward f32 s4 d8 grads=dsinks", "gradients.dsinks"},
      {"backward f32 s4 d8 grads=dslopes", "gradients.dslopes"},
      {"backward f32 s4 d8 grads=-", "gradients is empty"},
  };
  for (const auto& c : cases) {
    const Status status = validate(parsed(c.text));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.text;
    EXPECT_NE(status.message().find(c.named), std::string::npos)
        << c.text << ": " << status.message();
    EXPECT_NE(status.message().find("accepted: "), std::string::npos) << status.message();
  }
}

// BC-124: query heads that are not a multiple of the key heads are refused before anything runs.
TEST(ProblemRules, BC124_HeadsThatDoNotDivide) {
  for (const char* line : {"forward f32 hq33 hkv2 s4 d8", "backward f32 hq3 hkv2 s4 d8"}) {
    const Status status = validate(parsed(line));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << line;
    EXPECT_NE(status.message().find("heads_q is 3"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("heads_kv 2"), std::string::npos) << status.message();
  }
}

// Facts that the text form cannot state.
TEST(ProblemRules, FieldsOutsideTheTextForm) {
  const AttentionProblem good = parsed("forward f32 s4 d8");
  std::vector<AttentionProblem> broken(7, good);
  broken[0].score.mask = {true, DType::kF32, false, false, true, true};
  broken[1].score.alibi_per_batch = true;
  broken[2].storage.total_q = 4;
  broken[3].storage.total_k = 4;
  broken[4].storage.query = Source::kPaged;
  broken[5].storage.page_size = 4;
  broken[6].score.bias.rows = true;
  for (size_t i = 0; i < broken.size(); ++i) {
    EXPECT_EQ(validate(broken[i]).code(), StatusCode::kInvalidArgument) << i;
  }
  AttentionProblem problem = good;
  problem.score.dropout_p = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(validate(problem).ok());
}

TEST(ProblemRules, EffectiveScale) {
  EXPECT_EQ(parsed("forward f32 s4 d64").effective_scale(), 0.125);
  EXPECT_EQ(parsed("forward f32 s4 d64 scale=-2").effective_scale(), -2.0);
}

}  // namespace
}  // namespace rowmax
