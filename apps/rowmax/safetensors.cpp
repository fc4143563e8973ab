#include "safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace rowmax::app {
namespace {

using Json = nlohmann::json;

struct FormatType {
  const char* name;
  int bytes;
  std::optional<DType> dtype;  // how the command computes with it; none: it cannot
};

constexpr FormatType kFormatTypes[] = {
    {"F64", 8, DType::kF64},   {"F32", 4, DType::kF32},      {"F16", 2, DType::kF16},
    {"BF16", 2, DType::kBF16}, {"BOOL", 1, DType::kBool},    {"I32", 4, DType::kI32},
    {"I64", 8, DType::kI64},   {"I16", 2, std::nullopt},     {"I8", 1, std::nullopt},
    {"U64", 8, std::nullopt},  {"U32", 4, std::nullopt},     {"U16", 2, std::nullopt},
    {"U8", 1, std::nullopt},   {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt},
};

const FormatType* find_type(std::string_view name) {
  for (const FormatType& type : kFormatTypes) {
    if (name == type.name) {
      return &type;
    }
  }
  return nullptr;
}

const char* type_name(DType dtype) {
  for (const FormatType& type : kFormatTypes) {
    if (type.dtype == dtype) {
      return type.name;
    }
  }
  return "?";
}

// A name from the file as it may be printed: no control characters, not endless.
std::string printable(const std::string& name) {
  constexpr size_t kLongest = 80;
  std::string out =
      Json(name.substr(0, kLongest)).dump(-1, ' ', true, Json::error_handler_t::replace);
  return name.size() > kLongest ? out + "..." : out;
}

// Receives the header's JSON events. A document tree would accept duplicate keys silently and any
// depth; the format has exactly three levels, so a small state machine is stricter and cheaper.
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  SafetensorsHeader header;
  std::string error;

  bool key(string_t& value) override {
    switch (level_) {
      case Level::kTop:
        return begin_entry(value);
      case Level::kMetadata:
        field_ = value;
        if (header.metadata.count(value) != 0) {
          return fail(fmt::format("duplicate key {} in __metadata__", printable(value)));
        }
        return true;
      case Level::kTensor:
        return begin_field(value);
      default:
        return fail("unexpected key");
    }
  }

  bool start_object(std::size_t) override {
    if (level_ == Level::kStart) {
      level_ = Level::kTop;
      return true;
    }
    if (level_ == Level::kTop) {
      level_ = in_metadata_ ? Level::kMetadata : Level::kTensor;
      return true;
    }
    return wrong("an object");
  }

  bool end_object() override {
    if (level_ == Level::kTensor) {
      level_ = Level::kTop;
      return finish_entry();
    }
    level_ = level_ == Level::kMetadata ? Level::kTop : Level::kEnd;
    return true;
  }

  bool start_array(std::size_t) override {
    if (level_ == Level::kTensor && (field_ == "shape" || field_ == "data_offsets")) {
      level_ = Level::kArray;
      numbers_.clear();
      return true;
    }
    return wrong("an array");
  }

  bool end_array() override {
    level_ = Level::kTensor;
    if (field_ == "shape") {
      entry_.shape = numbers_;
      return true;
    }
    if (numbers_.size() != 2) {
      return fail(fmt::format("tensor {}: data_offsets has {} numbers; it must have 2",
                              printable(name_), numbers_.size()));
    }
    entry_.begin = numbers_[0];
    entry_.end = numbers_[1];
    return true;
  }

