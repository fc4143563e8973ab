#include "tensor_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "scalar.h"

namespace rowmax::app {
namespace {

// A file descriptor closed at the end of its scope.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  bool close() {
    const int result = fd_ >= 0 ? ::close(fd_) : 0;
    fd_ = -1;
    return result == 0;
  }

 private:
  int fd_;
};

Status io_error(const std::string& action, const std::string& path, int error) {
  return {StatusCode::kIoError,
          fmt::format("cannot {} '{}': {}", action, path, std::generic_category().message(error))};
}

}  // namespace

TensorView HostTensor::view() {
  TensorView out;
  out.data = buffer.data();
  out.dtype = dtype;
  out.rank = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (int axis = out.rank - 1; axis >= 0; --axis) {
    out.sizes[axis] = shape[static_cast<size_t>(axis)];
    out.strides[axis] = stride;
    stride *= out.sizes[axis] > 0 ? out.sizes[axis] : 1;
  }
  return out;
}

ConstTensorView HostTensor::view() const { return const_cast<HostTensor*>(this)->view(); }

int64_t HostTensor::count() const {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return count;
}

HostTensor make_tensor(DType dtype, std::vector<int64_t> shape) {
  HostTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.buffer = Buffer(static_cast<size_t>(tensor.count()) * size_of(dtype));
  return tensor;
}

std::optional<int64_t> checked_bytes(const std::vector<int64_t>& shape, int64_t element_bytes) {
  // Zero sizes do not excuse a product that overflows: strides are computed from it too.
  int64_t product = element_bytes;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) {
      return std::nullopt;
    }
    empty = empty || size == 0;
    if (size > 0 && __builtin_mul_overflow(product, size, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

HostTensor convert(const HostTensor& tensor, DType dtype) {
  HostTensor out = make_tensor(dtype, tensor.shape);
  if (dtype == tensor.dtype) {
    if (out.buffer.bytes() > 0) {
      std::memcpy(out.buffer.data(), tensor.buffer.data(), out.buffer.bytes());
    }
    return out;
  }
  const int64_t count = tensor.count();
  for (int64_t i = 0; i < count; ++i) {
    store_scalar(out.buffer.data(), dtype, i, load_scalar(tensor.buffer.data(), tensor.dtype, i));
  }
  return out;
}

Result<Buffer> read_file(const std::string& path) {
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) {
    return io_error("open", path, errno);
  }
  struct stat info = {};
  if (::fstat(file.fd(), &info) != 0) {
    return io_error("read", path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return Status(StatusCode::kIoError, fmt::format("cannot read '{}': not a regular file", path));
  }
  Buffer buffer(static_cast<size_t>(info.st_size));
  size_t done = 0;
  while (done < buffer.bytes()) {
    const ssize_t got = ::read(file.fd(), buffer.data() + done, buffer.bytes() - done);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return io_error("read", path, errno);
    }
    if (got == 0) {
      return Status(StatusCode::kIoError,
                    fmt::format("cannot read '{}': it shrank while being read", path));
    }
    done += static_cast<size_t>(got);
  }
  return buffer;
}

namespace {

Status write_all(int fd, std::string_view part, const std::string& path) {
  while (!part.empty()) {
    const ssize_t put = ::write(fd, part.data(), part.size());
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      return io_error("write", path, errno);
    }
    part.remove_prefix(static_cast<size_t>(put));
  }
  return {};
}

}  // namespace

namespace {

Status write_in_place(const std::string& path, const std::vector<std::string_view>& parts) {
  File file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.fd() < 0) {
    return io_error("write", path, errno);
  }
  for (const std::string_view part : parts) {
    if (Status status = write_all(file.fd(), part, path); !status.ok()) {
      return status;
    }
  }
  return file.close() ? Status() : io_error("write", path, errno);
}

}  // namespace

Status write_file_atomically(const std::string& name, const std::vector<std::string_view>& parts) {
  // What is no regular file (a device, a pipe) is written to, not replaced.
  struct stat info = {};
  if (::stat(name.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    return write_in_place(name, parts);
  }
  // A link stays one.
  std::error_code error;
  std::filesystem::path target = std::filesystem::weakly_canonical(name, error);
  if (!error && std::filesystem::is_symlink(target)) {  // to a file that is not there yet
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
  }
  const std::string path = error ? name : target.string();
  // The temporary file is in the same folder, so that the rename stays on one file system.
  std::string temporary = path + ".tmpXXXXXX";
  File file(::mkstemp(temporary.data()));
  if (file.fd() < 0) {
    return io_error("write", path, errno);
  }
  Status status;
  for (const std::string_view part : parts) {
    status = write_all(file.fd(), part, path);
    if (!status) {
      break;
    }
  }
  // mkstemp gives 0600; an ordinary file has what the umask leaves.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (status.ok() && ::fchmod(file.fd(), 0666 & ~mask) != 0) {
    status = io_error("write", path, errno);
  }
  if (!file.close() && status.ok()) {
    status = io_error("write", path, errno);
  }
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = io_error("write", path, errno);
  }
  if (!status) {
    ::unlink(temporary.c_str());
  }
  return status;
}

}  // namespace rowmax::app
