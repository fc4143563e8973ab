// Barriers of the sm90 backward kernel as a model on the CPU: no role waits forever, and no tile of
// keys is overwritten before all roles are done with it. The table in backward/traits.cuh has the
// barriers.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "cuda_roles.h"

namespace rowmax::test {
namespace {

constexpr int kTileSlots = 3;
constexpr int kTurnSlots = 2;
constexpr int kStages = 2;
constexpr int kDsBuffers = 2;
constexpr int kKeyGroups = 2;
const std::suspend_always kPause;

// An mbarrier: a phase ends with the last of its arrivals, and a wait for a parity passes while the
// phase of that parity is over and the next one is not.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count), left_(count) {}
  void arrive() {
    if (--left_ == 0) {
      left_ = count_;
      ++phases_;
    }
  }
  bool passes(int parity) const { return (phases_ & 1) != parity; }

 private:
  int count_;
  int left_;
  int phases_ = 0;
};

template <int kRing>
int parity(int used) {
  return used / kRing & 1;
}

// One CTA. Warps of a warpgroup arrive one by one.
struct Model {
  bool keeper_awaits_keys = true;
  std::vector<int> steps;  // of each key tile
  std::array<Barrier, kTileSlots> tile_full{Barrier(1), Barrier(1), Barrier(1)};
  Barrier keys_full{1};
  Barrier keys_empty{kKeyGroups + 1};
  Barrier keys_read{4};
  std::array<Barrier, kStages> full{Barrier(1), Barrier(1)};
  std::array<Barrier, kStages> empty{Barrier(4 * kKeyGroups), Barrier(4 * kKeyGroups)};
  std::array<Barrier, kDsBuffers> ds_full{Barrier(4 * kKeyGroups), Barrier(4 * kKeyGroups)};
  std::array<Barrier, kDsBuffers> ds_empty{Barrier(4), Barrier(4)};
  std::array<Barrier, kTurnSlots> turn{Barrier(1), Barrier(1)};
  std::array<Barrier, kTurnSlots> added{Barrier(4), Barrier(4)};
  std::array<int, kTileSlots> slot{-1, -1, -1};   // which tile it describes
  std::array<int, kTurnSlots> turn_info{-1, -1};  // of which step
  int keys = -1;                                  // which tile's K and V are in shared memory
  int64_t events = 0;
  int faults = 0;  // reads of another tile than the role's own

