// Which changes of scores and outputs a kernel's code has. Plain, so that device code can include
// it.
#pragma once

namespace rowmax {

enum class OptionClass : int {
  kAll = 0,  // softcap, ALiBi, any scale, O in fp32
  kNone,     // positive scales, O in the inputs' type
  kAlibi,    // the same with ALiBi
  kSoftcap,  // the same with softcap
};

}  // namespace rowmax
