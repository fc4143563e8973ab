// rowmax tune without a GPU: tables and reports of recorded times.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "file_builder.h"
#include "process.h"

namespace rowmax::app::testing {
namespace {

constexpr const char* kCase = "forward bf16 b4 h16 s4096 d128";
constexpr const char* kWide = "sm90_forward_bf16_d128_q192k80_full";
constexpr const char* kEven = "sm90_forward_bf16_d128_q128k128_full";

std::string line_of(const std::string& kernel, const std::string& seconds,
                    const std::string& device = "made up") {
  return std::string(R"({"case": ")") + kCase + R"(", "kernel": ")" + kernel + R"(", "device": ")" +
         device + R"(", "isa": "sm90", "multiprocessors": 132, "clock_ghz": 1.98, )" +
         R"("memory_gbps": 4800.0, "version": "0.1.0", "date": "2026-12-01T00:00:00Z", )" +
         R"("seconds_p10": )" + seconds + R"(, "seconds_median": )" + seconds + "}\n";
}

std::string write(const TemporaryFolder& folder, const std::string& text) {
  const std::string path = folder.path("times.jsonl");
  std::ofstream(path) << text;
  return path;
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void expect_refused(const std::vector<std::string>& arguments, const std::string& part) {
  const ProcessResult result = run_command(arguments);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

TEST(Tune, TimesTurnIntoATableAndAReport) {
  const TemporaryFolder folder;
  // Without a table the wide tile is chosen; here it took half as long again as the other one.
  const std::string times =
      write(folder, line_of(kWide, "6e-4") + line_of(kEven, "4e-4") + line_of("absent", "1e-4"));
  const std::string table = folder.path("ranking.def");
  const ProcessResult result = run_command({"tune", "--from", times, "--out", table});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("1 times left out"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("with the table:    at most 0.0 %"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("without the table: at most 50.0 %"), std::string::npos) << result.out;
  const std::string text = text_of(table);
  EXPECT_NE(text.find("// made up, rowmax 0.1.0\n"), std::string::npos);
  for (const char* kernel : {kWide, kEven}) {
    EXPECT_NE(text.find(std::string("ROWMAX_RANKING(") + kernel + ", kFull, "), std::string::npos)
        << text;
  }
  EXPECT_EQ(text.find("absent"), std::string::npos);
}

TEST(Tune, BadTimesAreNamedByLine) {
  const TemporaryFolder folder;
  const std::string good = line_of(kWide, "6e-4");
  for (const auto& [text, part] :
       {std::pair(good + "{", "times.jsonl:2: "), std::pair(good + "{}\n", "times.jsonl:2: "),
        std::pair(line_of(kWide, "0.0"), "times.jsonl:1: seconds_median is 0"),
        std::pair(line_of(kWide, "\"x\""), "times.jsonl:1: "),
        std::pair(good + line_of(kEven, "6e-4", "another"), "times.jsonl:2: is of 'another"),
        std::pair(line_of("absent", "1e-4"), "no time of a kernel"),
        std::pair(std::string(), "no time of a kernel")}) {
    expect_refused({"tune", "--from", write(folder, text)}, part);
  }
  expect_refused({"tune", "--from", folder.path("none.jsonl")}, "none.jsonl");
}

TEST(Tune, RefusesWhatItCannotDo) {
  const TemporaryFolder folder;
  const std::string times = write(folder, line_of(kWide, "6e-4"));
  expect_refused({"tune", "--device", "cpu"}, "--device is 'cpu'; accepted: cuda, cuda:N");
  expect_refused({"tune", "--device", "h200"}, "--device is 'h200'; accepted: cuda, cuda:N");
  expect_refused({"tune", "--from", times, kCase}, "--from");
  expect_refused({"tune", "--from", times, "--out", times}, "--out");
  expect_refused({"tune", "--suite", "absent", "--device", "cuda"}, "tune");
  expect_refused({"tune", "--rounds", "0"}, "--rounds");
  // No machine that runs these tests has this many.
  expect_refused({"tune", "--device", "cuda:99999", kCase}, "unsupported");
}

// The committed table is what the committed times give in this tree; a change of the cost model or
// of the rows needs it made again, without a GPU.
TEST(Tune, CommittedTableIsOfTheCommittedTimes) {
  const std::filesystem::path source = ROWMAX_SOURCE;
  std::filesystem::path newest;
  for (const auto& file : std::filesystem::directory_iterator(source / "bench/results")) {
    if (file.path().filename().string().starts_with("h200_ranking_")) {
      newest = std::max(newest, file.path());
    }
  }
  const std::string committed = text_of(source / "src/plan/ranking_sm90.def");
  if (newest.empty()) {
    EXPECT_EQ(committed.find("\nROWMAX_RANKING("), std::string::npos) << "rows without times";
    return;
  }
  const TemporaryFolder folder;
  const std::string table = folder.path("ranking.def");
  ASSERT_EQ(run_command({"tune", "--from", newest.string(), "--out", table}).exit_code, 0);
  EXPECT_EQ(text_of(table), committed)
      << "rowmax tune --from " << newest << " --out src/plan/ranking_sm90.def";
}

}  // namespace
}  // namespace rowmax::app::testing