  int tiles() const { return static_cast<int>(steps.size()); }
  void expect(int found, int own) { faults += found != own ? 1 : 0; }
  void arrive(Barrier& barrier) {
    barrier.arrive();
    ++events;
  }
};

size_t ring(int used) { return static_cast<size_t>(used % 2); }
size_t place(int tile) { return static_cast<size_t>(tile % kTileSlots); }

Role load(Model& m) {
  int loads = 0;
  for (int tile = 0; tile <= m.tiles(); ++tile) {
    m.slot[place(tile)] = tile;
    m.arrive(m.tile_full[place(tile)]);
    if (tile == m.tiles()) {
      break;
    }
    while (!m.keys_empty.passes((tile & 1) ^ 1)) {
      co_await kPause;
    }
    m.keys = tile;
    m.arrive(m.keys_full);
    for (int step = 0; step < m.steps[static_cast<size_t>(tile)]; ++step, ++loads) {
      while (!m.empty[ring(loads)].passes(parity<kStages>(loads) ^ 1)) {
        co_await kPause;
      }
      m.arrive(m.full[ring(loads)]);
    }
  }
}

Role keep_turns(Model& m) {
  int used = 0;
  for (int tile = 0;; ++tile) {
    while (!m.tile_full[place(tile)].passes(parity<kTileSlots>(tile))) {
      co_await kPause;
    }
    m.expect(m.slot[place(tile)], tile);
    if (tile == m.tiles()) {
      break;
    }
    while (m.keeper_awaits_keys && !m.keys_full.passes(tile & 1)) {
      co_await kPause;
    }
    m.arrive(m.keys_empty);
    for (int step = 0; step < m.steps[static_cast<size_t>(tile)]; ++step, ++used) {
      m.expect(m.slot[place(tile)], tile);
      m.turn_info[ring(used)] = used;
      m.arrive(m.turn[ring(used)]);
      if (step > 0) {
        while (!m.added[ring(used - 1)].passes(parity<kTurnSlots>(used - 1))) {
          co_await kPause;
        }
      }
      co_await kPause;
      m.expect(m.slot[place(tile)], tile);  // the next step of the walk
    }
    while (m.steps[static_cast<size_t>(tile)] > 0 &&
           !m.added[ring(used - 1)].passes(parity<kTurnSlots>(used - 1))) {
      co_await kPause;
    }
  }
}

// One warp of the query warpgroup.
Role add_queries(Model& m) {
  int used = 0;
  for (int tile = 0;; ++tile) {
    while (!m.tile_full[place(tile)].passes(parity<kTileSlots>(tile))) {
      co_await kPause;
    }
    m.expect(m.slot[place(tile)], tile);
    if (tile == m.tiles()) {
      break;
    }
    while (!m.keys_full.passes(tile & 1)) {
      co_await kPause;
    }
    for (int step = 0; step < m.steps[static_cast<size_t>(tile)]; ++step, ++used) {
      while (!m.ds_full[ring(used)].passes(parity<kDsBuffers>(used))) {
        co_await kPause;
      }
      m.expect(m.keys, tile);
      m.arrive(m.ds_empty[ring(used)]);
      while (!m.turn[ring(used)].passes(parity<kTurnSlots>(used))) {
        co_await kPause;
      }
      m.expect(m.turn_info[ring(used)], used);
      m.expect(m.slot[place(tile)], tile);
      m.arrive(m.added[ring(used)]);
    }
    m.arrive(m.keys_read);
  }
}

// A key warpgroup, its warps in step.
Role sum_keys(Model& m) {
  int used = 0;
  for (int tile = 0;; ++tile) {
    while (!m.tile_full[place(tile)].passes(parity<kTileSlots>(tile))) {
      co_await kPause;
    }
    m.expect(m.slot[place(tile)], tile);
    if (tile == m.tiles()) {
      break;
    }
    while (!m.keys_full.passes(tile & 1)) {
      co_await kPause;
    }
    for (int step = 0; step < m.steps[static_cast<size_t>(tile)]; ++step, ++used) {
      while (!m.full[ring(used)].passes(parity<kStages>(used)) ||
             !m.ds_empty[ring(used)].passes(parity<kDsBuffers>(used) ^ 1)) {
        co_await kPause;
      }
      m.expect(m.keys, tile);
      for (int warp = 0; warp < 4; ++warp) {
        m.arrive(m.ds_full[ring(used)]);
      }
      co_await kPause;
      for (int warp = 0; warp < 4; ++warp) {
        m.arrive(m.empty[ring(used)]);
      }
    }
    while (!m.keys_read.passes(tile & 1)) {
      co_await kPause;
    }
    for (int turns = 0; turns < 3; ++turns) {  // dK and dV staged in place of K and V, copied out
      m.expect(m.keys, tile);
      m.expect(m.slot[place(tile)], tile);
      co_await kPause;
    }
    m.arrive(m.keys_empty);
  }
}

// Faults of a run in a random interleaving; -1: some role waits forever.
int faults(bool keeper_awaits_keys, std::mt19937& random) {
  Model model;
  model.keeper_awaits_keys = keeper_awaits_keys;
  model.steps.resize(1 + random() % 6);
  for (int& steps : model.steps) {
    steps = static_cast<int>(random() % 6);
  }
  std::vector<Role> roles;
  roles.push_back(load(model));
  roles.push_back(keep_turns(model));
  for (int warp = 0; warp < 4; ++warp) {
    roles.push_back(add_queries(model));
  }
  for (int group = 0; group < kKeyGroups; ++group) {
    roles.push_back(sum_keys(model));
  }
  return run_roles(roles, model.events, random) ? model.faults : -1;
}

TEST(CudaBackwardRings, NoRoleWaitsForeverOrReadsAnotherTile) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    ASSERT_EQ(faults(true, random), 0) << round;
  }
}

// An arrival at kKeysEmpty before a tile's keys are loaded counts for the tile before: keys were
// loaded over a gradient that was still being copied out.
TEST(CudaBackwardRings, AnArrivalTooEarlyIsFound) {
  std::mt19937 random(11);
  int found = 0;
  for (int round = 0; round < 500; ++round) {
    found += faults(false, random) != 0 ? 1 : 0;
  }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace rowmax::test
