#include "rowmax/status.h"

namespace rowmax {

const char* to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kOutOfMemory:
      return "out of memory";
    case StatusCode::kIoError:
      return "input/output error";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown status";
}

}  // namespace rowmax
