// Reader of NumPy's .npy format, versions 1 to 3.
#pragma once

#include <string>
#include <string_view>

#include "rowmax/status.h"
#include "tensor_file.h"

namespace rowmax::app {

// A file image as a row-major tensor; Fortran order is converted. Accepted types: little-endian
// f2, f4, f8, i4, i8 and b1. Refused by name: big-endian, object, structured and other types,
// truncated data, bytes after the data.
Result<HostTensor> parse_npy(std::string_view file);
Result<HostTensor> read_npy(const std::string& path);

}  // namespace rowmax::app
