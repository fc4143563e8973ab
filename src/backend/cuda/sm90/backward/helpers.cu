// The kernels beside the main one, for both elements.
#include "backend/cuda/sm90/backward/helper_kernels.h"
#include "backend/cuda/sm90/backward/reduce.cuh"
#include "backend/cuda/sm90/backward/row_stats.cuh"

namespace rowmax::cuda::sm90 {

const void* kernel_row_stats(Element element) {
  return element == Element::kBF16
             ? reinterpret_cast<const void*>(&row_stats_kernel<Element::kBF16>)
             : reinterpret_cast<const void*>(&row_stats_kernel<Element::kF16>);
}

const void* kernel_reduce(Element element) {
  return element == Element::kBF16 ? reinterpret_cast<const void*>(&reduce_kernel<Element::kBF16>)
                                   : reinterpret_cast<const void*>(&reduce_kernel<Element::kF16>);
}

}  // namespace rowmax::cuda::sm90
