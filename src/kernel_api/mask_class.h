// Which bands a kernel's code can mask. Plain, so that device code can include it.
#pragma once

namespace rowmax {

enum class MaskClass : int {
  kBanded = 0,  // any band
  kFull,        // key lengths only
};

}  // namespace rowmax
