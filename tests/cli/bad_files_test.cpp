// Bad input through the command: exit code 2, a message that names the fault, nothing on stdout,
// nothing written.
#include <gtest/gtest.h>

#include "file_builder.h"
#include "process.h"

namespace rowmax::app::testing {
namespace {

struct BadFile {
  const char* name;
  std::string image;
  const char* message;  // a part of it
};

std::string header_of(const std::string& q, const std::string& k, const std::string& v) {
  return "{" + q + "," + k + "," + v + "}";
}

std::string three(const std::string& q_shape, const std::string& q_offsets,
                  const std::string& q_type = "F32") {
  return header_of(entry_text("q", q_type, q_shape, q_offsets),
                   entry_text("k", "F32", "[1,1,1,1]", "[4,8]"),
                   entry_text("v", "F32", "[1,1,1,1]", "[8,12]"));
}

const std::string kTwelve(12, '\0');

std::vector<BadFile> bad_files() {
  const std::string good =
      f32_file({{"q", {1, 3, 2, 4}}, {"k", {1, 3, 2, 4}}, {"v", {1, 3, 2, 4}}});
  const std::string one = entry_text("q", "F32", "[1,1,1,1]", "[0,4]");
  return {
      {"empty", "", "at least 8"},
      {"truncated header", good.substr(0, 60), "beyond the end"},
      {"truncated data", good.substr(0, good.size() - 4), "outside"},
      {"header length 0", std::string(8, '\0') + good.substr(8), "length is 0"},
      {"header length beyond", std::string("\xff\xff\0\0\0\0\0\0", 8) + good.substr(8),
       "beyond the end"},
      {"header length huge", std::string("\0\0\0\0\0\0\0\x10", 8) + good.substr(8),
       "above the limit"},
      {"not json", safetensors_image("{nonsense", kTwelve), "not valid UTF-8 JSON"},
      {"not utf-8", safetensors_image("{\"\xfe\":3}", kTwelve), "not valid UTF-8 JSON"},
      {"offsets out of range", safetensors_image(three("[1,1,1,1]", "[12,16]"), kTwelve),
       "outside"},
      {"overlapping",
       safetensors_image(header_of(entry_text("q", "F32", "[1,1,1,1]", "[0,4]"),
                                   entry_text("k", "F32", "[1,1,1,2]", "[4,12]"),
                                   entry_text("v", "F32", "[1,1,1,1]", "[8,12]")),
                         kTwelve),
       "overlaps"},
      {"gap", safetensors_image(three("[0,1,1,1]", "[0,0]"), kTwelve), "gap"},
      {"trailing", safetensors_image(three("[1,1,1,1]", "[0,4]"), kTwelve + "1"), "belong to none"},
      {"offsets and shape", safetensors_image(three("[1,2,1,1]", "[0,4]"), kTwelve), "needs 8"},
      {"duplicate", safetensors_image("{" + one + "," + one + "}", "1234"), "duplicate"},
      {"overflow", safetensors_image(three("[4294967296,4294967296,1,1]", "[0,4]"), kTwelve),
       "overflow"},
      {"negative", safetensors_image(three("[-1,1,1,1]", "[0,4]"), kTwelve), "negative"},
      {"fraction", safetensors_image(three("[1.5,1,1,1]", "[0,4]"), kTwelve), "not an integer"},
      {"metadata", safetensors_image("{\"__metadata__\":{\"a\":1}}", ""), "strings to strings"},
      {"unknown type", safetensors_image(three("[1,1,1,4]", "[0,4]", "U8"), kTwelve),
       "not supported"},
      {"bool type", safetensors_image(three("[1,1,1,4]", "[0,4]", "BOOL"), kTwelve), "q is bool"},
      {"no tensor", safetensors_image("{}", ""), "no tensor 'q'"},
      {"rank", f32_file({{"q", {3, 2, 4}}, {"k", {3, 2, 4}}, {"v", {3, 2, 4}}}), "cu_seqlens"},
      {"batch", f32_file({{"q", {2, 3, 2, 4}}, {"k", {1, 3, 2, 4}}, {"v", {1, 3, 2, 4}}}), "batch"},
      {"head_dim", f32_file({{"q", {1, 3, 2, 4}}, {"k", {1, 3, 2, 5}}, {"v", {1, 3, 2, 4}}}),
       "head_dim"},
      {"length", f32_file({{"q", {1, 3, 2, 4}}, {"k", {1, 3, 2, 4}}, {"v", {1, 4, 2, 4}}}),
       "length"},
      {"kv heads", f32_file({{"q", {1, 3, 2, 4}}, {"k", {1, 3, 2, 4}}, {"v", {1, 3, 1, 4}}}),
       "heads"},
      {"head ratio", f32_file({{"q", {1, 3, 3, 4}}, {"k", {1, 3, 2, 4}}, {"v", {1, 3, 2, 4}}}),
       "multiple"},
      {"no heads", f32_file({{"q", {1, 3, 0, 4}}, {"k", {1, 3, 0, 4}}, {"v", {1, 3, 0, 4}}}),
       "heads"},
      {"cu type",
       f32_file({{"q", {3, 2, 4}}, {"k", {3, 2, 4}}, {"v", {3, 2, 4}}, {"cu_seqlens", {2}}}),
       "cu_seqlens"},
  };
}

TEST(BadFiles, AreRefusedAndNothingIsWritten) {
  for (const BadFile& bad : bad_files()) {
    const TemporaryFolder folder;
    const std::string in = folder.write("in.safetensors", bad.image);
    const ProcessResult result =
        run_command({"attend", in, "--out", folder.path("out.safetensors")});
    EXPECT_EQ(result.exit_code, 2) << bad.name << "\n" << result.err;
    EXPECT_NE(result.err.find(bad.message), std::string::npos) << bad.name << "\n" << result.err;
    EXPECT_EQ(result.out, "") << bad.name;
    EXPECT_EQ(folder.files(), std::vector<std::string>{"in.safetensors"}) << bad.name;
  }
}

TEST(BadFiles, CuSeqlensMustFit) {
  const std::string rows = std::string(24, '\0');
  for (const std::string& lengths :
       {std::string("\0\0\0\0\3\0\0\0", 8), std::string("\2\0\0\0\1\0\0\0", 8),
        std::string("\xff\xff\xff\xff\1\0\0\0", 8)}) {
    const TemporaryFolder folder;
    const std::string header = "{" + entry_text("q", "F32", "[2,1,1]", "[0,8]") + "," +
                               entry_text("k", "F32", "[2,1,1]", "[8,16]") + "," +
                               entry_text("v", "F32", "[2,1,1]", "[16,24]") + "," +
                               entry_text("cu_seqlens", "I32", "[2]", "[24,32]") + "}";
    const std::string in = folder.write("in", safetensors_image(header, rows + lengths));
    const ProcessResult result = run_command({"attend", in});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find("cu_seqlens_q["), std::string::npos) << result.err;
  }
}

TEST(BadFiles, NpyFaultsAreNamed) {
  const TemporaryFolder folder;
  const std::string good =
      folder.write("good.npy", npy_image(1, npy_header("<f4", false, "(1, 1, 1, 1)"), "1234"));
  const std::vector<BadFile> files = {
      {"object", npy_image(1, npy_header("|O", false, "(1, 1, 1, 1)"), "12345678"), "object dtype"},
      {"big", npy_image(1, npy_header(">f4", false, "(1, 1, 1, 1)"), "1234"), "big-endian"},
      {"uint16", npy_image(1, npy_header("<u2", false, "(1, 1, 1, 2)"), "1234"), "bf16"},
      {"short", npy_image(1, npy_header("<f4", false, "(1, 1, 1, 2)"), "1234"), "truncated"},
      {"shape", npy_image(1, npy_header("<f4", false, "(1, 1, 1)"), "1234"), "k has shape"},
  };
  for (const BadFile& bad : files) {
    const std::string path = folder.write("bad.npy", bad.image);
    const ProcessResult result =
        run_command({"attend", good, path, good, "--out", folder.path("out")});
    EXPECT_EQ(result.exit_code, 2) << bad.name;
    EXPECT_NE(result.err.find(bad.message), std::string::npos) << bad.name << "\n" << result.err;
  }
  EXPECT_EQ(run_command({"attend", good, good}).exit_code, 2);
  EXPECT_EQ(folder.files(), (std::vector<std::string>{"bad.npy", "good.npy"}));
}

TEST(BadFiles, PathsThatAreNoFiles) {
  const TemporaryFolder folder;
  for (const std::string& path : {folder.path("absent"), folder.path("")}) {
    const ProcessResult result = run_command({"attend", path});
    EXPECT_EQ(result.exit_code, 2) << path;
    EXPECT_NE(result.err.find(path), std::string::npos) << result.err;
  }
}

TEST(BadFiles, UnwritableOutputIsAnError) {
  const TemporaryFolder folder;
  const std::string in =
      folder.write("in", f32_file({{"q", {1, 3, 2, 4}}, {"k", {1, 3, 2, 4}}, {"v", {1, 3, 2, 4}}}));
  const ProcessResult result = run_command({"attend", in, "--out", folder.path("absent/out")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace rowmax::app::testing
