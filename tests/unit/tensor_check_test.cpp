// Memory that tensors cover, against enumeration of every element.
#include "api/tensor_check.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace rowmax {
namespace {

constexpr int kBufferElements = 400;

// Offsets of all elements, in elements from `data`.
std::vector<int64_t> offsets_of(const ConstTensorView& view) {
  std::vector<int64_t> offsets = {0};
  for (int axis = 0; axis < view.rank; ++axis) {
    std::vector<int64_t> next;
    for (const int64_t offset : offsets) {
      for (int64_t i = 0; i < view.sizes[axis]; ++i) {
        next.push_back(offset + i * view.strides[axis]);
      }
    }
    offsets = next;
  }
  return offsets;
}

struct Placed {
  ConstTensorView view;
  TensorRule rule;
  std::set<int64_t> elements;  // of the buffer
  bool self_overlap = false;
};

// A random view of three axes inside the buffer.
Placed random_view(std::mt19937& random, std::vector<float>& buffer) {
  const auto up_to = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(most + 1));
  };
  for (;;) {
    Placed placed;
    placed.view.rank = 3;
    placed.rule.name = "x";
    placed.rule.rank = 3;
    for (int axis = 0; axis < 3; ++axis) {
      placed.view.sizes[axis] = placed.rule.sizes[axis] = 1 + up_to(3);
      placed.view.strides[axis] = axis == 2 ? 1 : up_to(60) - 20;
    }
    const int64_t base = up_to(kBufferElements - 1);
    std::vector<int64_t> offsets = offsets_of(placed.view);
    bool inside = true;
    for (const int64_t offset : offsets) {
      inside = inside && base + offset >= 0 && base + offset < kBufferElements;
      placed.elements.insert(base + offset);
    }
    if (inside) {
      placed.view.data = buffer.data() + base;
      placed.self_overlap = placed.elements.size() != offsets.size();
      return placed;
    }
  }
}

bool share_elements(const Placed& a, const Placed& b) {
  for (const int64_t element : a.elements) {
    if (b.elements.count(element) > 0) {
      return true;
    }
  }
  return false;
}

TEST(TensorCheck, OverlapIsNeverMissed) {
  std::mt19937 random(1);
  std::vector<float> buffer(kBufferElements);
  int overlapping = 0;
  int apart = 0;
  for (int round = 0; round < 20000; ++round) {
    const Placed a = random_view(random, buffer);
    const Placed b = random_view(random, buffer);
    Footprint footprint_a;
    Footprint footprint_b;
    ASSERT_TRUE(check_tensor(a.view, a.rule, Access::kRead, &footprint_a).ok());
    ASSERT_TRUE(check_tensor(b.view, b.rule, Access::kRead, &footprint_b).ok());
    const bool found = may_overlap(footprint_a, footprint_b);
    ASSERT_EQ(found, may_overlap(footprint_b, footprint_a));
    if (share_elements(a, b)) {
      ++overlapping;
      ASSERT_TRUE(found) << "round " << round;
    } else {
      apart += found ? 0 : 1;
    }
    const Status written = check_tensor(a.view, a.rule, Access::kWrite, &footprint_a);
    if (a.self_overlap) {
      ASSERT_FALSE(written.ok()) << "round " << round;
    }
  }
  EXPECT_GT(overlapping, 0);
  EXPECT_GT(apart, 0);
}

// Views that a program makes from dense buffers by slicing and transposing are never refused.
TEST(TensorCheck, SlicesAndTransposesAreOutputs) {
  std::mt19937 random(2);
  std::vector<float> buffer(4096);
  for (int round = 0; round < 2000; ++round) {
    int64_t sizes[3];
    int64_t strides[3];
    int64_t stride = 1;
    for (int axis = 2; axis >= 0; --axis) {
      const int64_t full = 1 + static_cast<int64_t>(random() % 8);
      const int64_t step = axis == 2 ? 1 : 1 + static_cast<int64_t>(random() % 2);
      sizes[axis] = (full + step - 1) / step;
      strides[axis] = stride * step;
      stride *= full;
    }
    if (random() % 2 == 0) {
      std::swap(sizes[0], sizes[1]);
      std::swap(strides[0], strides[1]);
    }
    ConstTensorView view;
    TensorRule rule;
    view.data = buffer.data();
    view.rank = rule.rank = 3;
    for (int axis = 0; axis < 3; ++axis) {
      view.sizes[axis] = rule.sizes[axis] = sizes[axis];
      view.strides[axis] = strides[axis];
    }
    Footprint footprint;
    const Status status = check_tensor(view, rule, Access::kWrite, &footprint);
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

}  // namespace
}  // namespace rowmax
