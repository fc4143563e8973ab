// Bulk tensor copies of 4-D tiles (dim, head, seq, batch), and the fences around them.
#pragma once

#include "backend/cuda/ptx/types.cuh"

namespace rowmax::cuda::ptx {

// Where a tile starts in its tensor.
struct TileCoordinates {
  int dim;
  int head;
  int seq;
  int batch;
};

// L2 eviction hints as the copy instructions take them.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
inline constexpr uint64_t kEvictLast = 0x14F0000000000000ull;

ROWMAX_DEVICE void tma_load(uint32_t destination, const TensorMap* map, uint32_t barrier,
                            const TileCoordinates& at, uint64_t hint) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(at.dim), "r"(at.head), "r"(at.seq), "r"(at.batch), "l"(hint)
      : "memory");
}

// A copy without a map: contiguous, addresses and size multiples of 16 bytes.
ROWMAX_DEVICE void bulk_load(uint32_t destination, const void* source, uint32_t bytes,
                             uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

ROWMAX_DEVICE void tma_store(const TensorMap* map, uint32_t source, const TileCoordinates& at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::
          "l"(map),
      "r"(source), "r"(at.dim), "r"(at.head), "r"(at.seq), "r"(at.batch)
      : "memory");
}

ROWMAX_DEVICE void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

ROWMAX_DEVICE void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most kGroups of this thread's bulk stores still read shared memory.
template <int kGroups>
ROWMAX_DEVICE void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}

// Until at most kGroups of this thread's bulk stores are incomplete.
template <int kGroups>
ROWMAX_DEVICE void bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Makes this thread's ordinary shared-memory writes visible to the copy engine and the tensor
// cores.
ROWMAX_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace rowmax::cuda::ptx
