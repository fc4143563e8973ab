// States: merge is a stable monoid, finalize knows the sink.
#include "rowmax/state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "testkit/numerics.h"

namespace rowmax {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kDims = 70;  // more than one chunk of the fold

// One owned state. Empty until it is filled.
struct State {
  explicit State(int64_t rows, int64_t dims = kDims)
      : m(static_cast<size_t>(rows), -kInf),
        l(static_cast<size_t>(rows), 0.0f),
        o(static_cast<size_t>(rows * dims), 0.0f),
        view{m.data(), l.data(), o.data(), rows, dims, dims} {}
  State(const State& other) : State(other.view.rows, other.view.dims) {
    m = other.m;
    l = other.l;
    o = other.o;
    view = {m.data(), l.data(), o.data(), other.view.rows, other.view.dims, other.view.dims};
  }
  State& operator=(const State&) = delete;

  std::vector<float> m;
  std::vector<float> l;
  std::vector<float> o;
  AttentionState view;
};

uint32_t hash(int64_t index, int seed) {
  uint32_t x = static_cast<uint32_t>(index) * 2654435761u + static_cast<uint32_t>(seed) * 40503u;
  x ^= x >> 15;
  x *= 2246822519u;
  return x ^ (x >> 13);
}

float value_of(int64_t index, int seed) {
  return static_cast<float>(hash(index, seed) >> 8) / (1 << 23) - 1.0f;
}

// The state of keys [begin, end) for every row: scores and values depend on (row, key) only.
State partial(int64_t rows, int64_t begin, int64_t end, float score_scale = 4.0f) {
  State state(rows);
  for (int64_t r = 0; r < rows; ++r) {
    const size_t row = static_cast<size_t>(r);
    for (int64_t j = begin; j < end; ++j) {
      state.m[row] = std::max(state.m[row], score_scale * value_of(r * 4096 + j, 1));
    }
    for (int64_t j = begin; j < end; ++j) {
      const float p = std::exp(score_scale * value_of(r * 4096 + j, 1) - state.m[row]);
      state.l[row] += p;
      for (int64_t d = 0; d < kDims; ++d) {
        state.o[static_cast<size_t>(r * kDims + d)] += p * value_of(j * kDims + d, 2);
      }
    }
  }
  return state;
}

struct Finished {
  std::vector<float> out;
  std::vector<float> lse;
};

Finished finished(const State& state, const float* sinks = nullptr) {
  Finished result{std::vector<float>(state.o.size(), kNan),
                  std::vector<float>(state.m.size(), kNan)};
  const Status status =
      finalize(state.view, sinks, result.out.data(), state.view.dims, result.lse.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << "at " << i;
  }
}

void expect_same_state(const State& a, const State& b) {
  expect_same_bits(a.m, b.m);
  expect_same_bits(a.l, b.l);
  expect_same_bits(a.o, b.o);
}

void expect_merged(const std::vector<AttentionState>& parts, const State& into) {
  const Status status = merge(parts.data(), static_cast<int>(parts.size()), into.view);
  ASSERT_TRUE(status.ok()) << status.message();
}

// BC-003: a row without keys has LSE = -inf, and merging it returns the other one unchanged.
TEST(State, Bc003RowWithoutKeys) {
  const Finished none = finished(State(3));
  for (const float lse : none.lse) {
    EXPECT_EQ(lse, -kInf);
  }
  for (const float value : none.out) {
    EXPECT_EQ(value, 0.0f);
  }
  const State other = partial(3, 0, 5);
  const State empty(3);
  State into(3);
  expect_merged({empty.view, other.view}, into);
  expect_same_state(into, other);
  expect_merged({other.view, empty.view}, into);
  expect_same_state(into, other);
}

// BC-010: empty with empty is empty; also in place, n-way, and whatever O of an empty row holds.
TEST(State, Bc010EmptyPartials) {
  State a(2);
  State b(2);
  a.o.assign(a.o.size(), kNan);
  b.o.assign(b.o.size(), kInf);
  const State empty(2);
  State into = partial(2, 0, 3);
  expect_merged({a.view, b.view}, into);
  expect_same_state(into, empty);
  expect_merged({a.view, b.view, a.view, b.view}, into);
  expect_same_state(into, empty);
  expect_merged({}, into);
  expect_same_state(into, empty);

  const State other = partial(2, 3, 9);
  expect_merged({a.view, b.view, other.view, a.view}, into);
  expect_same_state(into, other);
  State in_place = other;
  expect_merged({a.view, in_place.view, b.view}, in_place);
  expect_same_state(in_place, other);
  expect_merged({a.view, b.view}, a);  // in place, both empty
  expect_same_state(a, empty);
}

// BC-012: a far larger statistic wins without overflow, on either side.
TEST(State, Bc012NoOverflow) {
  State small(1, 1);
  small.m[0] = 0.0f;
  small.l[0] = 1.0f;
  small.o[0] = 3.0f;
  State large(1, 1);
  large.m[0] = 200.0f;
  large.l[0] = 1.0f;
  large.o[0] = 7.0f;
  State into(1, 1);
  for (const bool swapped : {false, true}) {
    expect_merged(swapped ? std::vector<AttentionState>{large.view, small.view}
                          : std::vector<AttentionState>{small.view, large.view},
                  into);
    const Finished result = finished(into);
    EXPECT_EQ(result.lse[0], 200.0f);
    EXPECT_EQ(result.out[0], 7.0f);
  }
  // The largest finite statistics of both signs.
  large.m[0] = std::numeric_limits<float>::max();
  small.m[0] = -std::numeric_limits<float>::max();
  expect_merged({small.view, large.view}, into);
  EXPECT_EQ(finished(into).lse[0], std::numeric_limits<float>::max());
  EXPECT_EQ(finished(into).out[0], 7.0f);
}

// BC-013: LSE is a natural logarithm: exp(LSE) is the sum of exp(score).
TEST(State, Bc013LseIsNatural) {
  const int64_t keys = 37;
  const State state = partial(1, 0, keys);
  double sum = 0.0;
  for (int64_t j = 0; j < keys; ++j) {
    sum += std::exp(static_cast<double>(4.0f * value_of(j, 1)));
  }
  EXPECT_FLOAT_EQ(finished(state).lse[0], static_cast<float>(std::log(sum)));
}

double largest_error(const Finished& result, int64_t rows, int64_t keys) {
  double worst = 0.0;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> exact(kDims, 0.0);
    double sum = 0.0;
    for (int64_t j = 0; j < keys; ++j) {
      const double p = std::exp(static_cast<double>(4.0f * value_of(r * 4096 + j, 1)));
      sum += p;
      for (int64_t d = 0; d < kDims; ++d) {
        exact[static_cast<size_t>(d)] += p * static_cast<double>(value_of(j * kDims + d, 2));
      }
    }
    for (int64_t d = 0; d < kDims; ++d) {
      worst = std::max(
          worst, std::fabs(static_cast<double>(result.out[static_cast<size_t>(r * kDims + d)]) -
                           exact[static_cast<size_t>(d)] / sum));
    }
  }
  return worst;
}

