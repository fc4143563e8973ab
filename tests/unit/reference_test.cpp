// The reference backend against values worked out by hand, known bug cases, and finite differences.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "api/bind.h"
#include "backend/reference/registry.h"
#include "core/half.h"
#include "testkit/numerics.h"
#include "testkit/random.h"
#include "testkit/runner.h"

namespace rowmax {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Dense fp64 tensors of one problem, contiguous. Everything starts at 0; V, dO and the options are
// set by the test.
struct DenseCase {
  explicit DenseCase(AttentionProblem p) : problem(p) {
    problem.dtype = DType::kF64;
    problem.out_dtype = DType::kF64;
    const Sizes& s = problem.sizes;
    q.resize(static_cast<size_t>(s.batch * s.seqlen_q * s.heads_q * s.head_dim));
    k.resize(static_cast<size_t>(s.batch * s.seqlen_k * s.heads_kv * s.head_dim));
    v.resize(static_cast<size_t>(s.batch * s.seqlen_k * s.heads_kv * s.head_dim_v));
    out.resize(static_cast<size_t>(s.batch * s.seqlen_q * s.heads_q * s.head_dim_v), NAN);
    lse.resize(static_cast<size_t>(s.batch * s.heads_q * s.seqlen_q), NAN);
    dout = std::vector<double>(out.size());
    dlse = std::vector<double>(lse.size());
    dq = std::vector<double>(q.size(), NAN);
    dk = std::vector<double>(k.size(), NAN);
    dv = std::vector<double>(v.size(), NAN);
    const BroadcastShape& b = problem.score.bias;
    bias.resize(static_cast<size_t>((b.batch ? s.batch : 1) * (b.heads ? s.heads_q : 1) *
                                    (b.rows ? s.seqlen_q : 1) * (b.cols ? s.seqlen_k : 1)));
    dbias = std::vector<double>(bias.size(), NAN);
    sinks.resize(static_cast<size_t>(s.heads_q));
    dsinks = std::vector<float>(sinks.size(), NAN);
    slopes.resize(sinks.size());
    dslopes = dsinks;
  }

  AttentionTensors tensors() {
    const Sizes& s = problem.sizes;
    AttentionTensors t;
    const auto view = [](std::vector<double>& data, std::initializer_list<int64_t> sizes) {
      return contiguous(static_cast<void*>(data.data()), DType::kF64, sizes);
    };
    t.q = view(q, {s.batch, s.seqlen_q, s.heads_q, s.head_dim});
    t.k = view(k, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim});
    t.v = view(v, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim_v});
    t.out = view(out, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v});
    t.lse = view(lse, {s.batch, s.heads_q, s.seqlen_q});
    const ScoreOptions& score = problem.score;
    const auto bias_view = [&](std::vector<double>& data) {
      const BroadcastShape& b = score.bias;
      return view(data, {b.batch ? s.batch : 1, b.heads ? s.heads_q : 1, b.rows ? s.seqlen_q : 1,
                         b.cols ? s.seqlen_k : 1});
    };
    const auto head_view = [&](std::vector<float>& data) {
      return contiguous(static_cast<void*>(data.data()), DType::kF32, {s.heads_q});
    };
    if (score.bias.present) {
      t.score.bias = bias_view(bias);
    }
    if (score.sinks) {
      t.score.sinks = head_view(sinks);
    }
    if (score.alibi) {
      t.score.slopes = head_view(slopes);
    }
    t.dropout.seed = 0x123456789abcdef0u;
    t.dropout.offset = 42;
    if (problem.op == Op::kBackward) {
      t.grad.dout = view(dout, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v});
      t.grad.dq = view(dq, {s.batch, s.seqlen_q, s.heads_q, s.head_dim});
      t.grad.dk = view(dk, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim});
      t.grad.dv = view(dv, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim_v});
      if (problem.gradients.dlse) {
        t.grad.dlse = view(dlse, {s.batch, s.heads_q, s.seqlen_q});
      }
      if (problem.gradients.dbias) {
        t.grad.dbias = bias_view(dbias);
      }
      if (problem.gradients.dsinks) {
        t.grad.dsinks = head_view(dsinks);
      }
      if (problem.gradients.dslopes) {
        t.grad.dslopes = head_view(dslopes);
      }
    }
    return t;
  }

  void run(Op op) {
    AttentionProblem p = problem;
    p.op = op;
    if (op == Op::kForward) {
      p.gradients = Gradients();
    }
    const AttentionProblem saved = problem;
    problem = p;
    const Result<AttentionArgs> args = bind_arguments(p, tensors());
    problem = saved;
    ASSERT_TRUE(args.ok()) << args.status().message();
    int64_t next_item = 0;
    KernelLaunch launch;
    launch.args = &*args;
    launch.next_item = &next_item;
    op == Op::kForward ? reference::run_forward(launch, 0) : reference::run_backward(launch, 0);
  }

  AttentionProblem problem;
  std::vector<double> q, k, v, out, lse, dout, dlse, dq, dk, dv, bias, dbias;
  std::vector<float> sinks, dsinks, slopes, dslopes;
};

