// rowmax attend end to end: inputs of every form, outputs, exit codes.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "file_builder.h"
#include "process.h"
#include "safetensors.h"
#include "scalar.h"

namespace rowmax::app::testing {
namespace {

using Json = nlohmann::json;

const std::string kDense = std::string(ROWMAX_DATA) + "/minilm_layer3_dense.safetensors";
const std::string kVarlen = std::string(ROWMAX_DATA) + "/minilm_layer3_varlen.safetensors";

std::string qkv_file(const TemporaryFolder& folder) {
  return folder.write("qkv.safetensors",
                      f32_file({{"q", {2, 9, 4, 8}}, {"k", {2, 13, 2, 8}}, {"v", {2, 13, 2, 5}}}));
}

std::string qkvdo_file(const TemporaryFolder& folder) {
  return folder.write(
      "grad.safetensors",
      f32_file(
          {{"do", {2, 9, 4, 5}}, {"q", {2, 9, 4, 8}}, {"k", {2, 13, 2, 8}}, {"v", {2, 13, 2, 5}}}));
}

TEST(Attend, RealTensorsPassTheCheckInEveryType) {
  for (const std::string& file : {kDense, kVarlen}) {
    for (const char* dtype : {"f32", "bf16", "f16"}) {
      const ProcessResult result = run_command({"attend", file, "--check", "--dtype", dtype});
      EXPECT_EQ(result.exit_code, 0) << file << " " << dtype << "\n" << result.out << result.err;
      EXPECT_NE(result.out.find("PASS"), std::string::npos);
      EXPECT_EQ(result.err, "");
    }
  }
}

TEST(Attend, BackwardOfRealTensorsUsesASeededGradient) {
  for (const std::string& file : {kDense, kVarlen}) {
    for (const char* dtype : {"f32", "bf16", "f16"}) {
      const ProcessResult result =
          run_command({"attend", file, "--dtype", dtype, "--backward", "--causal", "--check"});
      EXPECT_EQ(result.exit_code, 0) << file << " " << dtype << "\n" << result.out << result.err;
      EXPECT_NE(result.out.find("seeded Gaussian"), std::string::npos);
      EXPECT_NE(result.out.find("dq"), std::string::npos);
    }
  }
}

TEST(Attend, WritesOutAndLse) {
  const TemporaryFolder folder;
  const std::string out = folder.path("out.safetensors");
  const ProcessResult result = run_command({"attend", qkv_file(folder), "--out", out, "--check"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Result<TensorFile> file = read_safetensors(out, {"out", "lse"});
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors.at("out").shape, (std::vector<int64_t>{2, 9, 4, 5}));
  EXPECT_EQ(file->tensors.at("lse").shape, (std::vector<int64_t>{2, 4, 9}));
}

TEST(Attend, WritesGradients) {
  const TemporaryFolder folder;
  const std::string out = folder.path("out.safetensors");
  const ProcessResult result =
      run_command({"attend", qkvdo_file(folder), "--backward", "--check", "--out", out});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const Result<TensorFile> file = read_safetensors(out, {"dq", "dk", "dv"});
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors.at("dq").shape, (std::vector<int64_t>{2, 9, 4, 8}));
  EXPECT_EQ(file->tensors.at("dv").shape, (std::vector<int64_t>{2, 13, 2, 5}));
}

TEST(Attend, BackwardWithoutAGradientIsRefused) {
  const TemporaryFolder folder;
  const std::string out = folder.path("out.safetensors");
  const std::string in = qkv_file(folder);
  ProcessResult result = run_command({"attend", in, "--backward", "--out", out});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("'do'"), std::string::npos) << result.err;
  result = run_command({"attend", in, "--backward", "--check", "--out", out});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"qkv.safetensors"});
}

