// docs/semantics.md, "Non-finite inputs": how far NaN, infinities and overflow may spread.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runs.h"

namespace rowmax::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

struct Shape {
  const char* name;
  const char* sizes;
};

// A tiled forward and a decode-shaped call; both with two batch elements and grouped heads.
const Shape kShapes[] = {{"tiles", "b2 hq4 hkv2 sq70 sk300 d40"},
                         {"decode", "b2 hq4 hkv2 sq2 sk300 d40"}};
const char* const kScores[] = {"", "causal", "softcap=5", "alibi", "dropout=0.3"};

class NonFinite : public testing::TestWithParam<const KernelEntry*> {
 protected:
  // Every forward problem above that the kernel serves.
  template <class Body>
  void for_each_problem(Body body) {
    const KernelEntry& entry = *GetParam();
    int count = 0;
    for (const Shape& shape : kShapes) {
      for (const char* score : kScores) {
        const std::string text = std::string("forward f32 ") + shape.sizes + " " + score;
        const AttentionProblem problem = parse_problem(text).value();
        if (entry.supports(problem, entry.config).ok()) {
          DenseRun clean = make_run(text);
          ASSERT_TRUE(clean.run(entry.config.name).ok());
          DenseRun spoiled = make_run(text);
          SCOPED_TRACE(text);
          body(clean, spoiled, entry.config.name);
          ++count;
        }
      }
    }
    EXPECT_TRUE(count > 0 || entry.config.step == StepKind::kBackward ||
                entry.config.compute == Compute::kF64);
  }

  DenseRun make_run(const std::string& text) {
    DenseRun run(text);
    if (run.problem.score.alibi) {
      run.tensors.score.slopes = contiguous(static_cast<const void*>(slopes_), DType::kF32, {4});
    }
    return run;
  }

  static size_t out_index(const DenseRun& run, int64_t b, int64_t i, int64_t h) {
    const Sizes& s = run.problem.sizes;
    return static_cast<size_t>(((b * s.seqlen_q + i) * s.heads_q + h) * s.head_dim_v);
  }
  static size_t lse_index(const DenseRun& run, int64_t b, int64_t i, int64_t h) {
    const Sizes& s = run.problem.sizes;
    return static_cast<size_t>((b * s.heads_q + h) * s.seqlen_q + i);
  }
  // Rows where `expected_bad` is false keep their bits; the others are NaN when `must_be_nan`.
  template <class Predicate>
  static void compare(const DenseRun& clean, const DenseRun& spoiled, bool must_be_nan,
                      Predicate expected_bad) {
    const Sizes& s = clean.problem.sizes;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t i = 0; i < s.seqlen_q; ++i) {
        for (int64_t h = 0; h < s.heads_q; ++h) {
          const size_t at = out_index(clean, b, i, h);
          const float lse = spoiled.lse[lse_index(spoiled, b, i, h)];
          if (!expected_bad(b, i, h)) {
            for (int64_t d = 0; d < s.head_dim_v; ++d) {
              const size_t x = at + static_cast<size_t>(d);
              ASSERT_EQ(bits_of(clean.out[x]), bits_of(spoiled.out[x]))
                  << "b" << b << " i" << i << " h" << h;
            }
            ASSERT_EQ(bits_of(clean.lse[lse_index(clean, b, i, h)]), bits_of(lse));
          } else if (must_be_nan) {
            ASSERT_TRUE(std::isnan(lse)) << "b" << b << " i" << i << " h" << h;
            // A dropped weight is exactly 0, so dropout may hide single values of a NaN row.
            ASSERT_TRUE(std::isnan(spoiled.out[at]) || clean.problem.score.dropout_p > 0);
          }
        }
      }
    }
  }

  const float slopes_[4] = {0.5f, 0.25f, 0.125f, 0.0625f};
};

TEST_P(NonFinite, NaNInAQueryRowStaysInThatRow) {
  // Quiet NaNs with and without payload: integer arithmetic on exponents must not make them finite.
  const uint32_t payloads[] = {0x7fc00000u, 0x7fc12345u, 0xffffffffu, 0x7fa00001u};
  for (const uint32_t bits : payloads) {
    for_each_problem([&](DenseRun& clean, DenseRun& spoiled, const char* kernel) {
      const Sizes& s = clean.problem.sizes;
      const int64_t row = s.seqlen_q / 2;
      float nan;
      __builtin_memcpy(&nan, &bits, sizeof(nan));
      spoiled.q[static_cast<size_t>(((1 * s.seqlen_q + row) * s.heads_q + 2) * s.head_dim + 3)] =
          nan;
      ASSERT_TRUE(spoiled.run(kernel).ok());
      compare(clean, spoiled, true,
              [row](int64_t b, int64_t i, int64_t h) { return b == 1 && i == row && h == 2; });
    });
  }
}

