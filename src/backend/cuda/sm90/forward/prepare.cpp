#include "backend/cuda/sm90/forward/prepare.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "backend/cuda/check.h"
#include "backend/cuda/trace.h"

namespace rowmax::cuda::sm90 {
namespace {

static_assert(sizeof(CUtensorMap) == sizeof(ptx::TensorMap));

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver is not linked: its entry point is looked up once.
Status find_encode(const char* kernel, EncodeTiled& encode) {
  static std::atomic<EncodeTiled> g_encode{nullptr};
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
  encode = reinterpret_cast<EncodeTiled>(function);
  g_encode.store(encode, std::memory_order_release);
  return {};
}

// A (batch, seq, head, dim) tensor as the copy engine sees it, and the box of one copy.
struct MapShape {
  int64_t dim = 0;
  int64_t heads = 0;
  int64_t seq = 0;
  int64_t batch = 0;
  int box_heads = 1;
  int box_seq = 1;
};

class MapEncoder {
 public:
  MapEncoder(EncodeTiled encode, const char* kernel) : encode_(encode), kernel_(kernel) {}

  // Axes of stride 0 or size 1 get size 1 and step 0, so that any stride is legal for them.
  Status operator()(const char* name, const TensorArg& tensor, MapShape shape, ptx::TensorMap& map,
                    MapSteps& steps) const {
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
    const CUresult result =
        encode_(&encoded,
                tensor.dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                4, tensor.data, sizes, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
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

 private:
  EncodeTiled encode_;
  const char* kernel_;
};

tile::IndexArray index_array(const IndexArg& arg) {
  return {arg.data, arg.stride, arg.is_int64 ? 1 : 0};
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

ScoreParams score_params(const AttentionArgs& args) {
  const ScoreArgs& score = args.score;
  ScoreParams out;
  double natural = score.scale;  // softmax argument = s * natural
  if (score.softcap != 0.0) {
    double factor = score.scale / score.softcap;
    if (!tile::has_powers(factor)) {
      out.multiply = static_cast<float>(factor);
      factor = 1.0;
    }
    out.softcap = tile::make_softcap(factor);
    natural = score.softcap;
  } else if (score.scale < kSmallestScale) {
    out.multiply = static_cast<float>(score.scale);
    natural = 1.0;
    if (score.scale <= -kSmallestScale) {
      out.multiply = -1.0f;
      natural = -score.scale;
    }
  }
  out.exponent_scale = static_cast<float>(natural * ptx::kLog2EDouble);
  out.slopes = score.slopes;
  out.slope_scale = static_cast<float>(1.0 / natural);
  out.slope_batch = score.slope_batch;
  out.slope_head = score.slope_head;
  out.sinks = score.sinks;
  out.sink_stride = score.sink_stride;
  return out;
}

Status tile_order(const KernelLaunch& launch, const ForwardConfig& config, const char* kernel,
                  bool own_lengths, TileOrder& order) {
  // Heads of a section: as many as keep K and V in this share of L2, but enough to have long and
  // short tiles at hand (eight instead of four at 16k: +1 %).
  constexpr int64_t kL2Bytes = int64_t{32} << 20;
  constexpr int64_t kFewestHeads = 8;
  const ShapeArgs& shape = launch.args->shape;
  // Heads that share the memory of Q are no axis of its map.
  order.pack = launch.args->q.head == 0 ? 1 : static_cast<int>(launch.schedule.pack);
  order.positions = config.tile_q / order.pack;
  order.inverse_pack = ((1 << kInversePackShift) + order.pack - 1) / order.pack;
  const int64_t heads_per_kv = shape.heads_q / shape.heads_kv;
  const int64_t blocks = (shape.seqlen_q + order.positions - 1) / order.positions;
  const int64_t units_per_batch = shape.heads_q / order.pack;
  const int64_t units = shape.batch * units_per_batch;
  if (units > INT32_MAX / 2 || units * blocks > INT32_MAX / 2) {
    return Status::unsupported(std::string(kernel) + ": " + std::to_string(units) + " x " +
                               std::to_string(blocks) + " tiles exceed 2^30");
  }
  order.heads_per_kv = make_divider(static_cast<int>(heads_per_kv));
  order.blocks = make_divider(static_cast<int>(blocks));
  order.batch = static_cast<int>(shape.batch);
  order.units_per_batch = make_divider(static_cast<int>(units_per_batch));
  order.tiles = static_cast<int>(units * blocks);
  if (config.mask != MaskClass::kBanded) {
    return {};
  }
  const int64_t head_bytes =
      std::max<int64_t>(1, shape.seqlen_k * (shape.head_dim + shape.head_dim_v) * 2);
  const int64_t fit = std::max(kFewestHeads, kL2Bytes / head_bytes) * (heads_per_kv / order.pack);
  const int64_t group = own_lengths ? units_per_batch : units;
  int64_t section = 1;  // a power of two: equal sections
  while (section * 2 <= fit && section * 2 <= group) {
    section *= 2;
  }
  if (own_lengths) {
    order.section_units = static_cast<int>(section);
  } else {
    order.sections = make_sections<Divider>(static_cast<int>(units), static_cast<int>(blocks),
                                            static_cast<int>(section), make_divider);
  }
  return {};
}

Status encode_maps(const AttentionArgs& args, const ForwardConfig& config, const MapEncoder& encode,
                   ForwardParams& params) {
  const ShapeArgs& shape = args.shape;
  const SequenceArgs& sequence = args.sequence;
  const bool ragged_q = sequence.cu_q.data != nullptr;
  const bool ragged_k = sequence.cu_k.data != nullptr;
  MapShape q = {shape.head_dim,
                shape.heads_q,
                ragged_q ? sequence.total_q : shape.seqlen_q,
                ragged_q ? 1 : shape.batch,
                params.order.pack,
                params.order.positions};
  MapShape k = {shape.head_dim,
                shape.heads_kv,
                ragged_k ? sequence.total_k : shape.seqlen_k,
                ragged_k ? 1 : shape.batch,
                1,
                config.tile_k};
  MapShape v = k;
  v.dim = shape.head_dim_v;
  MapShape out = q;
  out.dim = shape.head_dim_v;
  TensorArg key = args.k;
  TensorArg value = args.v;
  if (k.seq == 0) {  // no key is ever used: any readable row serves, here one of Q
    key.data = args.q.data;
    value.data = args.q.data;
    k.seq = v.seq = k.heads = v.heads = k.batch = v.batch = 1;
    v.dim = std::min(shape.head_dim, shape.head_dim_v);
  }
  if (Status status = encode("q", args.q, q, params.q, params.q_steps); !status.ok()) {
    return status;
  }
  if (Status status = encode("k", key, k, params.k, params.k_steps); !status.ok()) {
    return status;
  }
  if (Status status = encode("v", value, v, params.v, params.v_steps); !status.ok()) {
    return status;
  }
  params.q_tile_bytes =
      params.order.pack * params.order.positions * kPanelRowBytes * panels(config.head_dim);
  if (params.out_f32) {
    return {};
  }
  return encode("out", args.out, out, params.out, params.out_steps);
}

}  // namespace

Status prepare_forward(const KernelLaunch& launch, const ForwardConfig& config, const char* kernel,
                       int device, ForwardParams& params, int& grid) {
  const AttentionArgs& args = *launch.args;
  grid = 0;
  if (args.shape.batch == 0 || args.shape.seqlen_q == 0 || args.shape.heads_q == 0 ||
      (args.sequence.cu_q.data != nullptr && args.sequence.total_q == 0)) {
    return {};
  }
  params.lengths = length_args(args);
  if (Status status = tile_order(launch, config, kernel, params.lengths.any, params.order);
      !status.ok()) {
    return status;
  }
  params.band = args.score.band;
  params.score = score_params(args);
  params.out_rows = {args.out.data, args.out.batch, args.out.seq, args.out.head};
  params.lse = {args.lse.data, args.lse.batch, args.lse.seq, args.lse.head};
  params.head_dim_v = static_cast<int>(args.shape.head_dim_v);
  params.out_f32 = args.out.dtype == DType::kF32;
  EncodeTiled encode = nullptr;
  if (Status status = find_encode(kernel, encode); !status.ok()) {
    return status;
  }
  if (Status status = encode_maps(args, config, MapEncoder(encode, kernel), params); !status.ok()) {
    return status;
  }
  Result<TraceRecord*> trace = begin_trace(launch.stream, kernel);
  if (!trace.ok()) {
    return trace.status();
  }
  params.trace = *trace;
  int multiprocessors = 0;
  const cudaError_t error =
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) {
    return cuda_status(error, "cudaDeviceGetAttribute", kernel);
  }
  grid = std::min(params.order.tiles, std::max(1, multiprocessors - launch.sm_margin));
  // Tiles of equal length are assigned by index; others are taken from a counter as CTAs get free.
  if ((config.mask == MaskClass::kBanded || params.lengths.any) && params.order.tiles > grid) {
    params.counter = reinterpret_cast<uint64_t*>(launch.next_item);
  }
  return {};
}

}  // namespace rowmax::cuda::sm90
