// The readers in process: what they accept, what they refuse, and that messages name the fault.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "file_builder.h"
#include "npy.h"
#include "safetensors.h"
#include "scalar.h"

namespace rowmax::app {
namespace {

using testing::entry_text;
using testing::f32_bytes;
using testing::npy_header;
using testing::npy_image;
using testing::safetensors_image;

std::string message_of(const std::string& image) {
  const Result<SafetensorsHeader> header = parse_safetensors_header(image);
  return header.ok() ? "accepted" : header.status().message();
}

void expect_refused(const std::string& image, const std::string& part) {
  const std::string message = message_of(image);
  EXPECT_NE(message.find(part), std::string::npos) << "message: " << message;
}

std::string one_entry(const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
  return "{" + entry_text("q", dtype, shape, offsets) + "}";
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string header = "{\"__metadata__\":{\"a\":\"b\"}," +
                             entry_text("q", "F32", "[2,1]", "[0,8]") + "," +
                             entry_text("cu", "I64", "[0]", "[8,8]") + "}   ";
  const std::string image = safetensors_image(header, f32_bytes({1.5f, -2.0f}));
  const Result<TensorFile> file = load_safetensors(image, {"q", "cu", "absent"});
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata.at("a"), "b");
  ASSERT_EQ(file->tensors.size(), 2u);
  const HostTensor& q = file->tensors.at("q");
  EXPECT_EQ(q.shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(load_scalar(q.buffer.data(), q.dtype, 0), 1.5);
  EXPECT_EQ(load_scalar(q.buffer.data(), q.dtype, 1), -2.0);
}

TEST(Safetensors, AcceptsScalarsAndEmptyFiles) {
  EXPECT_EQ(message_of(safetensors_image("{}", "")), "accepted");
  EXPECT_EQ(message_of(safetensors_image(one_entry("F32", "[]", "[0,4]"), "1234")), "accepted");
  EXPECT_EQ(message_of(safetensors_image(one_entry("F32", "[5,0]", "[0,0]"), "")), "accepted");
}

TEST(Safetensors, RefusesBadLengths) {
  expect_refused("", "at least 8");
  expect_refused("1234567", "at least 8");
  expect_refused(std::string(8, '\0'), "length is 0");
  expect_refused(std::string("\xff\0\0\0\0\0\0\0{}", 10), "beyond the end");
  expect_refused(std::string("\0\0\0\x7f\0\0\0\0{}", 10), "above the limit");
  expect_refused(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), "above the limit");
}

TEST(Safetensors, RefusesBadJson) {
  expect_refused(safetensors_image("[]", ""), "does not start with '{'");
  expect_refused(safetensors_image(" {}", ""), "does not start with '{'");
  expect_refused(safetensors_image("{", ""), "not valid UTF-8 JSON");
  expect_refused(safetensors_image("{}x", ""), "not valid UTF-8 JSON");
  expect_refused(safetensors_image("{\"\xff\":1}", ""), "not valid UTF-8 JSON");
  expect_refused(safetensors_image(std::string("{}\0{", 4), ""), "zero byte");
  expect_refused(safetensors_image("{\"q\":[]}", ""), "must be an object");
  expect_refused(safetensors_image("{\"q\":3}", ""), "must be an object");
  expect_refused(safetensors_image(std::string(100000, '{'), ""), "not valid UTF-8 JSON");
  expect_refused(safetensors_image("{\"q\":{\"dtype\":{}}}", ""), "wrong kind");
  expect_refused(safetensors_image("{\"q\":{\"shape\":[[1]]}}", ""), "wrong kind");
  expect_refused(safetensors_image("{\"q\":{\"shape\":\"4\"}}", ""), "wrong kind");
  expect_refused(safetensors_image("{\"q\":{\"dtype\":\"F32\",\"shape\":[1]}}", ""), "is missing");
  expect_refused(safetensors_image("{\"q\":{\"more\":1}}", ""), "unknown key");
}

TEST(Safetensors, RefusesDuplicateKeys) {
  const std::string entry = entry_text("q", "F32", "[1]", "[0,4]");
  expect_refused(safetensors_image("{" + entry + "," + entry + "}", "1234"), "duplicate key");
  expect_refused(safetensors_image(R"({"q":{"dtype":"F32","dtype":"F32"}})", ""), "duplicate key");
  // The same name, once escaped.
  expect_refused(
      safetensors_image("{" + entry + "," + entry_text("\\u0071", "F32", "[1]", "[0,4]") + "}",
                        "1234"),
      "duplicate key");
  expect_refused(safetensors_image(R"({"__metadata__":{},"__metadata__":{}})", ""), "duplicate");
  expect_refused(safetensors_image(R"({"__metadata__":{"a":"","a":""}})", ""), "duplicate");
}

TEST(Safetensors, RefusesBadMetadata) {
  for (const char* value : {"{\"a\":1}", "{\"a\":null}", "{\"a\":{}}", "{\"a\":[]}", "3", "[]"}) {
    expect_refused(safetensors_image(std::string("{\"__metadata__\":") + value + "}", ""),
                   "map strings to strings");
  }
}

TEST(Safetensors, RefusesBadSizes) {
  expect_refused(safetensors_image(one_entry("F32", "[-1]", "[0,4]"), "1234"), "negative");
  expect_refused(safetensors_image(one_entry("F32", "[1.0]", "[0,4]"), "1234"), "not an integer");
  expect_refused(safetensors_image(one_entry("F32", "[1e2]", "[0,4]"), "1234"), "not an integer");
  expect_refused(safetensors_image(one_entry("F32", "[18446744073709551615]", "[0,4]"), "1234"),
                 "too large");
  expect_refused(safetensors_image(one_entry("F32", "[99999999999999999999999]", "[0,4]"), "1234"),
                 "not an integer");
  expect_refused(safetensors_image(one_entry("F32", "[4294967296,4294967296]", "[0,4]"), "1234"),
                 "overflow");
  // The product wraps to the right number of bytes: 2^62 * 4 + ... = 0 modulo 2^64.
  expect_refused(safetensors_image(one_entry("F32", "[4611686018427387904]", "[0,0]"), ""),
                 "overflow");
  expect_refused(safetensors_image(one_entry("F32", "[0,4294967296,4294967296]", "[0,0]"), ""),
                 "overflow");
  expect_refused(safetensors_image(one_entry("XY", "[4294967296,4294967296]", "[0,4]"), "1234"),
                 "overflow");
}

TEST(Safetensors, RefusesBadOffsets) {
  expect_refused(safetensors_image(one_entry("F32", "[1]", "[0,8]"), "1234"), "outside");
  expect_refused(safetensors_image(one_entry("F32", "[1]", "[4,0]"), "1234"), "outside");
  expect_refused(safetensors_image(one_entry("F32", "[1]", "[-4,0]"), "1234"), "negative");
  expect_refused(safetensors_image(one_entry("F32", "[1]", "[0]"), "1234"), "must have 2");
  expect_refused(safetensors_image(one_entry("F32", "[1]", "[0,4,8]"), "12345678"), "must have 2");
  expect_refused(safetensors_image(one_entry("F32", "[2]", "[0,4]"), "1234"), "needs 8");
  expect_refused(safetensors_image(one_entry("F32", "[1]", "[4,8]"), "12345678"), "gap");
  expect_refused(safetensors_image(one_entry("F32", "[1]", "[0,4]"), "12345678"), "belong to none");
  expect_refused(safetensors_image(one_entry("F32", "[1]", "[0,4]"), "123"), "outside");
  const std::string overlap = "{" + entry_text("a", "F32", "[2]", "[0,8]") + "," +
                              entry_text("b", "F32", "[2]", "[4,12]") + "}";
  expect_refused(safetensors_image(overlap, std::string(12, '1')), "overlaps");
}

TEST(Safetensors, UnknownTypesMatterOnlyWhenUsed) {
  const std::string header = "{" + entry_text("q", "F32", "[1]", "[0,4]") + "," +
                             entry_text("w", "F4_E2M1", "[3]", "[4,6]") + "," +
                             entry_text("x", "U8", "[2]", "[6,8]") + "}";
  const std::string image = safetensors_image(header, "12345678");
  EXPECT_TRUE(load_safetensors(image, {"q"}).ok());
  for (const char* name : {"w", "x"}) {
    const Result<TensorFile> file = load_safetensors(image, {name});
    ASSERT_FALSE(file.ok());
    EXPECT_NE(file.status().message().find("not supported"), std::string::npos);
  }
}

TEST(Safetensors, WritesWhatItReads) {
  const testing::TemporaryFolder folder;
  TensorFile out;
  out.metadata["note"] = "x";
  for (const auto& [name, dtype, count] :
       {std::tuple("half", DType::kBF16, 3), std::tuple("lse", DType::kF32, 5),
        std::tuple("none", DType::kF16, 0), std::tuple("wide", DType::kF64, 1)}) {
    HostTensor tensor = make_tensor(dtype, {count, 1});
    for (int64_t i = 0; i < count; ++i) {
      store_scalar(tensor.buffer.data(), dtype, i, 0.5 * static_cast<double>(i + 1));
    }
    out.tensors.emplace(name, std::move(tensor));
  }
  const std::string path = folder.path("f.safetensors");
  ASSERT_TRUE(write_safetensors(path, out).ok());
  EXPECT_EQ(folder.files().size(), 1u);
  const Result<Buffer> image = read_file(path);
  ASSERT_TRUE(image.ok());
  const Result<SafetensorsHeader> header =
      parse_safetensors_header({image->data(), image->bytes()});
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->data_begin % 8, 0);
  for (const auto& [name, entry] : header->tensors) {
    EXPECT_EQ(entry.begin % static_cast<int64_t>(size_of(out.tensors.at(name).dtype)), 0) << name;
  }
  const Result<TensorFile> in = read_safetensors(path, {"half", "lse", "none", "wide"});
  ASSERT_TRUE(in.ok());
  EXPECT_EQ(in->metadata, out.metadata);
  for (const auto& [name, tensor] : out.tensors) {
    const HostTensor& read = in->tensors.at(name);
    EXPECT_EQ(read.dtype, tensor.dtype);
    EXPECT_EQ(read.shape, tensor.shape);
    EXPECT_EQ(std::string(read.buffer.data(), read.buffer.bytes()),
              std::string(tensor.buffer.data(), tensor.buffer.bytes()));
  }
}

