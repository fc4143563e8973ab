// Images of files, right and wrong ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rowmax::app::testing {

// A file image: the length of `header`, `header`, `data`.
std::string safetensors_image(const std::string& header, const std::string& data);

// {"NAME":{"dtype":DTYPE,"shape":SHAPE,"data_offsets":OFFSETS}} without the outer braces.
std::string entry_text(const std::string& name, const std::string& dtype, const std::string& shape,
                       const std::string& offsets);

// A tensor of small float32 values.
struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};
std::string f32_file(const std::vector<NamedShape>& tensors);

// A .npy image. `header` is the dict's text; versions 1 to 3.
std::string npy_image(int version, const std::string& header, const std::string& data);
std::string npy_header(const std::string& descr, bool fortran, const std::string& shape);

// Bytes of little-endian float32 values.
std::string f32_bytes(const std::vector<float>& values);

// A folder removed with its contents at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;
  // Names of the files in it, sorted.
  std::vector<std::string> files() const;

 private:
  std::string folder_;
};

}  // namespace rowmax::app::testing
