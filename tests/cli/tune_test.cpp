// rowmax tune without a GPU: tables and reports of recorded times.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "file_builder.h"
#include "process.h"

namespace rowmax::app::testing {
namespace {

constexpr const char* kCase = "forward bf16 b4 h16 s4096 d128";
constexpr const char* kOther = "forward bf16 b2 h16 s8192 d128";
constexpr const char* kWide = "sm90_forward_bf16_d128_q192k80_full";
constexpr const char* kEven = "sm90_forward_bf16_d128_q128k128_full";

std::string line_of(const std::string& kernel, const std::string& seconds,
                    const std::string& device = "made up", const std::string& spec = kCase) {
  return R"({"case": ")" + spec + R"(", "kernel": ")" + kernel + R"(", "device": ")" + device +
         R"(", "isa": "sm90", "multiprocessors": 132, "clock_ghz": 1.98, )" +
         R"("memory_gbps": 4800.0, "version": "0.1.0", "date": "2026-12-01T00:00:00Z", )" +
         R"("seconds_p10": )" + seconds + R"(, "seconds_median": )" + seconds + "}\n";
}

// A line with another value of a key.
std::string changed(std::string line, const std::string& from, const std::string& to) {
  return line.replace(line.find(from), from.size(), to);
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

TEST(Tune, LinesOfACaseNeedNotBeNeighbours) {
  const TemporaryFolder folder;
  const auto other = [](const char* kernel, const char* seconds) {
    return line_of(kernel, seconds, "made up", kOther);
  };
  const auto output_of = [&folder](const std::string& lines) {
    const ProcessResult result = run_command({"tune", "--from", write(folder, lines)});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string wide = line_of(kWide, "6e-4");
  const std::string even = line_of(kEven, "4e-4");
  EXPECT_EQ(output_of(wide + other(kEven, "7e-4") + even + other(kWide, "9e-4")),
            output_of(wide + even + other(kEven, "7e-4") + other(kWide, "9e-4")));
}

TEST(Tune, BadTimesAreNamedByLine) {
  const TemporaryFolder folder;
  const std::string good = line_of(kWide, "6e-4");
  for (const auto& [text, part] :
       {std::pair(good + "{", "times.jsonl:2: "), std::pair(good + "{}\n", "times.jsonl:2: "),
        std::pair(line_of(kWide, "0.0"), "times.jsonl:1: seconds_median is 0"),
        std::pair(line_of(kWide, "\"x\""), "times.jsonl:1: "),
        std::pair(good + line_of(kEven, "6e-4", "another"),
                  "times.jsonl:2: device is \"another\", that of the first line \"made up\""),
        std::pair(good + changed(line_of(kEven, "6e-4"), "1.98", "1.5"),
                  "times.jsonl:2: clock_ghz is 1.5, that of the first line 1.98"),
        std::pair(good + changed(line_of(kEven, "6e-4"), "4800.0", "4000.0"),
                  "times.jsonl:2: memory_gbps is 4000.0, that"),
        std::pair(good + changed(line_of(kEven, "6e-4"), "132", "114"),
                  "times.jsonl:2: multiprocessors is 114, that"),
        std::pair(good + changed(line_of(kEven, "6e-4"), "0.1.0", "0.2.0"),
                  "times.jsonl:2: version is \"0.2.0\", that"),
        std::pair(
            good + line_of(kEven, "6e-4") + line_of(kWide, "5e-4"),
            "times.jsonl:3: kernel sm90_forward_bf16_d128_q192k80_full of case \"forward bf16 "
            "b4 h16 s4096 d128\" has its time in line 1"),
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
  for (const auto& [name, arguments] :
       {std::pair<std::string, std::vector<std::string>>("cases", {kCase}),
        {"--suite", {"--suite", "tune"}},
        {"--device", {"--device", "cuda"}},
        {"--rounds", {"--rounds", "5"}},
        {"--round-seconds", {"--round-seconds", "0.005"}},
        {"--json", {"--json", folder.path("other.jsonl")}}}) {
    std::vector<std::string> all = {"tune", "--from", times};
    all.insert(all.end(), arguments.begin(), arguments.end());
    expect_refused(all, "--from is given with " + name + "; accepted: --from alone");
  }
  expect_refused({"tune", "--from", times, "--out", times}, "--out");
  expect_refused({"tune", "--suite", "absent", "--device", "cuda"}, "suite 'absent' is unknown");
  expect_refused({"tune", kCase, std::string(kCase) + " seed1"}, "is given twice");
  expect_refused({"tune", "--rounds", "0"}, "--rounds");
  // No machine that runs these tests has this many.
  expect_refused({"tune", "--device", "cuda:99999", kCase}, "unsupported");
}

TEST(Tune, AForcedKernelIsRefused) {
  const TemporaryFolder folder;
  const std::string times = write(folder, line_of(kWide, "6e-4"));
  ::setenv("ROWMAX_FORCE_KERNEL", kEven, 1);
  expect_refused({"tune", "--from", times}, std::string("ROWMAX_FORCE_KERNEL is '") + kEven);
  expect_refused({"tune", kCase}, "ROWMAX_FORCE_KERNEL");
  ::unsetenv("ROWMAX_FORCE_KERNEL");
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