  bool string(string_t& value) override {
    if (level_ == Level::kMetadata) {
      header.metadata[field_] = value;
      return true;
    }
    if (level_ == Level::kTensor && field_ == "dtype") {
      entry_.dtype = value;
      return true;
    }
    return wrong("a string");
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (level_ != Level::kArray) {
      return wrong("a number");
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return fail(fmt::format("tensor {}: {} in {} is too large", printable(name_), value, field_));
    }
    constexpr size_t kMaxNumbers = 64;
    if (numbers_.size() == kMaxNumbers) {
      return fail(fmt::format("tensor {}: {} has more than {} numbers", printable(name_), field_,
                              kMaxNumbers));
    }
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool number_integer(number_integer_t value) override {
    if (level_ != Level::kArray) {
      return wrong("a number");
    }
    return fail(fmt::format("tensor {}: {} in {} is negative", printable(name_), value, field_));
  }

  bool number_float(number_float_t, const string_t& text) override {
    if (level_ != Level::kArray) {
      return wrong("a number");
    }
    return fail(fmt::format("tensor {}: {} in {} is not an integer of 64 bits", printable(name_),
                            printable(text), field_));
  }

  bool null() override { return wrong("null"); }
  bool boolean(bool) override { return wrong("a boolean"); }
  bool binary(binary_t&) override { return wrong("binary data"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    if (error.empty()) {
      error =
          fmt::format("the header is not valid UTF-8 JSON (at byte {} of the header)", position);
    }
    return false;
  }

 private:
  enum class Level { kStart, kTop, kMetadata, kTensor, kArray, kEnd };

  bool fail(std::string message) {
    error = std::move(message);
    return false;
  }

  bool wrong(const char* what) {
    if (level_ == Level::kStart || level_ == Level::kEnd) {
      return fail(fmt::format("the header is {}; it must be an object", what));
    }
    if (level_ == Level::kMetadata || (level_ == Level::kTop && in_metadata_)) {
      return fail("__metadata__ must map strings to strings");
    }
    if (level_ == Level::kTop) {
      return fail(fmt::format("tensor {} is {}; it must be an object", printable(name_), what));
    }
    return fail(fmt::format("tensor {}: {} of the wrong kind in {}", printable(name_), what,
                            printable(field_)));
  }

  bool begin_entry(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    name_ = name;
    if ((in_metadata_ && saw_metadata_) || header.tensors.count(name) != 0) {
      return fail(fmt::format("duplicate key {}", printable(name)));
    }
    saw_metadata_ = saw_metadata_ || in_metadata_;
    entry_ = {};
    fields_.clear();
    return true;
  }

  bool begin_field(const std::string& field) {
    field_ = field;
    if (field != "dtype" && field != "shape" && field != "data_offsets") {
      return fail(fmt::format("tensor {}: unknown key {}", printable(name_), printable(field)));
    }
    if (!fields_.insert(field).second) {
      return fail(fmt::format("tensor {}: duplicate key {}", printable(name_), printable(field)));
    }
    return true;
  }

  bool finish_entry() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (fields_.count(field) == 0) {
        return fail(fmt::format("tensor {}: {} is missing", printable(name_), field));
      }
    }
    header.tensors.emplace(name_, entry_);
    return true;
  }

  Level level_ = Level::kStart;
  bool in_metadata_ = false;
  bool saw_metadata_ = false;
  std::string name_;
  std::string field_;
  std::set<std::string> fields_;
  std::vector<int64_t> numbers_;
  SafetensorsEntry entry_;
};

