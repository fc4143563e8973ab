// Status and Result: how every fallible call of the library reports.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "rowmax/export.h"

namespace rowmax {

// Kinds of failure.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's input breaks a rule; the message names argument and value
  kUnsupported = 2,      // a legal request that no kernel serves; the message names the reason
  kOutOfMemory = 3,      // the workspace is missing or too small
  kIoError = 4,          // a file could not be read or written
  kInternal = 5,         // a broken invariant of the library itself
};

// Name of a code, as printed in messages: "invalid argument", "unsupported", ...
ROWMAX_API const char* to_string(StatusCode code);

// Outcome of a call: a code, and for failures a message that names the argument, its value and
// what would be accepted.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok_status() { return {}; }
  static Status invalid(std::string message) {
    return {StatusCode::kInvalidArgument, std::move(message)};
  }
  static Status unsupported(std::string message) {
    return {StatusCode::kUnsupported, std::move(message)};
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  explicit operator bool() const { return ok(); }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the Status that explains its absence. value() on a failed result aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(runtime/explicit)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(runtime/explicit)

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }
  const T& value() const& {
    if (!value_) {
      std::abort();
    }
    return *value_;
  }
  T& value() & {
    if (!value_) {
      std::abort();
    }
    return *value_;
  }
  T&& value() && {
    if (!value_) {
      std::abort();
    }
    return std::move(*value_);
  }
  const T& operator*() const& { return value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace rowmax
