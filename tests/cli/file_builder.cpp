#include "file_builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace rowmax::app::testing {
namespace {

std::string little_endian(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) {
    out += static_cast<char>(value >> (8 * i) & 0xff);
  }
  return out;
}

}  // namespace

std::string safetensors_image(const std::string& header, const std::string& data) {
  return little_endian(header.size(), 8) + header + data;
}

std::string entry_text(const std::string& name, const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

std::string f32_file(const std::vector<NamedShape>& tensors) {
  std::vector<std::string> entries;
  std::string data;
  for (const NamedShape& tensor : tensors) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) {
      count *= size;
    }
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>((i * 37 + 11) % 29 - 14) / 16.0f);
    }
    const size_t begin = data.size();
    data += f32_bytes(values);
    entries.push_back(entry_text(tensor.name, "F32",
                                 fmt::format("[{}]", fmt::join(tensor.shape, ",")),
                                 fmt::format("[{},{}]", begin, data.size())));
  }
  return safetensors_image(fmt::format("{{{}}}", fmt::join(entries, ",")), data);
}

std::string npy_image(int version, const std::string& header, const std::string& data) {
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' +
         little_endian(header.size(), version == 1 ? 2 : 4) + header + data;
}

std::string npy_header(const std::string& descr, bool fortran, const std::string& shape) {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}   \n", descr,
                     fortran ? "True" : "False", shape);
}

std::string f32_bytes(const std::vector<float>& values) {
  std::string out(values.size() * sizeof(float), '\0');
  if (!values.empty()) {
    std::memcpy(out.data(), values.data(), out.size());
  }
  return out;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "rowmax_cli_XXXXXX").string();
  folder_ = ::mkdtemp(name.data()) != nullptr ? name : "";
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary) << content;
  return path(name);
}

std::vector<std::string> TemporaryFolder::files() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace rowmax::app::testing
