// Visibility of the library's public symbols. Everything else is hidden.
#pragma once

#if defined(__GNUC__) || defined(__clang__)
#define ROWMAX_API __attribute__((visibility("default")))
#else
#define ROWMAX_API
#endif