TEST_P(NonFinite, ValuesOfASeenKeyStayInTheirHead) {
  for (const float value : {kNaN, kInf, -kInf}) {
    for (const bool in_k : {true, false}) {
      for_each_problem([&](DenseRun& clean, DenseRun& spoiled, const char* kernel) {
        const Sizes& s = clean.problem.sizes;
        std::vector<float>& tensor = in_k ? spoiled.k : spoiled.v;
        tensor[static_cast<size_t>(((0 * s.seqlen_k + 140) * s.heads_kv + 1) * s.head_dim + 5)] =
            value;
        ASSERT_TRUE(spoiled.run(kernel).ok());
        compare(clean, spoiled, false,
                [](int64_t b, int64_t, int64_t h) { return b == 0 && h >= 2; });
      });
    }
  }
}

TEST_P(NonFinite, AScoreBeyondTheRangeStaysInItsRow) {
  for (const float value : {1e30f, 3e38f}) {
    for_each_problem([&](DenseRun& clean, DenseRun& spoiled, const char* kernel) {
      const Sizes& s = clean.problem.sizes;
      for (int64_t d = 0; d < s.head_dim; ++d) {
        spoiled.q[static_cast<size_t>((0 * s.heads_q + 1) * s.head_dim + d)] = value;
      }
      ASSERT_TRUE(spoiled.run(kernel).ok());
      compare(clean, spoiled, false,
              [](int64_t b, int64_t i, int64_t h) { return b == 0 && i == 0 && h == 1; });
    });
  }
}

// Row 0 sees no key at all; the others see keys with NaN and inf in V. With and without sinks.
TEST_P(NonFinite, EmptyRowBesideNonFiniteValues) {
  const KernelEntry& entry = *GetParam();
  const char* const shapes[] = {"b1 h1 sq2 sk20 d8", "b1 h1 sq2 sk9000 d8", "b2 h2 sq3 sk40 d20",
                                "b1 hq4 hkv2 sq70 sk300 d40"};
  for (const char* shape : shapes) {
    for (const char* sink_word : {"", " sinks"}) {
      const std::string text = std::string("forward f32 ") + shape + " mask=rc" + sink_word;
      if (!entry.supports(parse_problem(text).value(), entry.config).ok()) {
        continue;
      }
      for (const float sink : {0.5f, kInf, -kInf}) {
        DenseRun run = make_run(text);
        const Sizes& s = run.problem.sizes;
        const std::vector<float> sinks(static_cast<size_t>(s.heads_q), sink);
        if (run.problem.score.sinks) {
          run.tensors.score.sinks =
              contiguous(static_cast<const void*>(sinks.data()), DType::kF32, {s.heads_q});
        }
        std::vector<uint8_t> mask(static_cast<size_t>(s.seqlen_q * s.seqlen_k), 1);
        std::fill_n(mask.begin(), s.seqlen_k, uint8_t{0});
        run.tensors.score.mask = contiguous(static_cast<const void*>(mask.data()), DType::kBool,
                                            {1, 1, s.seqlen_q, s.seqlen_k});
        const size_t row = static_cast<size_t>(s.heads_kv * s.head_dim_v);
        run.v[5 * row] = kNaN;
        run.v[6 * row + 1] = kInf;
        run.v[(static_cast<size_t>(s.seqlen_k) - 1) * row + 2] = -kInf;
        SCOPED_TRACE(text + " sink " + std::to_string(sink));
        ASSERT_TRUE(run.run(entry.config.name).ok());
        const float lse = run.problem.score.sinks ? sink : -kInf;
        for (int64_t b = 0; b < s.batch; ++b) {
          for (int64_t h = 0; h < s.heads_q; ++h) {
            ASSERT_EQ(run.lse[lse_index(run, b, 0, h)], lse);
            for (int64_t d = 0; d < s.head_dim_v; ++d) {
              ASSERT_EQ(run.out[out_index(run, b, 0, h) + static_cast<size_t>(d)], 0.0f);
            }
          }
        }
        ASSERT_TRUE(std::isnan(run.out[out_index(run, 0, 1, 0)]));  // the NaN was in use
      }
    }
  }
}

