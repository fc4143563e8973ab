#include "backend/cuda/sm90/backward/prepare.h"

#include <algorithm>
#include <string>

#include "backend/cuda/sm90/operands.h"
#include "kernel_api/schedule.h"

namespace rowmax::cuda::sm90 {
namespace {

template <class T>
T* region(const KernelLaunch& launch, Region which) {
  return reinterpret_cast<T*>(launch.regions[static_cast<int>(which)]);
}

int* ticket(const KernelLaunch& launch) { return reinterpret_cast<int*>(launch.next_item); }

QueryTiles query_tiles(const KernelLaunch& launch) {
  const AttentionArgs& args = *launch.args;
  const ShapeArgs& shape = args.shape;
  const Schedule& schedule = launch.schedule;
  const int64_t per_head = ceil_div(shape.seqlen_q, schedule.tile_q);
  QueryTiles tiles;
  tiles.ragged = args.sequence.cu_q.data != nullptr;
  tiles.tile_q = static_cast<int>(schedule.tile_q);
  tiles.head_step = static_cast<int>(
      tiles.ragged ? schedule.query_tiles / std::max<int64_t>(1, shape.heads_q) : per_head);
  tiles.batch_step = static_cast<int>(tiles.ragged ? 1 : per_head * shape.heads_q);
  return tiles;
}

QueryGrid query_grid(const KernelLaunch& launch) {
  const ShapeArgs& shape = launch.args->shape;
  const int64_t per_head = ceil_div(shape.seqlen_q, launch.schedule.tile_q);
  QueryGrid grid;
  grid.tiles = query_tiles(launch);
  grid.per_head = make_divider(static_cast<int>(std::max<int64_t>(1, per_head)));
  grid.per_batch = make_divider(static_cast<int>(std::max<int64_t>(1, shape.heads_q)));
  grid.count = static_cast<int>(shape.batch * shape.heads_q * per_head);
  grid.columns = static_cast<int>(launch.schedule.columns);
  return grid;
}

// Key tiles in the order of their adds inside a head, of several heads side by side: as many as
// keep Q, dO and the sums of dQ in this share of L2. The more heads, the fewer tiles of one head
// follow each other through its query tiles.
void set_order(const KernelLaunch& launch, const BackwardConfig& config, BackwardParams& params) {
  constexpr int64_t kL2Bytes = int64_t{32} << 20;
  const ShapeArgs& shape = launch.args->shape;
  const int64_t blocks = ceil_div(shape.seqlen_k, config.tile_k);
  const int64_t units = shape.batch * shape.heads_kv;
  params.group = static_cast<int>(shape.heads_q / shape.heads_kv);
  params.tiles = static_cast<int>(units * blocks);
  params.units_per_batch = make_divider(static_cast<int>(shape.heads_kv));
  const int64_t unit_bytes =
      std::max<int64_t>(1, params.group * shape.seqlen_q * config.head_dim * 8);
  int64_t section = 1;  // a power of two: equal sections
  while (section * 2 * unit_bytes <= kL2Bytes && section * 2 <= units) {
    section *= 2;
  }
  params.sections = make_sections<Divider>(static_cast<int>(units), static_cast<int>(blocks),
                                           static_cast<int>(section), make_divider);
  // Where the band ends at a diagonal, key tiles come to their first query tiles one after the
  // other. Upward the longest tiles start last: not in the last section.
  const BandArgs& band = launch.args->score.band;
  if (band.has_right && !band.has_left) {
    params.upward_units = static_cast<int>((params.sections.count - 1) * section);
  }
}

struct Operand {
  const char* name;
  const TensorArg& tensor;
  MapShape shape;
  ptx::TensorMap& map;
  MapSteps& steps;
};

Status encode_maps(const AttentionArgs& args, const BackwardConfig& config,
                   const MapEncoder& encode, BackwardParams& params) {
  const ShapeArgs& shape = args.shape;
  const SequenceArgs& sequence = args.sequence;
  const bool ragged_q = sequence.cu_q.data != nullptr;
  const bool ragged_k = sequence.cu_k.data != nullptr;
  const MapShape query = {shape.head_dim,
                          shape.heads_q,
                          ragged_q ? sequence.total_q : shape.seqlen_q,
                          ragged_q ? 1 : shape.batch,
                          1,
                          config.tile_q};
  const MapShape key = {shape.head_dim,
                        shape.heads_kv,
                        ragged_k ? sequence.total_k : shape.seqlen_k,
                        ragged_k ? 1 : shape.batch,
                        1,
                        config.tile_k};
  const auto of_v = [&](MapShape operand) {
    operand.dim = shape.head_dim_v;
    return operand;
  };
  MapShape gradient = key;
  gradient.box_seq = 64;  // of one warpgroup
  const Operand operands[] = {
      {"q", args.q, query, params.q, params.q_steps},
      {"dout", args.grad.dout, of_v(query), params.dout, params.dout_steps},
      {"k", args.k, key, params.k, params.k_steps},
      {"v", args.v, of_v(key), params.v, params.v_steps},
      {"dk", args.grad.dk, gradient, params.dk, params.dk_steps},
      {"dv", args.grad.dv, of_v(gradient), params.dv, params.dv_steps},
  };
  for (const Operand& operand : operands) {
    // Without elements, or not wanted: no copy is ever issued.
    if (operand.shape.seq == 0 || operand.shape.batch == 0 || operand.tensor.data == nullptr) {
      continue;
    }
    if (Status status =
            encode(operand.name, operand.tensor, operand.shape, operand.map, operand.steps);
        !status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace

Status prepare_backward(const KernelLaunch& launch, const BackwardConfig& config,
                        const char* kernel, BackwardParams& params) {
  const AttentionArgs& args = *launch.args;
  const ScoreArgs& score = args.score;
  set_order(launch, config, params);
  params.lengths = length_args(args);
  params.band = score.band;
  params.query_tiles = query_tiles(launch);
  params.head_dim = static_cast<int>(args.shape.head_dim);
  params.head_dim_v = static_cast<int>(args.shape.head_dim_v);
  params.scale = static_cast<float>(score.scale);
  params.exponent_scale = static_cast<float>(score.scale * ptx::kLog2EDouble);
  params.stats = region<float>(launch, Region::kRowStats);
  params.dq_sum = region<float>(launch, Region::kDqPartials);
  params.turns = region<int>(launch, Region::kTurns);
  params.ticket = ticket(launch);
  params.dk_rows = rows_of(args.grad.dk);
  params.dv_rows = rows_of(args.grad.dv);
  const Result<MapEncoder> encode = MapEncoder::create(kernel);
  return encode.ok() ? encode_maps(args, config, *encode, params) : encode.status();
}

Status check_operand_maps(const KernelLaunch& launch, const char* kernel) {
  BackwardConfig config;  // boxes of any row: what may be refused does not depend on them
  config.head_dim = config.tile_q = kPanelColumns;
  BackwardParams params;
  const Result<MapEncoder> encode = MapEncoder::create(kernel);
  return encode.ok() ? encode_maps(*launch.args, config, *encode, params) : encode.status();
}

RowStatsParams prepare_row_stats(const KernelLaunch& launch) {
  const AttentionArgs& args = *launch.args;
  RowStatsParams params;
  params.grid = query_grid(launch);
  params.lengths = length_args(args);
  params.out = rows_of(args.out);
  params.dout = rows_of(args.grad.dout);
  params.lse = rows_of(args.lse);
  params.dlse = rows_of(args.grad.dlse);
  params.head_dim_v = static_cast<int>(args.shape.head_dim_v);
  params.lanes = 8;
  while (params.lanes * 8 < params.head_dim_v) {
    params.lanes *= 2;
  }
  params.stats = region<float>(launch, Region::kRowStats);
  params.dq_sum = region<float>(launch, Region::kDqPartials);
  params.clears = !launch.schedule.first_stores;
  params.band = args.score.band;
  params.turns = region<int>(launch, Region::kTurns);
  params.ticket = ticket(launch);
  params.ctas = std::max(1, params.grid.count);  // one zeroes the ticket
  if (args.grad.dsinks != nullptr && args.score.sinks != nullptr) {
    params.sinks = args.score.sinks;
    params.sink_stride = args.score.sink_stride;
    params.sink_sums = region<double>(launch, Region::kSinkPartials);
  }
  return params;
}

ReduceParams prepare_reduce(const KernelLaunch& launch) {
  const AttentionArgs& args = *launch.args;
  ReduceParams params;
  params.grid = query_grid(launch);
  params.lengths = length_args(args);
  params.dq = rows_of(args.grad.dq);
  params.head_dim = static_cast<int>(args.shape.head_dim);
  params.scale = static_cast<float>(args.score.scale);
  params.dq_sum = region<float>(launch, Region::kDqPartials);
  params.batch = static_cast<int>(args.shape.batch);
  params.dq_ctas = args.grad.dq.data != nullptr ? params.grid.count : 0;
  params.ctas = params.dq_ctas;
  if (args.grad.dsinks != nullptr) {
    params.sink_sums = region<double>(launch, Region::kSinkPartials);
    params.dsinks = args.grad.dsinks;
    params.dsink_stride = args.grad.dsink_stride;
    params.ctas += static_cast<int>(args.shape.heads_q);
  }
  return params;
}

}  // namespace rowmax::cuda::sm90