AttentionProblem small_problem(int64_t seqlen_q, int64_t seqlen_k, int64_t dim = 1) {
  AttentionProblem p;
  p.sizes.seqlen_q = seqlen_q;
  p.sizes.seqlen_k = seqlen_k;
  p.sizes.head_dim = dim;
  p.sizes.head_dim_v = dim;
  p.score.scale = 1.0;
  return p;
}

// With q = 0 the weights of a row are equal and LSE is the log of the number of visible keys; V
// holds powers of ten, so that O times that number spells the visible set.
double visible_set(DenseCase* c, int64_t row) {
  const auto i = static_cast<size_t>(row);
  return std::round(c->out[i] * std::exp(c->lse[i]));
}

DenseCase run_uniform(AttentionProblem p) {
  DenseCase c(p);
  double power = 1.0;
  for (double& value : c.v) {
    value = power;
    power *= 10.0;
  }
  c.run(Op::kForward);
  return c;
}

TEST(ReferenceMask, WindowIsAlignedBottomRightWithBothEndsIncluded) {
  AttentionProblem p = small_problem(2, 5);
  p.band = Band::window(1, 0);  // shift 3
  DenseCase c = run_uniform(p);
  EXPECT_EQ(visible_set(&c, 0), 1100.0);   // keys 2, 3
  EXPECT_EQ(visible_set(&c, 1), 11000.0);  // keys 3, 4
}

TEST(ReferenceMask, WindowTopLeft) {
  AttentionProblem p = small_problem(2, 5);
  p.band = Band::window(0, 1);
  p.band.alignment = Alignment::kTopLeft;
  DenseCase c = run_uniform(p);
  EXPECT_EQ(visible_set(&c, 0), 11.0);   // keys 0, 1
  EXPECT_EQ(visible_set(&c, 1), 110.0);  // keys 1, 2
}

TEST(ReferenceMask, NegativeBoundsAreOffsets) {
  AttentionProblem p = small_problem(3, 3);
  p.band = {Bound::unbounded(), Bound::at(-1)};
  DenseCase c = run_uniform(p);
  EXPECT_EQ(c.lse[0], -kInfinity);
  EXPECT_EQ(visible_set(&c, 1), 1.0);
  EXPECT_EQ(visible_set(&c, 2), 11.0);
}

TEST(ReferenceMask, CausalSingleRowSeesEveryKeyBottomRightAndOneTopLeft) {
  AttentionProblem p = small_problem(1, 4);
  p.band = Band::causal();
  DenseCase c = run_uniform(p);
  EXPECT_EQ(visible_set(&c, 0), 1111.0);
  p.band.alignment = Alignment::kTopLeft;
  DenseCase d = run_uniform(p);
  EXPECT_EQ(visible_set(&d, 0), 1.0);
}

