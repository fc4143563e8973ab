// Mutated files through the readers: whatever comes in, they return a tensor or a message and touch
// no byte outside (the sanitizer builds see to the latter). Seeded and time-boxed.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "file_builder.h"
#include "npy.h"
#include "safetensors.h"

namespace rowmax::app {
namespace {

constexpr std::chrono::milliseconds kBudget{2500};

using Random = std::mt19937_64;

size_t below(Random& random, size_t limit) {
  return limit == 0 ? 0 : static_cast<size_t>(random() % limit);
}

// Fragments that headers are made of, and values at the edges of types.
const std::vector<std::string>& fragments() {
  static const std::vector<std::string> kFragments = {"{",
                                                      "}",
                                                      "[",
                                                      "]",
                                                      "(",
                                                      ")",
                                                      ",",
                                                      ":",
                                                      "\"",
                                                      "'",
                                                      "\\",
                                                      "\\u0000",
                                                      "\\ud800",
                                                      "-",
                                                      "-1",
                                                      "0",
                                                      "1e9",
                                                      "1.5",
                                                      "4294967296",
                                                      "9223372036854775807",
                                                      "9223372036854775808",
                                                      "18446744073709551615",
                                                      "99999999999999999999999999",
                                                      "null",
                                                      "true",
                                                      "False",
                                                      "True",
                                                      "\"dtype\"",
                                                      "\"shape\"",
                                                      "\"data_offsets\"",
                                                      "__metadata__",
                                                      "\"F32\"",
                                                      "\"BF16\"",
                                                      "'<f4'",
                                                      "'>f8'",
                                                      "'|O'",
                                                      "\xff",
                                                      "\xc3",
                                                      std::string(1, '\0'),
                                                      "\n",
                                                      " "};
  return kFragments;
}

std::string mutated(std::string image, Random& random) {
  const size_t edits = 1 + below(random, 4);
  for (size_t e = 0; e < edits; ++e) {
    const size_t at = below(random, image.size() + 1);
    switch (below(random, 6)) {
      case 0:
        image.resize(at);
        break;
      case 1:
        image.insert(at, fragments()[below(random, fragments().size())]);
        break;
      case 2:
        image.erase(at, 1 + below(random, 8));
        break;
      case 3:
        if (at < image.size()) {
          image[at] = static_cast<char>(random());
        }
        break;
      case 4: {
        const std::string copy = image.substr(at, below(random, 60));
        image.insert(below(random, image.size() + 1), copy);
        break;
      }
      default: {  // a digit: sizes and offsets that are nearly right
        const size_t digit = image.find_first_of("0123456789", at);
        if (digit != std::string::npos) {
          image[digit] = static_cast<char>('0' + below(random, 10));
        }
      }
    }
  }
  return image;
}

// Most mutations hit the prefix only; this sets it right so that the header is reached.
void repair_length(std::string& image, size_t data_bytes) {
  if (image.size() < 8 + data_bytes) {
    return;
  }
  const uint64_t length = image.size() - 8 - data_bytes;
  for (size_t i = 0; i < 8; ++i) {
    image[i] = static_cast<char>(length >> (8 * i) & 0xff);
  }
}

void expect_sane(const HostTensor& tensor) {
  ASSERT_EQ(tensor.buffer.bytes(), static_cast<size_t>(tensor.count()) * size_of(tensor.dtype));
}

TEST(ReaderFuzz, Safetensors) {
  const std::string seed =
      testing::f32_file({{"q", {1, 2, 2, 3}}, {"k", {1, 2, 2, 3}}, {"v", {0}}});
  constexpr size_t kDataBytes = 96;
  Random random(20240601);
  const auto end = std::chrono::steady_clock::now() + kBudget;
  int64_t accepted = 0;
  int64_t refused = 0;
  while (std::chrono::steady_clock::now() < end) {
    std::string image = mutated(seed, random);
    if (below(random, 4) != 0) {
      repair_length(image, kDataBytes);
    }
    const Result<TensorFile> file = load_safetensors(image, {"q", "k", "v"});
    if (!file.ok()) {
      ASSERT_FALSE(file.status().message().empty());
      ++refused;
      continue;
    }
    ++accepted;
    for (const auto& [name, tensor] : file->tensors) {
      ASSERT_NO_FATAL_FAILURE(expect_sane(tensor));
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
  RecordProperty("files", std::to_string(accepted + refused));
}

TEST(ReaderFuzz, Npy) {
  Random random(20240602);
  const auto end = std::chrono::steady_clock::now() + kBudget;
  int64_t accepted = 0;
  int64_t refused = 0;
  while (std::chrono::steady_clock::now() < end) {
    const int version = 1 + static_cast<int>(below(random, 3));
    const std::string header = testing::npy_header("<f4", below(random, 2) == 0,
                                                   below(random, 2) == 0 ? "(2, 3)" : "(6,)");
    // Either the whole file is mutated, or the header alone with a right length.
    const std::string data(24, '\x3f');
    const std::string image = below(random, 2) == 0
                                  ? mutated(testing::npy_image(version, header, data), random)
                                  : testing::npy_image(version, mutated(header, random), data);
    const Result<HostTensor> tensor = parse_npy(image);
    if (!tensor.ok()) {
      ASSERT_FALSE(tensor.status().message().empty());
      ++refused;
      continue;
    }
    ++accepted;
    ASSERT_NO_FATAL_FAILURE(expect_sane(*tensor));
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace rowmax::app