// A sink of +inf takes all the weight, -inf none; a NaN makes its head NaN.
TEST_P(NonFinite, InfiniteSinks) {
  const KernelEntry& entry = *GetParam();
  for (const Shape& shape : kShapes) {
    const std::string plain = std::string("forward f32 ") + shape.sizes + " causal";
    const std::string text = plain + " sinks";
    if (!entry.supports(parse_problem(text).value(), entry.config).ok()) {
      continue;
    }
    SCOPED_TRACE(text);
    const float sinks[4] = {kInf, -kInf, kNaN, kInf};
    DenseRun without = make_run(plain);
    ASSERT_TRUE(without.run(entry.config.name).ok());
    DenseRun run = make_run(text);
    run.tensors.score.sinks = contiguous(static_cast<const void*>(sinks), DType::kF32, {4});
    ASSERT_TRUE(run.run(entry.config.name).ok());
    const Sizes& s = run.problem.sizes;
    for (int64_t i = 0; i < s.seqlen_q; ++i) {
      for (int64_t h = 0; h < s.heads_q; ++h) {
        const float lse = run.lse[lse_index(run, 1, i, h)];
        const float out = run.out[out_index(run, 1, i, h) + 3];
        if (h == 2) {
          ASSERT_TRUE(std::isnan(lse) && std::isnan(out));
        } else if (h == 1) {
          ASSERT_EQ(lse, without.lse[lse_index(run, 1, i, h)]);
          ASSERT_EQ(out, without.out[out_index(run, 1, i, h) + 3]);
        } else {
          ASSERT_EQ(lse, kInf);
          ASSERT_EQ(out, 0.0f);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, NonFinite, testing::ValuesIn(main_kernels()),
                         [](const testing::TestParamInfo<const KernelEntry*>& row) {
                           return std::string(row.param->config.name);
                         });

// Backward: no fault, and nothing outside the batch element and kv head changes.
TEST(NonFiniteBackward, StaysInItsHead) {
  for (const KernelEntry* entry : main_kernels()) {
    const std::string text = "backward f32 b2 hq4 hkv2 sq70 sk300 d40 causal";
    if (!entry->supports(parse_problem(text).value(), entry->config).ok()) {
      continue;
    }
    SCOPED_TRACE(entry->config.name);
    DenseRun forward("forward f32 b2 hq4 hkv2 sq70 sk300 d40 causal");
    ASSERT_TRUE(forward.run().ok());
    DenseRun clean(text);
    DenseRun spoiled(text);
    for (DenseRun* run : {&clean, &spoiled}) {
      run->out = forward.out;
      run->lse = forward.lse;
    }
    const Sizes& s = clean.problem.sizes;
    spoiled.k[static_cast<size_t>(((1 * s.seqlen_k + 10) * s.heads_kv + 1) * s.head_dim)] = kNaN;
    spoiled.dout[static_cast<size_t>(((1 * s.seqlen_q + 5) * s.heads_q + 3) * s.head_dim)] = kInf;
    spoiled.lse[static_cast<size_t>((1 * s.heads_q + 3) * s.seqlen_q + 6)] = kNaN;
    ASSERT_TRUE(clean.run(entry->config.name).ok());
    ASSERT_TRUE(spoiled.run(entry->config.name).ok());
    const auto check = [&](const std::vector<float>& a, const std::vector<float>& b, int64_t length,
                           int64_t heads, int64_t group) {
      for (int64_t x = 0; x < static_cast<int64_t>(a.size()); ++x) {
        const int64_t head = x / s.head_dim % heads;
        const int64_t batch = x / s.head_dim / heads / length;
        if (batch == 0 || head / group == 0) {
          ASSERT_EQ(bits_of(a[static_cast<size_t>(x)]), bits_of(b[static_cast<size_t>(x)])) << x;
        }
      }
    };
    check(clean.dq, spoiled.dq, s.seqlen_q, s.heads_q, 2);
    check(clean.dk, spoiled.dk, s.seqlen_k, s.heads_kv, 1);
    check(clean.dv, spoiled.dv, s.seqlen_k, s.heads_kv, 1);
  }
}

// LSE = +inf: no key has weight, the sink has all of it.
TEST(NonFiniteBackward, SinkOfInfinity) {
  const std::string sizes = " f32 b1 hq2 hkv1 sq30 sk50 d16 causal sinks";
  const float sinks[2] = {kInf, 0.25f};
  DenseRun forward("forward" + sizes);
  forward.tensors.score.sinks = contiguous(static_cast<const void*>(sinks), DType::kF32, {2});
  ASSERT_TRUE(forward.run().ok());
  for (const KernelEntry* entry : main_kernels()) {
    const std::string text = "backward" + sizes + " dlse grads=dq,dk,dv,dsinks";
    if (!entry->supports(parse_problem(text).value(), entry->config).ok()) {
      continue;
    }
    SCOPED_TRACE(entry->config.name);
    DenseRun run(text);
    const Sizes& s = run.problem.sizes;
    run.out = forward.out;
    run.lse = forward.lse;
    const std::vector<float> dlse(forward.lse.size(), 0.5f);
    float dsinks[2] = {kNaN, kNaN};
    run.tensors.score.sinks = contiguous(static_cast<const void*>(sinks), DType::kF32, {2});
    run.tensors.grad.dsinks = contiguous(static_cast<void*>(dsinks), DType::kF32, {2});
    run.tensors.grad.dlse = contiguous(static_cast<const void*>(dlse.data()), DType::kF32,
                                       {s.batch, s.heads_q, s.seqlen_q});
    const Status status = run.run(entry->config.name);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(dsinks[0], 0.5f * static_cast<float>(s.seqlen_q));
    EXPECT_TRUE(std::isfinite(dsinks[1]));
    for (size_t x = 0; x < run.dq.size(); ++x) {
      const bool of_the_sink = x / static_cast<size_t>(s.head_dim) % 2 == 0;
      ASSERT_TRUE(of_the_sink ? run.dq[x] == 0.0f : std::isfinite(run.dq[x])) << x;
    }
    for (size_t x = 0; x < run.dk.size(); ++x) {
      ASSERT_TRUE(std::isfinite(run.dk[x]) && std::isfinite(run.dv[x])) << x;
    }
  }
}

}  // namespace
}  // namespace rowmax::test