TEST(ReferenceEmptyRows, BC001CausalWithMoreRowsThanKeys) {
  AttentionProblem p = small_problem(2048, 1024, 4);
  p.op = Op::kBackward;
  p.band = Band::causal();
  DenseCase c(p);
  testkit::Random random(1);
  for (std::vector<double>* data : {&c.q, &c.k, &c.v, &c.dout}) {
    for (double& value : *data) {
      value = random.normal();
    }
  }
  c.run(Op::kForward);
  c.run(Op::kBackward);
  for (size_t i = 0; i < 1024; ++i) {
    ASSERT_EQ(c.lse[i], -kInfinity);
    for (size_t d = 0; d < 4; ++d) {
      ASSERT_EQ(c.out[i * 4 + d], 0.0);
      ASSERT_EQ(c.dq[i * 4 + d], 0.0);
    }
  }
  EXPECT_EQ(c.out[1024 * 4], c.v[0]);  // sees key 0 alone
  for (size_t n = 0; n < c.dk.size(); ++n) {
    ASSERT_TRUE(std::isfinite(c.dk[n]) && std::isfinite(c.dv[n]));
  }
}

TEST(ReferenceEmptyRows, SinkIsTheLseAndReceivesDlse) {
  AttentionProblem p = small_problem(1, 1);
  p.op = Op::kBackward;
  p.band = {Bound::unbounded(), Bound::at(-1)};
  p.score.sinks = true;
  p.gradients.dsinks = p.gradients.dlse = true;
  DenseCase c(p);
  c.sinks[0] = -3.5f;
  c.dlse[0] = 0.25;
  c.dout[0] = 7.0;
  c.run(Op::kForward);
  c.run(Op::kBackward);
  EXPECT_EQ(c.out[0], 0.0);
  EXPECT_EQ(c.lse[0], -3.5);
  EXPECT_EQ(c.dsinks[0], 0.25f);
  EXPECT_EQ(c.dq[0], 0.0);
  EXPECT_EQ(c.dk[0], 0.0);
  EXPECT_EQ(c.dv[0], 0.0);
}

TEST(ReferenceSinks, JoinTheDenominatorOnly) {
  AttentionProblem p = small_problem(1, 1);
  p.score.sinks = true;
  p.score.scale = 5.0;    // neither scaled
  p.score.softcap = 0.1;  // nor capped
  DenseCase c(p);
  c.v[0] = 3.0;
  c.sinks[0] = static_cast<float>(std::log(3.0));
  c.run(Op::kForward);
  const double sink = std::exp(static_cast<double>(c.sinks[0]));
  EXPECT_DOUBLE_EQ(c.out[0], 3.0 / (1.0 + sink));
  EXPECT_DOUBLE_EQ(c.lse[0], std::log(1.0 + sink));
}

TEST(ReferenceScores, SoftcapThenBiasThenAlibi) {
  AttentionProblem p = small_problem(1, 3);
  p.band = Band::window(1, -1);  // row 0 sits at key 2 and sees key 1, at distance 1
  p.score.softcap = 2.0;
  p.score.bias = {true, DType::kF64, false, false, false, true};
  p.score.alibi = true;
  DenseCase c(p);
  c.q[0] = 3.0;
  c.k[1] = 0.5;
  c.bias = {100.0, 1.25, 100.0};
  c.slopes[0] = 0.5f;
  c.run(Op::kForward);
  EXPECT_DOUBLE_EQ(c.lse[0], 2.0 * std::tanh(0.75) + 1.25 - 0.5);
}

TEST(ReferenceScores, AlibiDistanceFollowsTheAlignment) {
  AttentionProblem p = small_problem(1, 3);
  p.score.alibi = true;
  p.score.bias = {true, DType::kF64, false, false, false, true};
  for (const Alignment alignment : {Alignment::kBottomRight, Alignment::kTopLeft}) {
    p.band.alignment = alignment;
    DenseCase c(p);
    c.bias = {0.0, -kInfinity, -kInfinity};  // key 0 alone
    c.slopes[0] = 0.5f;
    c.run(Op::kForward);
    EXPECT_DOUBLE_EQ(c.lse[0], alignment == Alignment::kBottomRight ? -1.0 : 0.0);
  }
}

TEST(ReferenceScores, DefaultScaleIsTheInverseRootOfTheHeadDim) {
  AttentionProblem p = small_problem(1, 1, 4);
  p.score.scale = 0.0;
  DenseCase c(p);
  c.q = {1.0, 2.0, 3.0, 4.0};
  c.k = {1.0, 1.0, 1.0, 1.0};
  c.run(Op::kForward);
  EXPECT_DOUBLE_EQ(c.lse[0], 5.0);
}

