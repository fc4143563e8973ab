#include "backend/cuda/sm90/forward/prepare.h"

#include <algorithm>
#include <string>

#include "backend/cuda/launch.h"
#include "backend/cuda/sm90/operands.h"
#include "backend/cuda/trace.h"
#include "kernel_api/schedule.h"

namespace rowmax::cuda::sm90 {
namespace {

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

void cut_tiles(const KernelLaunch& launch, const ForwardConfig& config, ForwardParams& params) {
  const Schedule& schedule = launch.schedule;
  if (schedule.cut_ranges == 0) {
    return;
  }
  params.cut.tiles = static_cast<int>(schedule.cut_tiles);
  params.cut.ranges = static_cast<int>(schedule.cut_ranges);
  params.cut.by_ranges = make_divider(params.cut.ranges);
  params.cut.blocks =
      make_divider(static_cast<int>(ceil_div(launch.args->shape.seqlen_k, config.tile_k)));
  params.pieces =
      reinterpret_cast<float*>(launch.regions[static_cast<int>(Region::kPartialStates)]);
  params.piece_tickets =
      reinterpret_cast<uint64_t*>(launch.regions[static_cast<int>(Region::kTurns)]);
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
  q.box_seq = std::min(q.box_seq, q_load_rows(config) / params.order.pack);
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
  params.q_load_positions = q.box_seq;
  params.q_load_bytes = params.order.pack * q.box_seq * kPanelRowBytes * panels(config.head_dim);
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
  params.out_rows = rows_of(args.out);
  params.lse = rows_of(args.lse);
  params.head_dim_v = static_cast<int>(args.shape.head_dim_v);
  params.out_f32 = args.out.dtype == DType::kF32;
  const Result<MapEncoder> encode = MapEncoder::create(kernel);
  if (!encode.ok()) {
    return encode.status();
  }
  if (Status status = encode_maps(args, config, *encode, params); !status.ok()) {
    return status;
  }
  Result<TraceRecord*> trace = begin_trace(launch.stream, kernel);
  if (!trace.ok()) {
    return trace.status();
  }
  params.trace = *trace;
  int multiprocessors = 0;
  if (Status status = usable_multiprocessors(kernel, device, launch.sm_margin, multiprocessors);
      !status.ok()) {
    return status;
  }
  cut_tiles(launch, config, params);
  grid = std::min(params.order.tiles - params.cut.tiles + params.cut.ranges, multiprocessors);
  // Tiles of equal length are assigned by index; others are taken from a counter as CTAs get free.
  if ((config.mask == MaskClass::kBanded || params.lengths.any) && params.order.tiles > grid) {
    params.counter = reinterpret_cast<uint64_t*>(launch.next_item);
  }
  return {};
}

}  // namespace rowmax::cuda::sm90
