// Rings of K and V stages and turns of the sm90 forward kernel as a model on the CPU: warpgroups
// that skip blocks on either side of a tile must never wait for each other in a circle.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "backend/cuda/sm90/forward/config.h"
#include "backend/cuda/sm90/tile_order.h"
#include "cuda_roles.h"

namespace rowmax::test {
namespace {

using cuda::sm90::Element;
using cuda::sm90::ForwardConfig;
using cuda::sm90::KeyBlocks;
using cuda::sm90::LoopBlocks;

struct Tile {
  KeyBlocks blocks;
  std::vector<LoopBlocks> loops;  // of each warpgroup
};

// One CTA. Counts stand for barriers: blocks loaded, and how many warpgroups have released each.
struct Model {
  explicit Model(const ForwardConfig& row, std::vector<Tile> all)
      : config(row), tiles(std::move(all)) {
    for (const Tile& tile : tiles) {
      total += tile.blocks.end - tile.blocks.begin;
    }
    k_released.resize(static_cast<size_t>(total));
    v_released.resize(static_cast<size_t>(total));
  }
  const ForwardConfig& config;
  std::vector<Tile> tiles;
  int total = 0;
  int k_loaded = 0;
  int v_loaded = 0;
  std::vector<int> k_released;
  std::vector<int> v_released;
  // One Q buffer: tiles whose rows of a warpgroup have been loaded, and read for the last time.
  std::vector<int> q_loaded = std::vector<int>(static_cast<size_t>(config.warpgroups));
  std::vector<int> q_freed = std::vector<int>(static_cast<size_t>(config.warpgroups));
  int turn = 0;
  int64_t events = 0;  // any step forward