TEST(ReferenceHeads, QueryHeadsShareKvHeadsInGroups) {
  AttentionProblem p = small_problem(1, 1);
  p.sizes.heads_q = 6;
  p.sizes.heads_kv = 2;
  DenseCase c(p);
  c.v = {10.0, 20.0};
  c.run(Op::kForward);
  EXPECT_EQ(c.out, (std::vector<double>{10.0, 10.0, 10.0, 20.0, 20.0, 20.0}));
}

TEST(ReferenceDropout, PhiloxKnownAnswers) {
  const auto expect = [](PhiloxWords got, std::vector<uint32_t> want) {
    EXPECT_EQ(std::vector<uint32_t>(got.w, got.w + 4), want);
  };
  expect(philox4x32_10(0, 0, 0, 0, 0, 0), {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  expect(philox4x32_10(~0u, ~0u, ~0u, ~0u, ~0u, ~0u),
         {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  expect(
      philox4x32_10(0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u, 0xa4093822u, 0x299f31d0u),
      {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST(ReferenceDropout, FourElementsShareACall) {
  DropoutArgs dropout;
  dropout.on = true;
  dropout.seed = 0xfedcba9876543210u;
  dropout.offset = 0x1111111122222222u;
  for (const auto& [i, j] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {8, 0}, {0, 8}, {8, 8}, {21, 77}, {1000, 3}}) {
    const auto gi = static_cast<uint32_t>((i >> 4) * 8 + (i & 7));
    const auto gj = static_cast<uint32_t>((j >> 4) * 8 + (j & 7));
    const PhiloxWords words =
        philox4x32_10(gi, gj, 5, 0x22222222u, 0x76543210u, 0xfedcba98u ^ 0x11111111u);
    const uint32_t word = words.w[2 * ((i >> 3) & 1) + ((j >> 3) & 1)];
    dropout.threshold = word;
    EXPECT_TRUE(dropout_keeps(dropout, 5, i, j));
    dropout.threshold = uint64_t{word} + 1;
    EXPECT_FALSE(dropout_keeps(dropout, 5, i, j));
  }
}

TEST(ReferenceDropout, ProbabilityOneGivesZeroAndKeepsLse) {
  AttentionProblem p = small_problem(1, 2);
  p.score.dropout_p = 1.0;
  DenseCase c(p);
  c.v = {1.0, 1.0};
  c.run(Op::kForward);
  EXPECT_EQ(c.out[0], 0.0);
  EXPECT_DOUBLE_EQ(c.lse[0], std::log(2.0));
}

TEST(ReferenceDropout, DenominatorIsTakenBeforeDropout) {
  AttentionProblem p = small_problem(1, 64);
  p.score.dropout_p = 0.5;
  DenseCase c(p);
  c.v.assign(c.v.size(), 1.0);
  c.run(Op::kForward);
  // Weights of 1/64 that are kept count double: a multiple of 1/32, and not 1 for this seed.
  EXPECT_EQ(c.out[0] * 32.0, std::round(c.out[0] * 32.0));
  EXPECT_NE(c.out[0], 1.0);
  EXPECT_DOUBLE_EQ(c.lse[0], std::log(64.0));
}

TEST(ReferenceBias, BC004LeadingBlocksMasked) {
  AttentionProblem p = small_problem(600, 600, 2);
  p.score.bias = {true, DType::kF64, false, false, true, true};
  DenseCase c(p);
  c.q.assign(c.q.size(), 1.0);
  c.k = c.v = c.q;
  for (int64_t i = 0; i < 600; ++i) {
    for (int64_t j = 0; j < 600; ++j) {
      const bool visible = j <= i && j > i - 10;
      c.bias[static_cast<size_t>(i * 600 + j)] = visible ? 0.0 : -kInfinity;
    }
  }
  c.run(Op::kForward);
  for (const double value : c.out) {
    ASSERT_DOUBLE_EQ(value, 1.0);
  }
}

TEST(ReferenceBias, BC006HugeFiniteRowIsNotEmpty) {
  AttentionProblem p = small_problem(3, 3, 4);
  p.score.bias = {true, DType::kF64, false, false, true, true};
  DenseCase c(p);
  testkit::Random random(6);
  for (double& value : c.q) {
    value = random.normal();
  }
  c.k = c.q;
  for (size_t n = 0; n < c.v.size(); ++n) {
    c.v[n] = static_cast<double>(n);
  }
  for (size_t n = 0; n < 9; ++n) {
    c.bias[n] = n < 3 ? -static_cast<double>(std::numeric_limits<float>::max()) : 1.0;
  }
  c.run(Op::kForward);
  for (size_t d = 0; d < 4; ++d) {
    EXPECT_DOUBLE_EQ(c.out[d], (c.v[d] + c.v[4 + d] + c.v[8 + d]) / 3.0);
  }
  DenseCase plain(p);
  plain.q = c.q;
  plain.k = c.k;
  plain.v = c.v;
  plain.run(Op::kForward);
  for (size_t n = 4; n < 12; ++n) {
    EXPECT_DOUBLE_EQ(c.out[n], plain.out[n]);
  }
}

TEST(ReferenceExtremes, BC008VeryNegativeLogits) {
  AttentionProblem p = small_problem(1, 2, 128);
  p.score.scale = 0.0;
  DenseCase c(p);
  c.q.assign(c.q.size(), 64.0);
  c.k.assign(c.k.size(), -64.0);
  c.v.assign(c.v.size(), 1.0);
  c.run(Op::kForward);
  for (const double value : c.out) {
    EXPECT_EQ(value, 1.0);
  }
  EXPECT_FLOAT_EQ(static_cast<float>(c.lse[0]),
                  static_cast<float>(std::log(2.0) - 128.0 * 4096.0 / std::sqrt(128.0)));
}

TEST(ReferenceExtremes, BC018GradientsAreFiniteFarBelowZero) {
  for (const char* mask : {"", " mask=rc"}) {
    const Result<testkit::Case> spec = testkit::parse_case(
        std::string("backward bf16 b1 h1 s192 d64 inputs=near-100 seed18") + mask);
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    const testkit::RunReport report = testkit::run_case(*spec, {.kernel = "reference_backward"});
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

// ---- Gradients by finite differences ------------------------------------------------------------

class GradientCheck : public ::testing::Test {
 protected:
  GradientCheck() : case_(make_problem()) {
    testkit::Random random(20);
    for (std::vector<double>* data :
         {&case_.q, &case_.k, &case_.v, &case_.bias, &case_.dout, &case_.dlse}) {
      for (double& value : *data) {
        value = random.normal();
      }
    }
    for (size_t h = 0; h < case_.sinks.size(); ++h) {
      case_.sinks[h] = static_cast<float>(random.normal());
      case_.slopes[h] = static_cast<float>(0.1 + random.uniform());
    }
    case_.bias[3] = -kInfinity;
    case_.run(Op::kBackward);
  }

  static AttentionProblem make_problem() {
    AttentionProblem p;
    p.op = Op::kBackward;
    p.sizes = {2, 4, 2, 5, 7, 3, 2};
    p.band = Band::window(3, 1);
    p.score.softcap = 1.5;
    p.score.bias = {true, DType::kF64, false, true, false, true};
    p.score.alibi = true;
    p.score.sinks = true;
    p.score.dropout_p = 0.3;
    p.gradients = {true, true, true, true, true, true, true};
    return p;
  }

  double loss() {
    case_.run(Op::kForward);
    double sum = 0.0;
    for (size_t n = 0; n < case_.out.size(); ++n) {
      sum += case_.out[n] * case_.dout[n];
    }
    for (size_t n = 0; n < case_.lse.size(); ++n) {
      sum += case_.lse[n] == -kInfinity ? 0.0 : case_.lse[n] * case_.dlse[n];
    }
    return sum;
  }

  template <class T>
  void check(std::vector<T>* values, const std::vector<T>& gradient) {
    const double step = testkit::finite_difference_step<T>();
    for (size_t n = 0; n < values->size(); ++n) {
      const T saved = (*values)[n];
      (*values)[n] = static_cast<T>(saved + step);
      const double above = loss();
      const double width = static_cast<double>((*values)[n]) - static_cast<double>(saved);
      (*values)[n] = static_cast<T>(saved - step);
      const double below = loss();
      const double full_width =
          width + static_cast<double>(saved) - static_cast<double>((*values)[n]);
      (*values)[n] = saved;
      const double expected =
          std::isfinite(static_cast<double>(saved)) ? (above - below) / full_width : 0.0;
      EXPECT_NEAR(static_cast<double>(gradient[n]), expected,
                  testkit::finite_difference_limit<T>(above))
          << "element " << n;
    }
  }

  DenseCase case_;
};

TEST_F(GradientCheck, Dq) { check(&case_.q, std::vector<double>(case_.dq)); }
TEST_F(GradientCheck, Dk) { check(&case_.k, std::vector<double>(case_.dk)); }
TEST_F(GradientCheck, Dv) { check(&case_.v, std::vector<double>(case_.dv)); }
TEST_F(GradientCheck, Dbias) { check(&case_.bias, std::vector<double>(case_.dbias)); }
TEST_F(GradientCheck, Dsinks) { check(&case_.sinks, std::vector<float>(case_.dsinks)); }
TEST_F(GradientCheck, Dslopes) { check(&case_.slopes, std::vector<float>(case_.dslopes)); }

// ---- Every feature on poisoned memory -----------------------------------------------------------

class ReferencePoisoned : public ::testing::TestWithParam<const char*> {};

TEST_P(ReferencePoisoned, PassesItsOwnRule) {
  const Result<testkit::Case> spec = testkit::parse_case(GetParam());
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const bool forward = spec->problem.op == Op::kForward;
  const testkit::RunReport report = testkit::run_case(
      *spec, {.kernel = forward ? "reference_forward" : "reference_backward", .threads = 2});
  EXPECT_TRUE(report.passed()) << report.text();
}

INSTANTIATE_TEST_SUITE_P(
    Features, ReferencePoisoned,
    ::testing::Values(
        "forward f32 b2 hq4 hkv2 sq13 sk20 d8 causal seed1 strides=fused_qkv",
        "forward f16 b2 hq4 hkv2 sq13 sk20 d8 dv5 window=3,2 seed2 strides=bhsd",
        "forward bf16 b3 h2 sq9 sk33 d16 used_q used_k seed3 strides=padded",
        "forward bf16 b4 h2 sq9 sk33 d16 ragged_q=30 ragged_k=100 seed4 causal",
        "forward f32 b3 hq4 hkv1 sq2 sk50 d8 paged=7,30,9 used_k seed5 causal",
        "forward f64 b2 h2 sq20 sk20 d4 mask=bc bias=f32:hrc seed6",
        "forward f32 b2 h3 sq20 sk24 d4 alibi=batch documents sinks softcap=3 seed7",
        "forward f32 b2 h2 sq20 sk24 d4 dropout=0.4 nolse seed8 strides=broadcast_kv",
        "forward f32 b1 h2 sq20 sk24 d4 inputs=minus5e5 sinks seed9",
        "forward f32 b0 h2 sq20 sk24 d4 seed10", "forward f32 b2 h2 sq5 sk0 d4 sinks seed11",
        "backward f32 b2 hq4 hkv2 s17 d8 causal dlse seed12 strides=fused_qkv",
        "backward bf16 b2 h2 sq9 sk33 d16 used_q used_k seed13 strides=padded",
        "backward f16 b4 hq4 hkv2 sq9 sk33 d8 dv4 ragged_q=30 ragged_k=100 seed14 strides=bhsd",
        "backward f64 b2 h2 sq12 sk20 d4 mask=brc bias=bf16:hc grads=dq,dk,dv,dbias seed15",
        "backward f32 b2 h3 sq12 sk20 d4 alibi=batch sinks softcap=2 dlse dropout=0.2 "
        "grads=dq,dv,dsinks,dslopes seed16",
        "backward f32 b1 h2 sq20 sk24 d4 inputs=minus5e5 seed17",
        "backward f32 b0 h2 sq20 sk24 d4 sinks grads=dq,dsinks seed18",
        "backward f32 b2 h2 sq5 sk0 d4 seed19"));

}  // namespace
}  // namespace rowmax