// BC-132: partials stay fp32, so that the error does not grow with their number.
TEST(State, Bc132ErrorDoesNotGrowWithParts) {
  const int64_t rows = 4;
  const int64_t keys = 512;
  const Finished whole = finished(partial(rows, 0, keys));
  const double unsplit = largest_error(whole, rows, keys);
  // LSE is above every m here.
  const double largest = *std::max_element(whole.lse.begin(), whole.lse.end());
  for (const int64_t count : {2, 4, 8, 64}) {
    SCOPED_TRACE(count);
    std::vector<State> parts;
    std::vector<AttentionState> views;
    for (int64_t p = 0; p < count; ++p) {
      parts.push_back(partial(rows, p * keys / count, (p + 1) * keys / count));
    }
    for (const State& part : parts) {
      views.push_back(part.view);
    }
    State into(rows);
    expect_merged(views, into);
    const double error = largest_error(finished(into), rows, keys);
    EXPECT_LE(error, unsplit + testkit::merge_limit(count, largest));
  }
}

TEST(State, NWayEqualsPairwiseBitForBit) {
  const State a = partial(3, 0, 7);
  const State b = partial(3, 7, 8);
  const State c = partial(3, 8, 30);
  State at_once(3);
  expect_merged({a.view, b.view, c.view}, at_once);
  State running = a;
  expect_merged({running.view, b.view}, running);
  expect_merged({running.view, c.view}, running);
  expect_same_state(at_once, running);

  State last = c;  // in place into the last part
  expect_merged({a.view, b.view, last.view}, last);
  expect_same_state(at_once, last);
}

TEST(State, OnePartIsCopied) {
  const State a = partial(2, 0, 7);
  State into(2);
  expect_merged({a.view}, into);
  expect_same_state(into, a);
}

TEST(State, NanStaysInItsRow) {
  State a = partial(2, 0, 7);
  a.m[0] = kNan;
  const State b = partial(2, 7, 9);
  State into(2);
  expect_merged({b.view, a.view}, into);
  const Finished result = finished(into);
  EXPECT_TRUE(std::isnan(result.out[0]));
  for (int64_t d = 0; d < kDims; ++d) {
    EXPECT_FALSE(std::isnan(result.out[static_cast<size_t>(kDims + d)]));
  }
}

