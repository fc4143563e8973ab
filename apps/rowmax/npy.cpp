#include "npy.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <optional>

namespace rowmax::app {
namespace {

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// Reads the header's text, a literal of a Python dict with three known keys. Every function returns
// false after setting `error`.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  std::string error;

  bool parse(Header* header) {
    if (!take('{')) {
      return fail("the header is not a dict");
    }
    while (!take('}')) {
      std::string key;
      if (!string(&key) || !take(':')) {
        return fail("a key of the header is malformed");
      }
      if (!value(key, header)) {
        return false;
      }
      if (!take(',') && peek() != '}') {
        return fail("the header is malformed");
      }
    }
    skip_space();
    if (position_ != text_.size()) {
      return fail("text follows the header's dict");
    }
    if (!header->descr || !header->fortran_order || !header->shape) {
      return fail("the header lacks one of descr, fortran_order, shape");
    }
    return true;
  }

 private:
  bool fail(std::string message) {
    if (error.empty()) {
      error = std::move(message);
    }
    return false;
  }

  void skip_space() {
    while (position_ < text_.size() &&
           (text_[position_] == ' ' || text_[position_] == '\n' || text_[position_] == '\t')) {
      ++position_;
    }
  }

  char peek() {
    skip_space();
    return position_ < text_.size() ? text_[position_] : '\0';
  }

  bool take(char wanted) {
    if (position_ < text_.size() && peek() == wanted) {
      ++position_;
      return true;
    }
    return false;
  }

  bool string(std::string* out) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') {
      return false;
    }
    const size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) {
      return false;
    }
    *out = text_.substr(position_ + 1, end - position_ - 1);
    position_ = end + 1;
    return true;
  }

  bool value(const std::string& key, Header* header) {
    if (key == "descr" && !header->descr) {
      if (peek() == '[') {
        return fail("structured types are not supported");
      }
      std::string descr;
      if (!string(&descr)) {
        return fail("descr is not a string");
      }
      header->descr = descr;
      return true;
    }
    if (key == "fortran_order" && !header->fortran_order) {
      return boolean(header);
    }
    if (key == "shape" && !header->shape) {
      return shape(header);
    }
    return fail("the header has an unknown or repeated key");
  }

  bool boolean(Header* header) {
    skip_space();
    for (const bool truth : {true, false}) {
      const std::string_view word = truth ? "True" : "False";
      if (text_.substr(position_, word.size()) == word) {
        position_ += word.size();
        header->fortran_order = truth;
        return true;
      }
    }
    return fail("fortran_order is neither True nor False");
  }

  bool shape(Header* header) {
    constexpr size_t kMaxAxes = 64;
    std::vector<int64_t> sizes;
    if (!take('(')) {
      return fail("shape is not a tuple");
    }
    while (!take(')')) {
      int64_t size = 0;
      if (!integer(&size)) {
        return fail("a size in shape is not a non-negative integer of 64 bits");
      }
      if (sizes.size() == kMaxAxes) {
        return fail("shape has too many axes");
      }
      sizes.push_back(size);
      if (!take(',') && peek() != ')') {
        return fail("shape is malformed");
      }
    }
    header->shape = std::move(sizes);
    return true;
  }

  bool integer(int64_t* out) {
    const char first = peek();
    if (first < '0' || first > '9') {
      return false;
    }
    int64_t number = 0;
    while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9') {
      if (__builtin_mul_overflow(number, int64_t{10}, &number) ||
          __builtin_add_overflow(number, int64_t{text_[position_] - '0'}, &number)) {
        return false;
      }
      ++position_;
    }
    *out = number;
    return true;
  }

  std::string_view text_;
  size_t position_ = 0;
};

