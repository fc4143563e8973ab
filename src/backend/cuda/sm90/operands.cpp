#include "backend/cuda/sm90/operands.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "backend/cuda/check.h"

namespace rowmax::cuda::sm90 {
namespace {

static_assert(sizeof(CUtensorMap) == sizeof(ptx::TensorMap));

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver is not linked: its entry point is looked up once.
Status find_encode(const char* kernel, void*& encode) {
  static std::atomic<void*> g_encode{nullptr};
  encode = g_encode.load(std::memory_order_acquire);
  if (encode != nullptr) {
    return {};
  }
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess) {
    return cuda_status(error, "cudaGetDriverEntryPoint(cuTensorMapEncodeTiled)", kernel);
  }
  if (result != cudaDriverEntryPointSuccess || function == nullptr) {
    return {StatusCode::kInternal,
            std::string("the driver has no cuTensorMapEncodeTiled, kernel ") + kernel};
  }
  encode = function;
  g_encode.store(encode, std::memory_order_release);
  return {};
}

tile::IndexArray index_array(const IndexArg& arg) {
  return {arg.data, arg.stride, arg.is_int64 ? 1 : 0};
}

}  // namespace

Result<MapEncoder> MapEncoder::create(const char* kernel) {
  void* encode = nullptr;
  if (Status status = find_encode(kernel, encode); !status.ok()) {
    return status;
  }
  return MapEncoder(encode, kernel);
}

Status MapEncoder::operator()(const char* name, const TensorArg& tensor, const MapShape& shape,
                              ptx::TensorMap& map, MapSteps& steps) const {
  steps.head = shape.heads > 1 && tensor.head != 0;
  steps.batch = shape.batch > 1 && tensor.batch != 0;
  const bool moves_seq = shape.seq > 1;
  if (moves_seq && tensor.seq == 0) {
    return Status::unsupported(std::string(kernel_) + ": " + name +
                               ": its sequence stride is 0; accepted: rows of their own");
  }
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(shape.dim),
                               static_cast<cuuint64_t>(steps.head ? shape.heads : 1),
                               static_cast<cuuint64_t>(std::max<int64_t>(shape.seq, 1)),
                               static_cast<cuuint64_t>(steps.batch ? shape.batch : 1)};
  const int64_t bytes = static_cast<int64_t>(size_of(tensor.dtype));
  const auto stride = [&](bool moves, int64_t elements) {
    return static_cast<cuuint64_t>(moves ? elements * bytes : 16);
  };
  const cuuint64_t strides[3] = {stride(steps.head, tensor.head), stride(moves_seq, tensor.seq),
                                 stride(steps.batch, tensor.batch)};
  const cuuint32_t box[4] = {kPanelColumns, static_cast<cuuint32_t>(shape.box_heads),
                             static_cast<cuuint32_t>(shape.box_seq), 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  CUtensorMap encoded;
  const CUresult result = reinterpret_cast<EncodeTiled>(encode_)(
      &encoded,
      tensor.dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, tensor.data, sizes, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE) {  // of a fault before
    return cuda_status(static_cast<cudaError_t>(result), "cuTensorMapEncodeTiled", kernel_);
  }
  if (result != CUDA_SUCCESS) {
    return Status::invalid(
        std::string(kernel_) + ": cuTensorMapEncodeTiled returned " +
        std::to_string(static_cast<int>(result)) + " for " + name + ": its address " +
        std::to_string(reinterpret_cast<uintptr_t>(tensor.data)) + " and its strides in bytes " +
        std::to_string(strides[0]) + " (head), " + std::to_string(strides[1]) + " (seq), " +
        std::to_string(strides[2]) + " (batch) must be multiples of 16, strides in [0, 2^40)");
  }
  std::memcpy(&map, &encoded, sizeof(map));
  return {};
}

tile::LengthArgs length_args(const AttentionArgs& args) {
  tile::LengthArgs lengths;
  lengths.cu_q = index_array(args.sequence.cu_q);
  lengths.cu_k = index_array(args.sequence.cu_k);
  lengths.used_q = index_array(args.sequence.used_q);
  lengths.used_k = index_array(args.sequence.used_k);
  lengths.seqlen_q = static_cast<int>(args.shape.seqlen_q);
  lengths.seqlen_k = static_cast<int>(args.shape.seqlen_k);
  lengths.total_q = static_cast<int>(args.sequence.total_q);
  lengths.total_k = static_cast<int>(args.sequence.total_k);
  lengths.any = lengths.cu_q.data != nullptr || lengths.cu_k.data != nullptr ||
                lengths.used_q.data != nullptr || lengths.used_k.data != nullptr;
  return lengths;
}

}  // namespace rowmax::cuda::sm90
