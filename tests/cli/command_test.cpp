// The other verbs, help and exit codes.
#include <gtest/gtest.h>

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
  EXPECT_EQ(run_command({"verify", "--suite", "absent"}).exit_code, 2);
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
  EXPECT_NE(result.out.find("speed-up"), std::string::npos);
  EXPECT_EQ(folder.files(), (std::vector<std::string>{"b.json", "b.svg"}));
  EXPECT_EQ(run_command({"bench", "--baseline", "absent"}).exit_code, 2);
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

}  // namespace
}  // namespace rowmax::app::testing