TEST(Safetensors, FailedWriteLeavesNothing) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("absent/f.safetensors");
  EXPECT_EQ(write_safetensors(path, TensorFile()).code(), StatusCode::kIoError);
  EXPECT_TRUE(folder.files().empty());
}

std::string npy_message(const std::string& image) {
  const Result<HostTensor> tensor = parse_npy(image);
  return tensor.ok() ? "accepted" : tensor.status().message();
}

void expect_npy_refused(const std::string& image, const std::string& part) {
  const std::string message = npy_message(image);
  EXPECT_NE(message.find(part), std::string::npos) << "message: " << message;
}

TEST(Npy, ReadsEveryVersion) {
  for (const int version : {1, 2, 3}) {
    const Result<HostTensor> tensor = parse_npy(
        npy_image(version, npy_header("<f4", false, "(2, 3)"), f32_bytes({1, 2, 3, 4, 5, 6})));
    ASSERT_TRUE(tensor.ok()) << tensor.status().message();
    EXPECT_EQ(tensor->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(load_scalar(tensor->buffer.data(), tensor->dtype, 4), 5.0);
  }
}

TEST(Npy, ConvertsFortranOrder) {
  // [[1, 2, 3], [4, 5, 6]] by columns.
  const Result<HostTensor> tensor =
      parse_npy(npy_image(1, npy_header("<f4", true, "(2, 3)"), f32_bytes({1, 4, 2, 5, 3, 6})));
  ASSERT_TRUE(tensor.ok()) << tensor.status().message();
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(load_scalar(tensor->buffer.data(), tensor->dtype, i), static_cast<double>(i + 1));
  }
}

