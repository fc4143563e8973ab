// The other verbs, help and exit codes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "file_builder.h"
#include "process.h"

namespace rowmax::app::testing {
namespace {

using Json = nlohmann::json;

TEST(Command, HelpDocumentsExitCodes) {
  const ProcessResult help = run_command({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("Exit codes"), std::string::npos);
  for (const char* verb : {"attend", "verify", "bench", "explain", "devices"}) {
    EXPECT_NE(help.out.find(verb), std::string::npos);
    EXPECT_EQ(run_command({verb, "--help"}).exit_code, 0);
  }
  EXPECT_EQ(run_command({"--version"}).exit_code, 0);
  EXPECT_EQ(run_command({"--version"}).out.find("rowmax "), 0u);
}

TEST(Command, UsageErrorsExitWith2) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"absent"}, {"attend"}, {"explain"}, {"verify", "--nope"}}) {
    const ProcessResult result = run_command(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err, "");
  }
}

TEST(Verify, SmokePasses) {
  const ProcessResult result = run_command({"verify", "--suite", "smoke"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.err, "");
}

TEST(Verify, TakesCasesAsArguments) {
  EXPECT_EQ(run_command({"verify", "forward f32 b1 h1 s9 d4", "forward f32 b1 h1 s8 d4"}).exit_code,
            0);
  EXPECT_EQ(run_command({"verify", "forward", "f32", "b1", "h1", "s9", "d4"}).exit_code, 0);
  EXPECT_EQ(run_command({"verify", "forward f32 b1 h1 d4"}).exit_code, 2);
  EXPECT_EQ(run_command({"verify", "forward f32 b1 hq3 hkv2 s9 d4"}).exit_code, 2);
  const ProcessResult absent = run_command({"verify", "--suite", "absent"});
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_NE(absent.err.find("smoke"), std::string::npos) << absent.err;
  EXPECT_NE(absent.err.find("fuzz"), std::string::npos) << absent.err;
  for (const char* suite : {"smoke", "fuzz"}) {
    const ProcessResult both = run_command({"verify", "forward f32 b1 h1 s9 d4", "--suite", suite});
    EXPECT_EQ(both.exit_code, 2);
    EXPECT_NE(both.err.find("--suite"), std::string::npos) << both.err;
  }
  for (const char* threads : {"-1", "1025"}) {
    EXPECT_EQ(run_command({"verify", "--threads", threads}).exit_code, 2);
  }
  EXPECT_EQ(run_command({"verify", "forward f32 b1 h1 s9 d4", "--kernel", "absent"}).exit_code, 2);
}

TEST(Verify, FuzzCountsFeatures) {
  const ProcessResult result =
      run_command({"verify", "--suite", "fuzz", "--count", "20", "--seconds", "20", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_GT(json["counters"]["forward"].get<int>() + json["counters"]["backward"].get<int>(), 0);
}

TEST(Bench, WritesJsonLinesAndAPlot) {
  const TemporaryFolder folder;
  const ProcessResult result =
      run_command({"bench", "forward f32 b1 h1 s64 d16", "forward f32 b1 h1 s128 d16", "--baseline",
                   "naive", "--rounds", "2", "--round-seconds", "0", "--check", "--json",
                   folder.path("b.json"), "--plot", folder.path("b.svg")});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  // Cases that differ in their length only share a heading; the table begins with the length.
  EXPECT_NE(result.out.find("\nforward f32 b1 h1 d16 "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("\nlength "), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("p10"), std::string::npos) << result.out;
  EXPECT_EQ(folder.files(), (std::vector<std::string>{"b.json", "b.svg"}));
  EXPECT_EQ(run_command({"bench", "--baseline", "absent"}).exit_code, 2);
}

TEST(Bench, NamesCasesThatDiffer) {
  const ProcessResult result =
      run_command({"bench", "forward f32 b1 h1 s64 d16", "forward f32 b1 h1 sq1 sk128 d8",
                   "--rounds", "1", "--round-seconds", "0", "--threads", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find(" 1 thread;"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("1 x 128 "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("forward f32 b1 h1 d8 "), std::string::npos) << result.out;
}

TEST(Explain, NamesTheKernel) {
  const ProcessResult result = run_command({"explain", "forward bf16 b2 hq8 hkv2 s100 d64 causal"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("forward"), std::string::npos);
  EXPECT_EQ(run_command({"explain", "nonsense"}).exit_code, 2);
  EXPECT_EQ(run_command({"explain", "forward f32 b1 h1 s100 d64 blockmask"}).exit_code, 2);
}

TEST(Devices, PrintsTheHost) {
  EXPECT_NE(run_command({"devices"}).out.find("isa"), std::string::npos);
  const Json json = Json::parse(run_command({"devices", "--json"}).out);
  EXPECT_GE(json["cores"].get<int>(), 1);
}

TEST(Devices, RefusesAnUnknownInstructionSet) {
  ::setenv("ROWMAX_MAX_ISA", "sse9", 1);
  const ProcessResult result = run_command({"devices"});
  ::unsetenv("ROWMAX_MAX_ISA");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("'sse9'; accepted: portable, avx2"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace rowmax::app::testing
