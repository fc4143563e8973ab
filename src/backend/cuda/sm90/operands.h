// Host side of operands: descriptors of the copy engine, and lengths that the kernel reads.
#pragma once

#include "backend/cuda/ptx/types.cuh"
#include "backend/cuda/sm90/panels.h"
#include "backend/cuda/tile/lengths.cuh"
#include "kernel_api/args.h"
#include "rowmax/status.h"

namespace rowmax::cuda::sm90 {

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
  // For one kernel, which errors name. Looks the driver's function up.
  static Result<MapEncoder> create(const char* kernel);

  // Axes of stride 0 or size 1 get size 1 and step 0, so that any stride is legal for them.
  Status operator()(const char* name, const TensorArg& tensor, const MapShape& shape,
                    ptx::TensorMap& map, MapSteps& steps) const;

 private:
  MapEncoder(void* encode, const char* kernel) : encode_(encode), kernel_(kernel) {}

  void* encode_;  // cuTensorMapEncodeTiled
  const char* kernel_;
};

tile::LengthArgs length_args(const AttentionArgs& args);

inline RowOutput rows_of(const TensorArg& arg) { return {arg.data, arg.batch, arg.seq, arg.head}; }
inline RowOutput rows_of(const RowArg& arg) { return {arg.data, arg.batch, arg.seq, arg.head}; }

}  // namespace rowmax::cuda::sm90