TEST(State, SinksEnterAtFinalize) {
  State state(4, 1);
  const float sinks[4] = {1.5f, -2.0f, 0.0f, 300.0f};
  // Row 0 is empty; the others saw one key of score 0 and value 8.
  for (size_t row = 1; row < 4; ++row) {
    state.m[row] = 0.0f;
    state.l[row] = 1.0f;
    state.o[row] = 8.0f;
  }
  const Finished result = finished(state, sinks);
  EXPECT_EQ(result.out[0], 0.0f);
  EXPECT_EQ(result.lse[0], 1.5f);
  EXPECT_FLOAT_EQ(result.out[1], 8.0f / (1.0f + std::exp(-2.0f)));
  EXPECT_FLOAT_EQ(result.lse[1], std::log(1.0f + std::exp(-2.0f)));
  EXPECT_EQ(result.out[2], 4.0f);
  EXPECT_FLOAT_EQ(result.lse[2], std::log(2.0f));
  EXPECT_EQ(result.out[3], 0.0f);
  EXPECT_EQ(result.lse[3], 300.0f);
}

TEST(State, OutputAndLseComeBackBitForBit) {
  State state = partial(3, 0, 11);
  state.m[1] = -kInf;
  state.l[1] = 0.0f;
  const Finished before = finished(state);
  State again(3);
  ASSERT_TRUE(state_from_output(before.out.data(), kDims, before.lse.data(), again.view).ok());
  const Finished after = finished(again);
  expect_same_bits(after.out, before.out);
  expect_same_bits(after.lse, before.lse);
  EXPECT_EQ(again.l[1], 0.0f);
}

TEST(State, FinalizeInPlaceAndWithoutLse) {
  State state = partial(2, 0, 11);
  const Finished expected = finished(state);
  ASSERT_TRUE(finalize(state.view, nullptr, state.o.data(), kDims, nullptr).ok());
  expect_same_bits(state.o, expected.out);
}

TEST(State, StridedRows) {
  const State a = partial(3, 0, 5);
  const State b = partial(3, 5, 9);
  State expected(3);
  expect_merged({a.view, b.view}, expected);
  std::vector<float> o(3 * 100, -1.0f);
  State into(3);
  AttentionState strided = into.view;
  strided.o = o.data();
  strided.o_stride = 100;
  const AttentionState parts[] = {a.view, b.view};
  ASSERT_TRUE(merge(parts, 2, strided).ok());
  for (size_t row = 0; row < 3; ++row) {
    for (size_t d = 0; d < 100; ++d) {
      const float want = d < kDims ? expected.o[row * kDims + d] : -1.0f;
      ASSERT_EQ(o[row * 100 + d], want);
    }
  }
}

TEST(State, NoRows) {
  const AttentionState none;
  EXPECT_TRUE(merge(&none, 1, none).ok());
  EXPECT_TRUE(finalize(none, nullptr, nullptr, 0, nullptr).ok());
  EXPECT_TRUE(state_from_output(nullptr, 0, nullptr, none).ok());
}

void expect_refused(const Status& status, const std::string& name) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().rfind(name, 0), 0u) << status.message();
  EXPECT_NE(status.message().find("accepted: "), std::string::npos) << status.message();
}

// A buffer that holds any operand of two rows at any offset.
struct Pool {
  std::vector<float> values = std::vector<float>(16 * kDims, 0.5f);
  float* at(int64_t offset) { return values.data() + offset; }
  AttentionState state(int64_t m, int64_t l, int64_t o, int64_t o_stride = kDims) {
    return {at(m), at(l), at(o), 2, kDims, o_stride};
  }
};

constexpr int64_t kM = 0;
constexpr int64_t kL = 8;
constexpr int64_t kO = 16;
constexpr int64_t kOther = 8 * kDims;  // where a second state lies

TEST(State, MergeRefusesSharedMemory) {
  Pool pool;
  const AttentionState part = pool.state(kM, kL, kO);
  const AttentionState apart = pool.state(kOther + kM, kOther + kL, kOther + kO);
  const auto merged = [&](const AttentionState& into) {
    const AttentionState parts[] = {apart, part};
    return merge(parts, 2, into);
  };
  const std::vector<float> before = pool.values;
  AttentionState into = part;
  into.m = part.m + 1;
  expect_refused(merged(into), "into.m: shares memory with parts[1].m");
  into = apart;
  into.m = part.l;
  expect_refused(merged(into), "into.m: shares memory with parts[1].l");
  into = part;
  into.o = part.o + 1;
  expect_refused(merged(into), "into.o: shares memory with parts[1].o");
  into = part;
  into.o_stride = 2 * kDims;  // a row would be overwritten before it is read
  expect_refused(merged(into), "into.o: shares memory with parts[1].o");
  into = pool.state(4 * kDims, 4 * kDims + 1, 5 * kDims);
  expect_refused(merged(into), "into.l: shares memory with into.m");
  EXPECT_EQ(pool.values, before);
  // In place, in part or as a whole, and rows that interleave without touching.
  EXPECT_TRUE(merged(part).ok());
  EXPECT_TRUE(merged(pool.state(kM, 4 * kDims, 5 * kDims)).ok());
  const AttentionState wide = pool.state(kM, kL, kO, 2 * kDims);
  EXPECT_TRUE(merge(&wide, 1, pool.state(kOther, kOther + 2, kO + kDims, 2 * kDims)).ok());
}

