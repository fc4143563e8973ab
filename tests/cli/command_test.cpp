// The other verbs, help and exit codes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "file_builder.h"
#include "process.h"

namespace rowmax::app::testing {
namespace {

using Json = nlohmann::json;

TEST(Command, HelpDocumentsExitCodes) {
  const ProcessResult help = run_command({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("Exit codes"), std::string::npos);
  for (const char* verb : {"attend", "verify", "bench", "tune", "explain", "devices"}) {
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

// Refused before anything runs; the message holds every given part.
void expect_refused(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& parts) {
  const ProcessResult result = run_command(arguments);
  std::string line;
  for (const std::string& argument : arguments) {
    line += " " + argument;
  }
  EXPECT_EQ(result.exit_code, 2) << line << "\n" << result.err;
  EXPECT_EQ(result.out, "") << line;
  for (const std::string& part : parts) {
    EXPECT_NE(result.err.find(part), std::string::npos) << line << "\n" << result.err;
  }
}

constexpr const char* kTiny = "forward f32 b1 h1 s9 d4";

TEST(Options, IntegersBeyondTheirRangeAreRefused) {
  const std::vector<std::string> values = {"-1",
                                           "18446744073709551616",
                                           "99999999999999999999999",
                                           "-18446744073709551615",
                                           "1.5",
                                           "1e3",
                                           "0x10",
                                           "7x",
                                           " 7",
                                           ""};
  const std::vector<std::pair<std::string, std::string>> options = {
      {"verify", "--seed"},    {"verify", "--count"}, {"verify", "--threads"},
      {"bench", "--threads"},  {"bench", "--rounds"}, {"explain", "--max-workspace"},
      {"attend", "--threads"}, {"attend", "--repeat"}};
  for (const auto& [verb, option] : options) {
    for (const std::string& value : values) {
      expect_refused({verb, kTiny, option, value}, {option, "is '" + value + "'; accepted: "});
    }
  }
  expect_refused({"explain", kTiny, "--max-workspace", "9223372036854775808"},
                 {"0 to 9223372036854775807"});
  expect_refused({"verify", kTiny, "--threads", "4294967297"}, {"0 to 1024"});
  EXPECT_EQ(run_command({"explain", kTiny, "--max-workspace", "9223372036854775807"}).exit_code, 0);
  const ProcessResult seed = run_command(
      {"verify", "--suite", "fuzz", "--count", "1", "--seed", "18446744073709551615", "--json"});
  EXPECT_EQ(Json::parse(seed.out)["seed"].get<uint64_t>(), UINT64_MAX);
}

TEST(Options, NumbersBeyondTheirRangeAreRefused) {
  const std::vector<std::pair<std::string, std::string>> options = {
      {"verify", "--seconds"},         {"bench", "--case-seconds"}, {"bench", "--round-seconds"},
      {"bench", "--baseline-seconds"}, {"attend", "--scale"},       {"attend", "--softcap"}};
  for (const auto& [verb, option] : options) {
    for (const std::string value : {"1e400", "1e-400", "inf", "nan", "0x1p3", "1s", ""}) {
      expect_refused({verb, kTiny, option, value}, {option, "is '" + value + "'; accepted: "});
    }
  }
}

TEST(Options, EmptyTextsAreRefused) {
  const std::vector<std::vector<std::string>> commands = {{"attend", ""},
                                                          {"attend", "q.npy", "", "v.npy"},
                                                          {"attend", "in", "--out", ""},
                                                          {"attend", "in", "--window", ""},
                                                          {"attend", "in", "--dtype", ""},
                                                          {"attend", "in", "--device", ""},
                                                          {"attend", "in", "--kernel", ""},
                                                          {"verify", "--suite", ""},
                                                          {"verify", kTiny, "--kernel", ""},
                                                          {"verify", kTiny, "--device", ""},
                                                          {"bench", "--suite", ""},
                                                          {"bench", kTiny, "--json", ""},
                                                          {"bench", kTiny, "--plot", ""},
                                                          {"bench", kTiny, "--baseline", ""},
                                                          {"bench", kTiny, "--device", ""},
                                                          {"explain", kTiny, "--kernel", ""},
                                                          {"explain", kTiny, "--device", ""},
                                                          {"tune", kTiny, "--device", ""},
                                                          {"tune", "--suite", ""},
                                                          {"tune", kTiny, "--json", ""},
                                                          {"tune", "--from", ""},
                                                          {"tune", "--from", "a", "--out", ""}};
  for (const std::vector<std::string>& command : commands) {
    expect_refused(command, {"is ''; accepted: "});
  }
  for (const char* option : {"--json=", "--suite=", "--device="}) {
    expect_refused({"bench", option, kTiny}, {option, "has no value; accepted: "});
  }
  expect_refused({"verify", ""}, {"case \"\""});
  expect_refused({"bench", ""}, {"case \"\""});
  expect_refused({"explain", ""}, {"case \"\""});
}

TEST(Cases, RepeatedAndIdleWordsAreRefused) {
  const std::string tiny = kTiny;
  for (const char* verb : {"verify", "bench"}) {
    expect_refused({verb, tiny + " seed1 seed2"}, {tiny + " seed1 seed2", "'seed2'", "twice"});
    expect_refused({verb, tiny + " qlens=3"}, {tiny + " qlens=3", "'qlens' has no effect"});
  }
  for (const char* verb : {"verify", "bench", "explain"}) {
    expect_refused({verb, tiny + " d8"}, {tiny + " d8", "'d8'", "twice"});
    expect_refused({verb, tiny + " causal causal"}, {"'causal'", "twice"});
    expect_refused({verb, tiny + " topleft"}, {"'topleft' has no effect"});
  }
}

// 2^51 bytes are more than an address space holds. The address sanitizer ends the process instead.
TEST(Cases, ThoseThatFindNoMemoryAreNamed) {
  const std::string huge = "forward f32 b16384 h1 sq1 sk2147483647 d16";
  for (const char* verb : {"verify", "bench"}) {
    const ProcessResult result = run_command({verb, kTiny, huge});
    if (result.err.find("AddressSanitizer") != std::string::npos) {
      GTEST_SKIP() << result.err;
    }
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_NE(result.err.find("case \"" + huge + " seed1\": out of memory"), std::string::npos)
        << result.err;
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

TEST(Bench, AJsonFileAndAPlotAreTwoFiles) {
  const TemporaryFolder folder;
  const std::string path = folder.path("one");
  for (const std::string& other :
       {path, folder.path("./one"), folder.path("absent/../one"), folder.path("linked/one")}) {
    std::filesystem::remove(folder.path("linked"));
    std::filesystem::create_directory_symlink(folder.path("."), folder.path("linked"));
    expect_refused({"bench", kTiny, "--json", path, "--plot", other}, {"--plot", "--json", path});
  }
  EXPECT_EQ(folder.files(), std::vector<std::string>{"linked"});
}

// A link stays a link, a pipe is written to.
TEST(Bench, WritesThroughLinksAndPipes) {
  const TemporaryFolder folder;
  const std::vector<std::string> words = {"bench",           kTiny, "--rounds", "1",
                                          "--round-seconds", "0",   "--json"};
  const auto run_to = [&](const std::string& name) {
    std::vector<std::string> all = words;
    all.push_back(folder.path(name));
    return run_command(all).exit_code;
  };
  std::filesystem::create_symlink("real.json", folder.path("link.json"));
  for (int again = 0; again < 2; ++again) {  // the file is not there, and is there
    EXPECT_EQ(run_to("link.json"), 0);
    EXPECT_TRUE(std::filesystem::is_symlink(folder.path("link.json")));
    EXPECT_TRUE(std::filesystem::is_regular_file(folder.path("real.json")));
  }
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  const int reader = ::open(folder.path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  EXPECT_EQ(run_to("pipe"), 0);
  char byte = 0;
  EXPECT_EQ(::read(reader, &byte, 1), 1);
  EXPECT_EQ(byte, '[');
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(folder.path("pipe")));
}

TEST(Bench, RefusesOutputsThatCannotBeMadeBeforeTheWork) {
  const TemporaryFolder folder;
  expect_refused(
      {"bench", kTiny, "--json", folder.path("a.json"), "--plot", folder.path("absent/b.svg")},
      {"--plot", "absent"});
  expect_refused({"bench", kTiny, "--json", folder.path(".")}, {"--json", "folder"});
  EXPECT_TRUE(folder.files().empty());
}

TEST(Verify, KeysNeedPages) {
  expect_refused({"verify", "forward f32 s8 d8 paged=4,0,2 used_k klens=8"}, {"klens", "pages"});
}

// A logarithmic axis has no place for a length of 0.
TEST(Bench, PlotsLeaveOutLengthZero) {
  const TemporaryFolder folder;
  const std::string plot = folder.path("b.svg");
  const std::string empty = "forward f32 b1 h1 s0 d16";
  const ProcessResult result = run_command({"bench", empty, "forward f32 b1 h1 s64 d16", "--rounds",
                                            "1", "--round-seconds", "0", "--plot", plot});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find(empty), std::string::npos) << result.err;
  std::ostringstream svg;
  svg << std::ifstream(plot).rdbuf();
  EXPECT_NE(svg.str().find(">64<"), std::string::npos);
  EXPECT_EQ(svg.str().find("nan"), std::string::npos);
  EXPECT_EQ(svg.str().find("inf"), std::string::npos);
  expect_refused({"bench", empty, "--plot", folder.path("no.svg")}, {"--plot", "length 0"});
}

// Cases of no pair or a few say nothing of the naive implementation's rate.
TEST(Bench, TinyCasesDoNotSkipTheNextBaseline) {
  for (const char* tiny : {"forward f32 b1 h1 s0 d16", "forward f32 b1 h1 s1 d1"}) {
    const ProcessResult result =
        run_command({"bench", tiny, "forward f32 b1 h1 s256 d16", "--baseline", "naive", "--rounds",
                     "1", "--round-seconds", "0", "--baseline-seconds", "0.1"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out.find("skipped"), std::string::npos) << result.out;
  }
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

TEST(Explain, AWorkspaceLimitThatCannotBeMetIsBadInput) {
  for (const auto& [device, line] : {std::pair("cpu", "backward f32 b1 h1 s8192 d64"),
                                     std::pair("h200", "forward bf16 b1 h1 s128 d64")}) {
    const ProcessResult none =
        run_command({"explain", "--device", device, "--max-workspace", "1", line});
    EXPECT_EQ(none.exit_code, 2) << none.err;
    EXPECT_NE(none.err.find(std::string("case \"") + line + "\": max_workspace is 1 bytes"),
              std::string::npos)
        << none.err;
    const std::string before = "accepted: at least ";
    const size_t at = none.err.find(before);
    ASSERT_NE(at, std::string::npos) << none.err;
    const int64_t least = std::stoll(none.err.substr(at + before.size()));
    const auto exit_code = [&](int64_t bytes) {
      return run_command(
                 {"explain", "--device", device, "--max-workspace", std::to_string(bytes), line})
          .exit_code;
    };
    EXPECT_EQ(exit_code(least), 0);
    EXPECT_EQ(exit_code(least - 1), 2);
  }
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