TEST(Npy, AcceptsScalarsEmptyArraysAndVectors) {
  EXPECT_EQ(npy_message(npy_image(1, npy_header("<f4", false, "()"), "1234")), "accepted");
  EXPECT_EQ(npy_message(npy_image(1, npy_header("<f4", true, "(0, 7)"), "")), "accepted");
  EXPECT_EQ(npy_message(npy_image(1, npy_header("<i8", false, "(1,)"), "12345678")), "accepted");
  EXPECT_EQ(npy_message(npy_image(1, npy_header("|b1", false, "(2,)"), "12")), "accepted");
}

TEST(Npy, RefusesTypesByName) {
  expect_npy_refused(npy_image(1, npy_header(">f4", false, "(1,)"), "1234"), "big-endian");
  expect_npy_refused(npy_image(1, npy_header("|O", false, "(1,)"), "12345678"), "object dtype");
  expect_npy_refused(npy_image(1, npy_header("O8", false, "(1,)"), "12345678"), "object dtype");
  expect_npy_refused(npy_image(1, npy_header("<u2", false, "(1,)"), "12"), "bf16");
  expect_npy_refused(npy_image(1, npy_header("|V2", false, "(1,)"), "12"), "bf16");
  expect_npy_refused(npy_image(1, npy_header("<c8", false, "(1,)"), "12345678"), "accepted:");
  expect_npy_refused(
      npy_image(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "1234"),
      "structured");
}