TEST(Attend, PrintsOneJsonObject) {
  const ProcessResult result = run_command({"attend", kDense, "--json", "--check", "--backward"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["passes"].size(), 2u);
  EXPECT_TRUE(json["pass"].get<bool>());
  EXPECT_GT(json["passes"][0]["flops"].get<double>(), 0.0);
  EXPECT_EQ(json["passes"][1]["checks"].size(), 3u);
}

// The output files of a command line are the same bytes for any number of threads.
void expect_same_files(const std::vector<std::string>& words) {
  const TemporaryFolder folder;
  std::string first;
  for (const char* threads : {"1", "2", "3", "7", "16"}) {
    const std::string out = folder.path(std::string("out") + threads);
    std::vector<std::string> arguments = {"attend"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    arguments.insert(arguments.end(), {"--threads", threads, "--out", out});
    const ProcessResult result = run_command(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    const Result<Buffer> bytes = read_file(out);
    ASSERT_TRUE(bytes.ok());
    const std::string content(bytes->data(), bytes->bytes());
    first = first.empty() ? content : first;
    EXPECT_TRUE(content == first) << words[0] << ": " << threads << " threads";
  }
}

TEST(Attend, ResultsDoNotDependOnThreads) {
  expect_same_files({kVarlen, "--causal"});
  expect_same_files({kDense, "--dtype", "f32"});
  expect_same_files({kDense, "--dtype", "bf16", "--causal"});
}

// A copy of a file with a 'do' beside its q: the same values.
std::string with_gradient(const TemporaryFolder& folder, const std::string& path) {
  const Buffer bytes = std::move(read_file(path).value());
  const std::string image(bytes.data(), bytes.bytes());
  uint64_t header_size = 0;
  image.copy(reinterpret_cast<char*>(&header_size), sizeof(header_size));
  Json header = Json::parse(image.substr(sizeof(header_size), header_size));
  const std::string data = image.substr(sizeof(header_size) + header_size);
  const size_t begin = header["q"]["data_offsets"][0].get<size_t>();
  const size_t size = header["q"]["data_offsets"][1].get<size_t>() - begin;
  header["do"] = header["q"];
  header["do"]["data_offsets"] = {data.size(), data.size() + size};
  return folder.write("with_do.safetensors",
                      safetensors_image(header.dump(), data + data.substr(begin, size)));
}

TEST(Attend, GradientsDoNotDependOnThreads) {
  const TemporaryFolder folder;
  const std::string file = with_gradient(folder, kVarlen);
  expect_same_files({file, "--dtype", "f16", "--backward", "--causal"});
}

TEST(Attend, ReadsNpyTriplesInEitherOrder) {
  const TemporaryFolder folder;
  // (1, 2, 1, 2): by rows 0..3; by columns the same values in storage order 0, 2, 1, 3.
  const std::string rows = folder.write(
      "rows.npy", npy_image(1, npy_header("<f4", false, "(1, 2, 1, 2)"), f32_bytes({0, 1, 2, 3})));
  const std::string columns =
      folder.write("columns.npy",
                   npy_image(1, npy_header("<f4", true, "(1, 2, 1, 2)"), f32_bytes({0, 2, 1, 3})));
  const std::string a = folder.path("a");
  const std::string b = folder.path("b");
  const ProcessResult first = run_command({"attend", rows, rows, rows, "--check", "--out", a});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const ProcessResult second =
      run_command({"attend", columns, rows, columns, "--check", "--out", b});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const Result<Buffer> of_a = read_file(a);
  const Result<Buffer> of_b = read_file(b);
  ASSERT_TRUE(of_a.ok() && of_b.ok());
  EXPECT_EQ(std::string(of_a->data(), of_a->bytes()), std::string(of_b->data(), of_b->bytes()));
}

TEST(Attend, BandsAndScoreOptions) {
  const TemporaryFolder folder;
  const std::string in = qkv_file(folder);
  const std::vector<std::vector<std::string>> accepted = {
      {"--causal"},       {"--causal", "--top-left"}, {"--window", "3,2"},
      {"--window=-1,0"},  {"--window", "-1,-1"},      {"--window", "inf,2", "--causal"},
      {"--scale", "0.5"}, {"--softcap", "4"},         {"--dtype", "f64"},
      {"--repeat", "2"}};
  for (const std::vector<std::string>& options : accepted) {
    std::vector<std::string> arguments = {"attend", in, "--check"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const ProcessResult result = run_command(arguments);
    EXPECT_EQ(result.exit_code, 0) << options[0] << "\n" << result.out << result.err;
  }
  const std::vector<std::vector<std::string>> refused = {
      {"--window", "3"},   {"--window=-2,0"},     {"--window", "1,2,3"},  {"--window", "a,b"},
      {"--softcap", "-1"}, {"--softcap", "1e31"}, {"--softcap", "1e-31"}, {"--top-left"},
      {"--scale", "nan"},  {"--dtype", "i32"},    {"--dtype", "x"},       {"--device", "gpu7"},
      {"--threads", "-1"}, {"--repeat", "0"},     {"--kernel", "absent"}, {"--no-such-option"}};
  for (const std::vector<std::string>& options : refused) {
    std::vector<std::string> arguments = {"attend", in, "--out", folder.path("no")};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const ProcessResult result = run_command(arguments);
    EXPECT_EQ(result.exit_code, 2) << options[0] << "\n" << result.out << result.err;
    EXPECT_NE(result.err, "") << options[0];
    EXPECT_EQ(result.out, "") << options[0];
  }
  EXPECT_EQ(folder.files().size(), 1u);
}

TEST(Attend, RefusalsNameWhatIsAccepted) {
  const TemporaryFolder folder;
  const std::string in = qkv_file(folder);
  const std::string bounds = "0 or more, or -1 or inf for unbounded";
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"--window", "inf,x"}, bounds},
      {{"--window", "inf"}, bounds},
      {{"--dtype", "f8"}, "--dtype is 'f8'; accepted: f32, bf16, f16, f64\n"},
      {{"--dtype", "i32"}, "--dtype is 'i32'; accepted: f32, bf16, f16, f64\n"},
      {{"--threads", "1025"}, "1024"}};
  for (const auto& [options, message] : refused) {
    const ProcessResult result = run_command({"attend", in, options[0], options[1]});
    EXPECT_EQ(result.exit_code, 2) << options[1];
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
  }
}

TEST(Attend, AnInputIsNotAnOutput) {
  const TemporaryFolder folder;
  const std::string in = qkv_file(folder);
  std::filesystem::create_hard_link(in, folder.path("link"));
  const std::vector<std::pair<std::vector<std::string>, std::string>> commands = {
      {{in}, in},
      {{in}, folder.path("./qkv.safetensors")},
      {{in}, folder.path("link")},
      {{"a.npy", "b.npy", folder.path("v.npy")}, folder.path("absent/../v.npy")}};
  for (const auto& [files, out] : commands) {
    std::vector<std::string> arguments = {"attend"};
    arguments.insert(arguments.end(), files.begin(), files.end());
    arguments.insert(arguments.end(), {"--out", out});
    const ProcessResult result = run_command(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find("--out is '" + out + "', the file of the input"), std::string::npos)
        << result.err;
  }
}

TEST(Attend, RaggedTailsOfTheOutputAreZero) {
  const TemporaryFolder folder;
  // Three stored rows, two of them in sequences.
  const std::string data =
      f32_bytes({1, 2, 3, 1, 2, 3, 5, 6, 7}) + std::string("\0\0\0\0\1\0\0\0\2\0\0\0", 12);
  const std::string header = "{" + entry_text("q", "F32", "[3,1,1]", "[0,12]") + "," +
                             entry_text("k", "F32", "[3,1,1]", "[12,24]") + "," +
                             entry_text("v", "F32", "[3,1,1]", "[24,36]") + "," +
                             entry_text("cu_seqlens", "I32", "[3]", "[36,48]") + "}";
  const std::string in = folder.write("in", safetensors_image(header, data));
  const std::string out = folder.path("out");
  const ProcessResult result = run_command({"attend", in, "--check", "--out", out});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const Result<TensorFile> file = read_safetensors(out, {"out", "lse"});
  ASSERT_TRUE(file.ok());
  const HostTensor& tensor = file->tensors.at("out");
  // One key each: its value, up to rounding.
  EXPECT_FLOAT_EQ(static_cast<float>(load_scalar(tensor.buffer.data(), tensor.dtype, 0)), 5.0f);
  EXPECT_FLOAT_EQ(static_cast<float>(load_scalar(tensor.buffer.data(), tensor.dtype, 1)), 6.0f);
  EXPECT_EQ(load_scalar(tensor.buffer.data(), tensor.dtype, 2), 0.0);
}

}  // namespace
}  // namespace rowmax::app::testing