// Byte ranges must be in range, agree with shape x dtype, and tile the data section exactly.
Status check_layout(const SafetensorsHeader& header, int64_t data_bytes) {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> order;
  for (const auto& [name, entry] : header.tensors) {
    if (entry.begin > entry.end || entry.end > data_bytes) {
      return Status::invalid(
          fmt::format("tensor {}: data_offsets [{}, {}] are outside the {} bytes of data",
                      printable(name), entry.begin, entry.end, data_bytes));
    }
    const FormatType* type = find_type(entry.dtype);
    const std::optional<int64_t> bytes =
        checked_bytes(entry.shape, type != nullptr ? type->bytes : 1);
    if (!bytes) {
      return Status::invalid(fmt::format("tensor {}: the sizes {} overflow 64 bits",
                                         printable(name), shape_text(entry.shape)));
    }
    if (type != nullptr && *bytes != entry.end - entry.begin) {
      return Status::invalid(fmt::format("tensor {}: data_offsets hold {} bytes but {} {} needs {}",
                                         printable(name), entry.end - entry.begin, entry.dtype,
                                         shape_text(entry.shape), *bytes));
    }
    order.emplace_back(&name, &entry);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  int64_t expected = 0;
  for (const auto& [name, entry] : order) {
    if (entry->begin != expected) {
      return Status::invalid(
          fmt::format("tensor {}: its data {} (starts at {}, expected {})", printable(*name),
                      entry->begin < expected ? "overlaps another tensor's" : "follows a gap",
                      entry->begin, expected));
    }
    expected = entry->end;
  }
  if (expected != data_bytes) {
    return Status::invalid(
        fmt::format("{} bytes after the last tensor belong to none", data_bytes - expected));
  }
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view file) {
  constexpr size_t kPrefix = 8;
  if (file.size() < kPrefix) {
    return Status::invalid(fmt::format(
        "the file has {} bytes; a safetensors file has at least 8 for the header length",
        file.size()));
  }
  uint64_t length = 0;
  for (size_t i = kPrefix; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(file[i]);
  }
  if (length == 0) {
    return Status::invalid("the header length is 0");
  }
  if (length > kMaxSafetensorsHeader) {
    return Status::invalid(fmt::format("the header length {} is above the limit of {} bytes",
                                       length, kMaxSafetensorsHeader));
  }
  if (length > file.size() - kPrefix) {
    return Status::invalid(fmt::format(
        "the header length {} is beyond the end of the file ({} bytes)", length, file.size()));
  }
  const std::string_view text = file.substr(kPrefix, static_cast<size_t>(length));
  if (text.front() != '{') {
    return Status::invalid("the header does not start with '{'");
  }
  if (text.find('\0') != std::string_view::npos) {  // the JSON parser takes it for the end
    return Status::invalid("the header holds a zero byte");
  }
  HeaderHandler handler;
  if (!Json::sax_parse(text.begin(), text.end(), &handler)) {
    return Status::invalid(handler.error);
  }
  handler.header.data_begin = static_cast<int64_t>(kPrefix + length);
  const int64_t data_bytes = static_cast<int64_t>(file.size()) - handler.header.data_begin;
  const Status status = check_layout(handler.header, data_bytes);
  if (!status) {
    return status;
  }
  return std::move(handler.header);
}

Result<TensorFile> load_safetensors(std::string_view file, const std::set<std::string>& names) {
  Result<SafetensorsHeader> header = parse_safetensors_header(file);
  if (!header) {
    return header.status();
  }
  TensorFile out;
  out.metadata = header->metadata;
  for (const auto& [name, entry] : header->tensors) {
    if (names.count(name) == 0) {
      continue;
    }
    const FormatType* type = find_type(entry.dtype);
    if (type == nullptr || !type->dtype) {
      return Status::invalid(fmt::format(
          "tensor {}: element type {} is not supported; accepted: F64, F32, F16, BF16, BOOL, I32, "
          "I64",
          printable(name), printable(entry.dtype)));
    }
    HostTensor tensor = make_tensor(*type->dtype, entry.shape);
    if (tensor.buffer.bytes() > 0) {
      std::memcpy(tensor.buffer.data(), file.data() + header->data_begin + entry.begin,
                  tensor.buffer.bytes());
    }
    out.tensors.emplace(name, std::move(tensor));
  }
  return out;
}

Result<TensorFile> read_safetensors(const std::string& path, const std::set<std::string>& names) {
  const Result<Buffer> bytes = read_file(path);
  if (!bytes) {
    return bytes.status();
  }
  Result<TensorFile> file = load_safetensors({bytes->data(), bytes->bytes()}, names);
  if (!file) {
    return Status(file.status().code(), fmt::format("'{}': {}", path, file.status().message()));
  }
  return file;
}

Status write_safetensors(const std::string& path, const TensorFile& file) {
  Json header = Json::object();
  if (!file.metadata.empty()) {
    header["__metadata__"] = file.metadata;
  }
  // Wide types first: every tensor is then aligned to its element size.
  std::vector<const std::pair<const std::string, HostTensor>*> order;
  for (const auto& named : file.tensors) {
    order.push_back(&named);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return size_of(a->second.dtype) > size_of(b->second.dtype);
  });
  std::vector<std::string_view> parts(2);
  int64_t offset = 0;
  for (const auto* named : order) {
    const HostTensor& tensor = named->second;
    const int64_t end = offset + static_cast<int64_t>(tensor.buffer.bytes());
    Json& entry = header[named->first];
    entry["dtype"] = type_name(tensor.dtype);
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {offset, end};
    parts.emplace_back(tensor.buffer.data(), tensor.buffer.bytes());
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string prefix(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    prefix[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  parts[0] = prefix;
  parts[1] = text;
  return write_file_atomically(path, parts);
}

}  // namespace rowmax::app
