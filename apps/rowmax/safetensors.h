// Reader and writer of the safetensors format: 8 bytes of little-endian header length, a JSON
// header, the tensors' bytes. The reader trusts nothing: it checks every length before use.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rowmax/status.h"
#include "tensor_file.h"

namespace rowmax::app {

// One entry of a header.
struct SafetensorsEntry {
  std::string dtype;           // as written in the file: "F32", "BF16", ...
  std::vector<int64_t> shape;  // non-negative
  int64_t begin = 0;           // bytes [begin, end) of the data section
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;  // offset of the data section in the file
};

// Longest accepted header: what other readers accept too.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// Parses and checks the header of a file image. Errors: bad length, not UTF-8, not JSON, duplicate
// or missing keys, wrong types, sizes whose product overflows, offsets that are out of range,
// overlap, leave gaps, or disagree with shape x dtype.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view file);

// The tensors called `names` (those that the file has). An element type that the command cannot
// use is an error only here, for a tensor that is asked for.
Result<TensorFile> load_safetensors(std::string_view file, const std::set<std::string>& names);
Result<TensorFile> read_safetensors(const std::string& path, const std::set<std::string>& names);

// Writes all tensors, wide element types first, header padded with spaces to 8 bytes; atomic.
Status write_safetensors(const std::string& path, const TensorFile& file);

}  // namespace rowmax::app