TEST(State, StateFromOutputRefusesSharedMemory) {
  Pool pool;
  const AttentionState into = pool.state(kM, kL, kO);
  const auto read = [&](int64_t out, int64_t lse) {
    return state_from_output(pool.at(out), kDims, pool.at(lse), into);
  };
  const std::vector<float> before = pool.values;
  expect_refused(read(kO + 1, kM), "into.o: shares memory with out");
  expect_refused(read(kO, kM + 1), "into.m: shares memory with lse");
  expect_refused(read(kO, kL), "into.l: shares memory with lse");
  EXPECT_EQ(pool.values, before);
  EXPECT_TRUE(read(kO, kM).ok());  // in place
  EXPECT_EQ(*pool.at(kM), before[kM]);
  EXPECT_EQ(*pool.at(kL), 1.0f);
  EXPECT_EQ(*pool.at(kO), before[kO]);
}

TEST(State, FinalizeRefusesSharedMemory) {
  Pool pool;
  const AttentionState state = pool.state(kM, kL, kO);
  const auto finished = [&](int64_t out, int64_t lse, int64_t out_stride = kDims) {
    return finalize(state, pool.at(kOther), pool.at(out), out_stride, pool.at(lse));
  };
  const std::vector<float> before = pool.values;
  expect_refused(finished(kO + kDims, kM), "out: shares memory with state.o");
  expect_refused(finished(kO, kM, 2 * kDims), "out: shares memory with state.o");
  expect_refused(finished(kO, kM + 1), "lse: shares memory with state.m");
  expect_refused(finished(kO, kL), "lse: shares memory with state.l");
  expect_refused(finished(kO, kOther + 1), "lse: shares memory with sinks");
  expect_refused(finished(kOther + kO, kOther + kO), "out: shares memory with lse");
  EXPECT_EQ(pool.values, before);
  std::vector<float> out(2 * kDims);
  float lse[2];
  ASSERT_TRUE(finalize(state, pool.at(kOther), out.data(), kDims, lse).ok());
  ASSERT_TRUE(finished(kO, kM).ok());  // in place
  EXPECT_EQ(*pool.at(kM), lse[0]);
  EXPECT_EQ(*pool.at(kO), out[0]);
}

// Sums that only a rescale keeps inside fp32.
TEST(State, HugeSums) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  State a(1, 1);
  a.m[0] = 3.0f;
  a.l[0] = kLargest;
  a.o[0] = kLargest;
  State into(1, 1);
  expect_merged({a.view, a.view, a.view, a.view}, into);
  EXPECT_TRUE(std::isfinite(into.l[0]));
  const Finished result = finished(into);
  EXPECT_FLOAT_EQ(result.out[0], 1.0f);
  EXPECT_FLOAT_EQ(result.lse[0], 3.0f + std::log(kLargest) + std::log(4.0f));
}

TEST(State, RefusalsByName) {
  const State a = partial(2, 0, 3);
  State into(2);
  const AttentionState good[] = {a.view, a.view};
  expect_refused(merge(good, -1, into.view), "parts");
  expect_refused(merge(nullptr, 2, into.view), "parts");

  AttentionState broken[] = {a.view, a.view};
  broken[1].rows = 1;
  expect_refused(merge(broken, 2, into.view), "parts[1]");
  broken[1] = a.view;
  broken[1].dims = kDims - 1;
  expect_refused(merge(broken, 2, into.view), "parts[1]");
  broken[1] = a.view;
  broken[1].o = nullptr;
  expect_refused(merge(broken, 2, into.view), "parts[1].o: data is null");

  AttentionState bad = into.view;
  bad.m = nullptr;
  expect_refused(merge(good, 2, bad), "into.m: data is null");
  bad = into.view;
  bad.o_stride = kDims - 1;
  expect_refused(merge(good, 2, bad), "into.o: strides");
  bad = into.view;
  bad.rows = -1;
  expect_refused(merge(good, 2, bad), "into: rows = -1");

  float lse[2];
  expect_refused(finalize(a.view, nullptr, nullptr, kDims, lse), "out: data is null");
  expect_refused(finalize(a.view, nullptr, into.o.data(), 1, lse), "out: strides");
  expect_refused(state_from_output(a.o.data(), kDims, nullptr, into.view), "lse");
  expect_refused(state_from_output(nullptr, kDims, lse, into.view), "out");
}

}  // namespace
}  // namespace rowmax
