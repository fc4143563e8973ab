// Offsets that no 32-bit integer holds: every tensor of a case with one axis spread over more than
// 2^31 elements gives the bits of the packed tensors, and nothing between them is written.
#include <string>
#include <vector>

#include "device_case.h"
#include "testkit/runner.h"

namespace rowmax::test {
namespace {

enum class FarAxis { kBatch, kRow, kHead };

// Three batch elements, four heads or 160 rows end past 2^32 elements of 16 bits, two heads past
// 2^31.
constexpr int64_t kFarBytes = (int64_t{1} << 32) + 128;
constexpr int64_t kFarRowBytes = (int64_t{1} << 26) + 128;
constexpr size_t kArenaBytes = size_t{18} << 30;

// Axis of a view that a far axis is; -1: none. Views of fewer axes have no batch, those of
// statistics end with their rows.
int axis_of(const ConstTensorView& view, FarAxis far, bool statistics) {
  const int outer = statistics ? view.rank - 2 : view.rank - 3;  // after the batch axis, if any
  switch (far) {
    case FarAxis::kBatch:
      return outer == 1 ? 0 : -1;
    case FarAxis::kRow:
      return statistics ? -1 : outer;
    case FarAxis::kHead:
      return statistics ? outer : outer + 1;
  }
  return -1;
}

// Tensors of a case in an arena where one axis of each has a stride of `period` bytes. They lie
// side by side in one period, so the memory that they need is that of one.
class FarTensors {
 public:
  FarTensors(const DeviceCase& spec, FarAxis far, char* arena)
      : tensors(spec.tensors),
        arena_(arena),
        far_(far),
        period_(far == FarAxis::kRow ? kFarRowBytes : kFarBytes) {
    const bool forward = spec.problem().op == Op::kForward;
    place(tensors.q, false, false);
    place(tensors.k, false, false);
    place(tensors.v, false, false);
    place(tensors.out, false, forward);
    place(tensors.lse, true, forward);
    place(tensors.grad.dout, false, false);
    place(tensors.grad.dlse, true, false);
    place(tensors.grad.dq, false, true);
    place(tensors.grad.dk, false, true);
    place(tensors.grad.dv, false, true);
  }

  // The outputs to where the case has them, then poison over everything.
  void take_back() const {
    for (const Moved& moved : moved_) {
      if (moved.written) {
        copy_view(moved.packed, moved.far);
      }
      poison_view(moved.far);
    }
  }

  AttentionTensors tensors;

 private:
  struct Moved {
    TensorView packed;
    TensorView far;
    bool written = false;
  };

  template <class View>
  void place(View& view, bool statistics, bool written) {
    const int far = axis_of(view, far_, statistics);
    if (!view.present() || far < 0) {
      return;
    }
    Moved moved;
    moved.written = written;
    moved.packed.data = const_cast<void*>(static_cast<const void*>(view.data));
    moved.packed.dtype = view.dtype;
    moved.packed.rank = view.rank;
    int64_t packed = 1;
    const auto bytes = static_cast<int64_t>(size_of(view.dtype));
    moved.far = moved.packed;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      moved.packed.sizes[axis] = moved.far.sizes[axis] = view.sizes[axis];
      moved.packed.strides[axis] = view.strides[axis];
      moved.far.strides[axis] = axis == far ? period_ / bytes : packed;
      packed *= axis == far ? 1 : view.sizes[axis];
    }
    moved.far.data = arena_ + used_;
    used_ += (packed * bytes + 127) / 128 * 128;
    if (!written) {
      copy_view(moved.far, moved.packed);
    }
    for (int axis = 0; axis < view.rank; ++axis) {
      view.strides[axis] = moved.far.strides[axis];
    }
    view.data = moved.far.data;
    moved_.push_back(moved);
  }

  char* arena_;
  FarAxis far_;
  int64_t period_;
  int64_t used_ = 0;
  std::vector<Moved> moved_;
};

class FarOffsets : public DeviceTest {
 protected:
  // Every kernel that serves the case.
  void run(const char* text, const std::vector<FarAxis>& axes) {
    SCOPED_TRACE(text);
    DeviceBuffer arena(kArenaBytes);
    ASSERT_EQ(arena.bytes(), kArenaBytes);
    const DeviceCase chosen(text, device_);
    for (const std::string& kernel : testkit::serving_kernels(chosen.plan)) {
      SCOPED_TRACE(kernel);
      DeviceCase spec(text, device_, kernel);
      const testkit::OutputValues packed = spec.run();
      spec.judge();
      for (const FarAxis axis : axes) {
        spec.load();
        const FarTensors far(spec, axis, arena.data());
        const Status status = try_execute(spec, far.tensors);
        EXPECT_TRUE(status.ok()) << status.message();
        far.take_back();
        EXPECT_EQ(different_outputs(packed, spec.fetch()), "")
            << "far axis " << static_cast<int>(axis);
        EXPECT_EQ(written_words(arena.data(), static_cast<int64_t>(kArenaBytes)), 0u);
      }
    }
  }
};

const std::vector<FarAxis> kAllAxes = {FarAxis::kBatch, FarAxis::kRow, FarAxis::kHead};

TEST_F(FarOffsets, BC054_Forward) {
  run("forward bf16 b3 hq4 hkv2 s160 d64 causal", kAllAxes);
  run("forward f16 b3 hq4 hkv2 sq160 sk200 d128", kAllAxes);
  run("forward bf16 b3 h4 s160 d256 causal", kAllAxes);
}

TEST_F(FarOffsets, BC053_Backward) {
  run("backward bf16 b3 hq4 hkv2 s160 d64 dlse", kAllAxes);
  run("backward bf16 b3 hq4 hkv2 sq160 sk200 d128 causal", kAllAxes);
}

TEST_F(FarOffsets, BC061_RaggedRows) {
  const std::vector<FarAxis> axes = {FarAxis::kRow, FarAxis::kHead};
  run("forward bf16 b3 h4 sq90 sk90 d128 ragged_q=200 ragged_k=210 causal", axes);
  run("backward bf16 b3 h4 sq90 sk90 d64 ragged_q=200 ragged_k=210 causal", axes);
  run("backward bf16 b3 h4 sq90 sk90 d128 ragged_q=200 ragged_k=210", axes);
}

}  // namespace
}  // namespace rowmax::test