Result<DType> type_of(const std::string& descr) {
  // Text from the file goes into messages: only when it looks like a type.
  if (descr.size() < 2 || descr.size() > 8 ||
      descr.find_first_not_of(
          "<>=|abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") !=
          std::string::npos) {
    return Status::invalid("descr is not a known type");
  }
  const char order = descr[0];
  const std::string kind = descr.find_first_of("<>=|") == 0 ? descr.substr(1) : descr;
  if (kind[0] == 'O') {
    return Status::invalid("object dtype ('O') is not supported: it holds pickled Python objects");
  }
  if (order == '>') {
    return Status::invalid(fmt::format("big-endian type '{}' is not supported", descr));
  }
  if (kind == "u2" || kind == "V2") {
    return Status::invalid(
        fmt::format("type '{}' is not supported; bf16 has no .npy type: store it in a safetensors "
                    "file, or as float32 with --dtype bf16",
                    descr));
  }
  constexpr struct {
    const char* kind;
    DType dtype;
  } kTypes[] = {{"f8", DType::kF64},  {"f4", DType::kF32}, {"f2", DType::kF16},
                {"b1", DType::kBool}, {"i4", DType::kI32}, {"i8", DType::kI64}};
  for (const auto& type : kTypes) {
    if (kind == type.kind) {
      return type.dtype;
    }
  }
  return Status::invalid(fmt::format(
      "type '{}' is not supported; accepted: float16, float32, float64, int32, int64, bool",
      descr));
}

// The tensor with its axes in reverse storage order, as row-major.
HostTensor from_fortran(const char* data, DType dtype, const std::vector<int64_t>& shape) {
  HostTensor out = make_tensor(dtype, shape);
  const size_t element = size_of(dtype);
  std::vector<int64_t> index(shape.size(), 0);
  const int64_t count = out.count();
  // The source is walked in its own order: axis 0 runs first.
  for (int64_t source = 0; source < count; ++source) {
    int64_t target = 0;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      target = target * shape[axis] + index[axis];
    }
    std::memcpy(out.buffer.data() + static_cast<size_t>(target) * element,
                data + static_cast<size_t>(source) * element, element);
    for (size_t axis = 0; axis < shape.size() && ++index[axis] == shape[axis]; ++axis) {
      index[axis] = 0;
    }
  }
  return out;
}

}  // namespace

Result<HostTensor> parse_npy(std::string_view file) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  constexpr size_t kMaxHeader = 1 << 20;
  if (file.size() < 10 || file.substr(0, kMagic.size()) != kMagic) {
    return Status::invalid("it is not an .npy file (no magic string)");
  }
  const int major = static_cast<unsigned char>(file[6]);
  const int minor = static_cast<unsigned char>(file[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return Status::invalid(
        fmt::format(".npy version {}.{} is not supported; accepted: 1.0, 2.0, 3.0", major, minor));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t text_begin = 8 + length_bytes;
  if (file.size() < text_begin) {
    return Status::invalid("the file ends inside the header");
  }
  size_t length = 0;
  for (size_t i = length_bytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(file[8 + i]);
  }
  if (length > kMaxHeader || length > file.size() - text_begin) {
    return Status::invalid(
        fmt::format("the header length {} is beyond the end of the file", length));
  }
  Header header;
  HeaderParser parser(file.substr(text_begin, length));
  if (!parser.parse(&header)) {
    return Status::invalid(parser.error);
  }
  const Result<DType> dtype = type_of(*header.descr);
  if (!dtype) {
    return dtype.status();
  }
  const std::optional<int64_t> bytes =
      checked_bytes(*header.shape, static_cast<int64_t>(size_of(*dtype)));
  if (!bytes) {
    return Status::invalid(fmt::format("the sizes {} overflow 64 bits", shape_text(*header.shape)));
  }
  const std::string_view data = file.substr(text_begin + length);
  if (static_cast<uint64_t>(*bytes) != data.size()) {
    return Status::invalid(fmt::format(
        "shape {} needs {} bytes of data but the file has {}{}", shape_text(*header.shape), *bytes,
        data.size(), data.size() < static_cast<uint64_t>(*bytes) ? " (truncated)" : ""));
  }
  if (*header.fortran_order) {
    return from_fortran(data.data(), *dtype, *header.shape);
  }
  HostTensor out = make_tensor(*dtype, *header.shape);
  if (!data.empty()) {
    std::memcpy(out.buffer.data(), data.data(), data.size());
  }
  return out;
}

Result<HostTensor> read_npy(const std::string& path) {
  const Result<Buffer> bytes = read_file(path);
  if (!bytes) {
    return bytes.status();
  }
  Result<HostTensor> tensor = parse_npy({bytes->data(), bytes->bytes()});
  if (!tensor) {
    return Status(tensor.status().code(), fmt::format("'{}': {}", path, tensor.status().message()));
  }
  return tensor;
}

}  // namespace rowmax::app