  void release(std::vector<int>& released, int block) {
    ++released[static_cast<size_t>(block)];
    ++events;
  }
  void pass_turn(int group) {
    turn = (group + 1) % config.warpgroups;
    ++events;
  }
};

Role load(Model& model, int& loaded, const std::vector<int>& released) {
  while (loaded < model.total) {
    const int before = loaded - model.config.stages;  // the stage's block before
    while (before >= 0 && released[static_cast<size_t>(before)] < model.config.warpgroups) {
      co_await std::suspend_always();
    }
    ++loaded;
    ++model.events;
  }
}

// Warp 2 with one Q buffer; the end of the tiles comes the same way. With several it is ahead.
Role load_q(Model& model) {
  for (int tile = 0; tile <= static_cast<int>(model.tiles.size()); ++tile) {
    for (int group = 0; group < model.config.warpgroups; ++group) {
      const auto at = static_cast<size_t>(group);
      while (cuda::sm90::q_buffers(model.config) == 1 && model.q_freed[at] < tile) {
        co_await std::suspend_always();
      }
      ++model.q_loaded[at];
      ++model.events;
    }
  }
}

// run_tiles() of mainloop.cuh, without arithmetic.
Role consume(Model& model, int group) {
  const std::suspend_always pause;
  int blocks = 0;      // K blocks done
  int skipped = 0;     // of the tile at hand, those left of the tile before included
  bool drains = true;  // no product of the tile before is left to do beside this one's first
  const auto own = static_cast<size_t>(group);
  for (size_t t = 0; t < model.tiles.size(); ++t) {
    const Tile& tile = model.tiles[t];
    const LoopBlocks& loop = tile.loops[static_cast<size_t>(group)];
    const int last = blocks - 1;  // V of the tile before
    const bool beside = !drains;
    skipped += tile.blocks.end - loop.end;
    for (int i = 0; i < skipped; ++i, ++blocks) {  // skip_keys()
      while (model.k_loaded <= blocks || (beside && model.turn != group)) {
        co_await pause;
      }
      if (beside) {
        model.pass_turn(group);
      }
      model.release(model.k_released, blocks);
    }
    while (model.k_loaded <= blocks || model.q_loaded[own] <= static_cast<int>(t)) {
      co_await pause;
    }
    if (beside) {
      while (model.turn != group || model.v_loaded <= last) {
        co_await pause;
      }
      model.pass_turn(group);
      model.release(model.v_released, last);
    }
    model.release(model.k_released, blocks);
    ++blocks;
    for (int i = 0; i < skipped && !beside; ++i) {  // first_block(): their turns
      while (model.turn != group) {
        co_await pause;
      }
      model.pass_turn(group);
    }
    for (int block = blocks - 1 - skipped; block < blocks - 1; ++block) {  // skip_values()
      while (model.v_loaded <= block) {
        co_await pause;
      }
      model.release(model.v_released, block);
    }
    for (int j = loop.end - 2; j >= loop.begin; --j, ++blocks) {  // step()
      while (model.k_loaded <= blocks || model.turn != group || model.v_loaded <= blocks - 1) {
        co_await pause;
      }
      model.pass_turn(group);
      co_await pause;
      model.release(model.k_released, blocks);
      model.release(model.v_released, blocks - 1);
    }
    model.q_freed[own] = static_cast<int>(t) + 1;
    ++model.events;
    while (model.q_loaded[own] <= static_cast<int>(t) + 1) {  // next()
      co_await pause;
    }
    skipped = loop.begin - tile.blocks.begin;
    drains = skipped > 0 || t + 1 == model.tiles.size();
    if (drains) {  // last_block()
      while (model.v_loaded <= blocks - 1 || model.turn != group) {
        co_await pause;
      }
      model.pass_turn(group);
      model.release(model.v_released, blocks - 1);
    }
  }
  for (int i = 0; i < skipped; ++i, ++blocks) {  // finish_skipped()
    while (model.k_loaded <= blocks || model.turn != group) {
      co_await pause;
    }
    model.pass_turn(group);
    model.release(model.k_released, blocks);
  }
  while (model.v_loaded < blocks) {
    co_await pause;
  }
}

bool runs_through(Model& model, std::mt19937& random) {
  std::vector<Role> roles;
  roles.push_back(load(model, model.k_loaded, model.k_released));
  roles.push_back(load(model, model.v_loaded, model.v_released));
  roles.push_back(load_q(model));
  for (int group = 0; group < model.config.warpgroups; ++group) {
    roles.push_back(consume(model, group));
  }
  return run_roles(roles, model.events, random);
}

// Tiles of a random problem, in some order, as a CTA may meet them.
std::vector<Tile> random_tiles(const ForwardConfig& c, std::mt19937& random) {
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  const int seqlen_q = 1 + below(1500);
  const int seqlen_k = below(2) == 0 ? seqlen_q : 1 + below(1500);
  BandArgs args;
  args.has_left = below(3) != 0;
  args.left = below(1300) - 100;
  args.has_right = below(3) != 0;
  args.right =
      below(3) == 0 ? 0 : below(300) - static_cast<int>(std::clamp<int64_t>(args.left, 0, 100));
  args.top_left = below(2) == 0;
  const RowBand band = resolve_band(args, seqlen_q, seqlen_k);
  const int hi = band.has_hi ? static_cast<int>(band.hi) : 1 << 28;
  const int lo = band.has_lo ? static_cast<int>(band.lo) : -(1 << 28);
  std::vector<Tile> tiles;
  for (int position = 0; position < seqlen_q; position += c.tile_q) {
    const int rows = std::min(c.tile_q, seqlen_q - position);
    const KeyRange keys = block_keys(band, position, position + rows, seqlen_k);
    Tile tile;
    tile.blocks = cuda::sm90::tile_key_blocks(static_cast<int>(keys.begin),
                                              static_cast<int>(keys.end), c.tile_k);
    for (int group = 0; group < c.warpgroups; ++group) {
      const int top = position + 64 * group;
      tile.loops.push_back(cuda::sm90::loop_blocks(
          tile.blocks, {{top + lo, top + hi + 1}, {top + 63 + lo, top + 63 + hi + 1}}, c.tile_k,
          cuda::sm90::skips_of(c)));
    }
    tiles.push_back(tile);
    tiles.push_back(tile);  // of another head
  }
  std::shuffle(tiles.begin(), tiles.end(), random);
  tiles.resize(std::min<size_t>(tiles.size(), 12));
  return tiles;
}

TEST(CudaRings, WarpgroupsThatSkipBlocksNeverBlockEachOther) {
  std::mt19937 random(7);
  const auto check = [&](const char* name, const ForwardConfig& config) {
    const bool skips = config.mask == MaskClass::kBanded && config.tile_q > config.tile_k;
    if (config.warpgroups == 1 || (!skips && cuda::sm90::q_buffers(config) > 1)) {
      return;
    }
    for (int round = 0; round < 200; ++round) {
      Model model(config, random_tiles(config, random));
      ASSERT_TRUE(runs_through(model, random)) << name;
      EXPECT_EQ(std::count(model.k_released.begin(), model.k_released.end(), config.warpgroups),
                model.total);
    }
  };
#define ROWMAX_INSTANCE(name, ...) check(#name, ForwardConfig{__VA_ARGS__});
#include "backend/cuda/sm90/forward/instances.def"
#undef ROWMAX_INSTANCE
}

}  // namespace
}  // namespace rowmax::test
