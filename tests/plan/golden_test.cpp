// explain() of the real kernels on a fixed device, line for line. After an intended change run the
// binary with ROWMAX_UPDATE_GOLDEN=1 and review the difference.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>
#include <string>

#include "api/backends.h"
#include "fake_backend.h"
#include "plan/planner.h"

namespace rowmax::test {
namespace {

struct GoldenCase {
  const char* name;  // of the file in tests/plan/golden
  const char* isa;
  const char* line;
};

void PrintTo(const GoldenCase& c, std::ostream* out) { *out << c.name; }

const GoldenCase kCases[] = {
    {"forward_f32_full", "avx2", "forward f32 b2 h8 s1024 d64"},
    {"forward_f32_portable", "portable", "forward f32 b2 h8 s1024 d64"},
    {"forward_bf16_gqa_causal", "avx2", "forward bf16 b2 hq8 hkv2 sq113 sk203 d128 causal"},
    {"forward_f16_ragged", "avx2",
     "forward f16 b4 h6 sq300 sk300 d80 dv64 window=128,0 ragged_q=900 ragged_k=900 used_k"},
    {"forward_f32_paged", "avx2", "forward f32 b3 hq8 hkv2 sq70 sk500 d64 paged=16,128,32 used_k"},
    {"forward_f64", "avx2", "forward f64 b2 h2 s64 d32"},
    {"forward_f32_split", "avx2", "forward f32 b1 h1 sq64 sk65536 d64"},
    {"forward_f32_scores", "avx2",
     "forward f32 b2 h4 s256 d64 mask=bc bias=f32:hrc alibi documents sinks softcap=30 "
     "dropout=0.1"},
    {"forward_f32_invariant", "avx2", "forward f32 b1 h8 sq1 sk8192 d128 invariant"},
    {"forward_f32_wide", "avx2", "forward f32 b1 h2 s512 d576 dv512"},
    {"forward_f32_cached_tile", "avx2", "forward f32 b2 h8 s4096 d576 dv512"},
    {"decode_bf16_gqa", "avx2", "forward bf16 b1 hq32 hkv8 sq1 sk8192 d128 causal"},
    {"decode_f32_portable", "portable", "forward f32 b1 h4 sq1 sk8192 d64"},
    {"backward_f32_full", "avx2", "backward f32 b2 h8 s1024 d64"},
    {"backward_f32_chunks", "avx2", "backward f32 b1 h1 s8192 d128 causal"},
    {"backward_bf16_all", "avx2",
     "backward bf16 b2 hq8 hkv4 s512 d64 bias=f32:hrc alibi sinks "
     "grads=dq,dk,dv,dbias,dsinks,dslopes dlse"},
    {"backward_f64", "avx2", "backward f64 b1 h2 s48 d16"},
};

std::filesystem::path golden_path(const GoldenCase& c) {
  return std::filesystem::path(ROWMAX_GOLDEN_DIR) / (std::string(c.name) + ".txt");
}

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class Golden : public testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, ExplainIsUnchanged) {
  const GoldenCase& c = GetParam();
  const Result<Plan> plan =
      make_plan_with(problem_of(c.line), fake_device(c.isa), {}, all_backends());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const std::string text = explain(*plan);
  if (std::getenv("ROWMAX_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(golden_path(c)) << text;
  }
  EXPECT_EQ(read_file(golden_path(c)), text) << "after an intended change: ROWMAX_UPDATE_GOLDEN=1 "
                                                "rowmax_plan_tests --gtest_filter=*Golden*";
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<GoldenCase>& test) {
                           return std::string(test.param.name);
                         });

}  // namespace
}  // namespace rowmax::test