TEST(Npy, RefusesBadFiles) {
  expect_npy_refused("", "magic");
  expect_npy_refused("PK\x03\x04 not an array", "magic");
  expect_npy_refused(npy_image(4, npy_header("<f4", false, "(1,)"), "1234"), "version 4.0");
  expect_npy_refused(npy_image(1, npy_header("<f4", false, "(2,)"), "1234"), "truncated");
  expect_npy_refused(npy_image(1, npy_header("<f4", false, "(1,)"), "12345"), "the file has 5");
  expect_npy_refused(npy_image(1, npy_header("<f4", false, "(-1,)"), "1234"), "non-negative");
  expect_npy_refused(npy_image(1, npy_header("<f4", false, "(1.0,)"), "1234"), "malformed");
  expect_npy_refused(npy_image(1, npy_header("<f4", false, "(99999999999999999999,)"), ""),
                     "64 bits");
  expect_npy_refused(npy_image(1, npy_header("<f4", false, "(4611686018427387904, 4)"), ""),
                     "overflow");
  expect_npy_refused(npy_image(1, "{'descr': '<f4', 'shape': (1,)}", "1234"), "lacks");
  expect_npy_refused(npy_image(1, "{'descr': '<f4', 'descr': '<f4'}", "1234"), "repeated");
  expect_npy_refused(npy_image(1, npy_header("<f4", false, "(1,)") + "x", "1234"), "follows");
  std::string beyond = npy_image(1, npy_header("<f4", false, "(1,)"), "1234");
  beyond[9] = '\x7f';
  expect_npy_refused(beyond, "beyond the end");
}

TEST(Scalar, HalfTypesRoundToNearestEven) {
  const auto rounded = [](DType dtype, double value) {
    uint16_t bits = 0;
    store_scalar(&bits, dtype, 0, value);
    return load_scalar(&bits, dtype, 0);
  };
  EXPECT_EQ(rounded(DType::kBF16, 1.0 + 0x1p-8), 1.0);               // tie to even
  EXPECT_EQ(rounded(DType::kBF16, 1.0 + 3 * 0x1p-8), 1.0 + 0x1p-6);  // tie to even, up
  EXPECT_EQ(rounded(DType::kBF16, 1.0 + 0x1p-8 + 0x1p-40), 1.0 + 0x1p-7);
  EXPECT_EQ(rounded(DType::kF16, 65519.0), 65504.0);
  EXPECT_EQ(rounded(DType::kF16, 65520.0), HUGE_VAL);
  EXPECT_EQ(rounded(DType::kF16, -1e300), -HUGE_VAL);
  EXPECT_EQ(rounded(DType::kF16, 0x1p-24), 0x1p-24);
  EXPECT_EQ(rounded(DType::kF16, 0x1p-25), 0.0);
  EXPECT_EQ(rounded(DType::kF16, 0x1p-14 - 0x1p-26), 0x1p-14);
  // Every pattern survives a round trip.
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
      const uint16_t bits = static_cast<uint16_t>(pattern);
      const double value = load_scalar(&bits, dtype, 0);
      uint16_t again = 0;
      store_scalar(&again, dtype, 0, value);
      if (value == value) {
        ASSERT_EQ(again, bits);
      }
    }
  }
}

}  // namespace
}  // namespace rowmax::app
