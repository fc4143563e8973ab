// States over parts of the keys merge to the whole (BC-132): fp32 partials, any number of parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rowmax/state.h"
#include "runs.h"
#include "testkit/numerics.h"

namespace rowmax::test {
namespace {

constexpr int64_t kRows = 50;
constexpr int64_t kKeys = 240;
constexpr int64_t kDims = 64;

// One head's attention over keys [begin, end) as a state.
struct Part {
  std::vector<float> m = std::vector<float>(kRows);
  std::vector<float> l = std::vector<float>(kRows);
  std::vector<float> o = std::vector<float>(kRows * kDims);
  AttentionState view() { return {m.data(), l.data(), o.data(), kRows, kDims, kDims}; }
};

Part state_of(const DenseRun& whole, int64_t begin, int64_t end) {
  Part part;
  DenseRun run("forward f32 b1 h1 sq50 sk" + std::to_string(end - begin) + " d64");
  run.q = whole.q;
  run.k.assign(whole.k.begin() + begin * kDims, whole.k.begin() + end * kDims);
  run.v.assign(whole.v.begin() + begin * kDims, whole.v.begin() + end * kDims);
  EXPECT_TRUE(run.run().ok());
  EXPECT_TRUE(state_from_output(run.out.data(), kDims, run.lse.data(), part.view()).ok());
  return part;
}

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0.0;
  for (size_t x = 0; x < a.size(); ++x) {
    worst = std::max(worst, std::abs(static_cast<double>(a[x]) - static_cast<double>(b[x])));
  }
  return worst;
}

TEST(Split, BC132_MergedPartsEqualTheWhole) {
  DenseRun whole("forward f32 b1 h1 sq50 sk240 d64");
  ASSERT_TRUE(whole.run().ok());
  double largest = 0.0;
  for (const float lse : whole.lse) {
    largest = std::max(largest, std::abs(static_cast<double>(lse)));
  }
  for (const int64_t count : {1, 2, 4, 8}) {
    std::vector<Part> parts;
    std::vector<AttentionState> views;
    for (int64_t p = 0; p < count; ++p) {
      parts.push_back(state_of(whole, p * kKeys / count, (p + 1) * kKeys / count));
    }
    parts.push_back(state_of(whole, 0, 0));  // an empty range changes nothing
    for (Part& part : parts) {
      views.push_back(part.view());
    }
    ASSERT_TRUE(merge(views.data(), static_cast<int>(views.size()), views[0]).ok());
    std::vector<float> out(whole.out.size());
    std::vector<float> lse(whole.lse.size());
    ASSERT_TRUE(finalize(views[0], nullptr, out.data(), kDims, lse.data()).ok());
    const double limit = testkit::merge_limit(count, largest);
    EXPECT_LE(worst_difference(out, whole.out), limit) << count << " parts";
    EXPECT_LE(worst_difference(lse, whole.lse), limit) << count << " parts";
  }
}

}  // namespace
}  // namespace rowmax::test
