// Visits of the sm90 backward kernel: every visible pair is computed, and the turns at every tile
// of dQ pass from its first key tile to its last without a gap, in the order in which tiles start.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "backend/cuda/sm90/backward/config.h"
#include "backend/cuda/sm90/backward/visits.h"
#include "backend/cuda/sm90/tile_order.h"
#include "backend/cuda/tile/lengths.cuh"

namespace rowmax::test {
namespace {

using cuda::sm90::BackwardConfig;
using cuda::sm90::Element;
using cuda::sm90::first_visitor;
using cuda::sm90::last_visitor;
using cuda::sm90::TileRange;
using cuda::sm90::visited_tiles;
namespace tile = cuda::tile;

struct NamedRow {
  const char* name;
  BackwardConfig config;
};

#define ROWMAX_INSTANCE(name, ...) NamedRow{#name, BackwardConfig{__VA_ARGS__}},
const NamedRow kRows[] = {
#include "backend/cuda/sm90/backward/instances.def"
};
#undef ROWMAX_INSTANCE

TEST(CudaVisits, RowsFitTheirMultiprocessor) {
  for (const NamedRow& row : kRows) {
    EXPECT_TRUE(cuda::sm90::is_valid(row.config)) << row.name;
  }
}

struct Shape {
  RowBand band;
  int q_len;
  int k_len;
  int tile_q;
  int tile_k;
};

Shape random_shape(std::mt19937& random) {
  const auto below = [&random](int n) { return static_cast<int>(random() % n); };
  Shape shape;
  shape.q_len = below(900);
  shape.k_len = below(900);
  shape.tile_q = below(2) == 0 ? 64 : 128;
  shape.tile_k = 128;
  BandArgs band;
  band.has_left = below(2) == 0;
  band.has_right = below(2) == 0;
  band.left = below(600) - 200;
  band.right = below(600) - 200;
  band.top_left = below(3) == 0;
  shape.band = resolve_band(band, shape.q_len, shape.k_len);
  return shape;
}

std::vector<TileRange> visits_of(const Shape& shape) {
  std::vector<TileRange> visits;
  for (int key = 0; key < shape.k_len; key += shape.tile_k) {
    const int end = std::min(key + shape.tile_k, shape.k_len);
    visits.push_back(visited_tiles(shape.band, key, end, shape.q_len, shape.tile_q));
  }
  return visits;
}

bool visits(const TileRange& range, int tile) { return range.begin <= tile && tile < range.end; }

TEST(CudaVisits, EveryVisiblePairIsVisited) {
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    const Shape shape = random_shape(random);
    const std::vector<TileRange> ranges = visits_of(shape);
    for (const TileRange& range : ranges) {
      ASSERT_LE(0, range.begin);
      ASSERT_LE(range.begin, range.end);
      ASSERT_LE(range.end, (shape.q_len + shape.tile_q - 1) / shape.tile_q);
    }
    for (int row = 0; row < shape.q_len; ++row) {
      const KeyRange keys = row_keys(shape.band, row, shape.k_len);
      for (int64_t key = keys.begin; key < keys.end; key += 1) {
        ASSERT_TRUE(visits(ranges[static_cast<size_t>(key) / 128], row / shape.tile_q))
            << "row " << row << ", key " << key;
      }
    }
  }
}

// First and last key tile that visit a query tile, as the kernel computes them.
std::pair<int, int> ends_of(const Shape& shape, int number) {
  const int begin = tile::saturate_offset(shape.band.has_lo ? shape.band.lo : -kBandLimit);
  const int end = tile::saturate_offset(shape.band.has_hi ? shape.band.hi : kBandLimit);
  const int row = number * shape.tile_q;
  return {first_visitor(begin, row, shape.tile_k),
          last_visitor(end, std::min(row + shape.tile_q, shape.q_len),
                       (shape.k_len - 1) / shape.tile_k, shape.tile_k)};
}

TEST(CudaVisits, TurnsPassFromTheFirstVisitorToTheLastWithoutAGap) {
  std::mt19937 random(6);
  for (int round = 0; round < 4000; ++round) {
    const Shape shape = random_shape(random);
    const std::vector<TileRange> ranges = visits_of(shape);
    for (int number = 0; number * shape.tile_q < shape.q_len; ++number) {
      const auto [first, last] = ends_of(shape, number);
      int turn = first;
      for (int keys = 0; keys < static_cast<int>(ranges.size()); ++keys) {
        if (visits(ranges[static_cast<size_t>(keys)], number)) {
          ASSERT_EQ(turn, keys) << "query tile " << number << " of " << shape.q_len << " x "
                                << shape.k_len;
          ++turn;
        }
      }
      const int row = number * shape.tile_q;
      const KeyRange keys =
          block_keys(shape.band, row, std::min(row + shape.tile_q, shape.q_len), shape.k_len);
      const bool visited = turn != first;
      ASSERT_EQ(visited, keys.begin < keys.end);  // else its sum is cleared
      if (visited) {
        ASSERT_EQ(turn - 1, last) << "query tile " << number << " of " << shape.q_len << " x "
                                  << shape.k_len;
      }
    }
  }
}

// One sequence of a batch as the kernel numbers its query tiles.
struct Sequence {
  Shape shape;
  int first_query_tile;
  std::vector<TileRange> visits;
  bool upward;
};

// A CTA at work: the key tile in place `place` of a sequence's order, `steps` of its query tiles
// done.
struct Worker {
  int sequence = -1;  // none: takes the next ticket
  int place = 0;
  int steps = 0;
};

// Runs `workers` CTAs, one step of a random one at a time; returns the steps that were done when
// none could go on.
int run_turns(const std::vector<Sequence>& batch, int workers, std::mt19937& random) {
  std::vector<std::pair<int, int>> tickets;
  for (int sequence = 0; sequence < static_cast<int>(batch.size()); ++sequence) {
    const auto count = static_cast<int>(batch[static_cast<size_t>(sequence)].visits.size());
    for (int place = 0; place < count; ++place) {
      tickets.emplace_back(sequence, place);
    }
  }
  std::vector<int> turns(4096);
  std::vector<Worker> pool(static_cast<size_t>(workers));
  size_t next = 0;
  int done = 0;
  for (int idle = 0; idle < 200 * workers;) {
    Worker& worker = pool[random() % pool.size()];
    ++idle;
    if (worker.sequence < 0) {
      if (next < tickets.size()) {
        worker = {tickets[next].first, tickets[next].second, 0};
        ++next;
        idle = 0;
      }
      continue;
    }
    const Sequence& sequence = batch[static_cast<size_t>(worker.sequence)];
    const int last_block = static_cast<int>(sequence.visits.size()) - 1;
    const int keys = sequence.upward ? last_block - worker.place : worker.place;
    const TileRange& range = sequence.visits[static_cast<size_t>(keys)];
    if (range.begin + worker.steps == range.end) {
      worker.sequence = -1;
      idle = 0;
      continue;
    }
    const int number = sequence.upward ? range.begin + worker.steps : range.end - 1 - worker.steps;
    const auto [first, last] = ends_of(sequence.shape, number);
    int& turn = turns[static_cast<size_t>(sequence.first_query_tile + number)];
    if (keys == (sequence.upward ? last : first) || turn >= worker.place) {
      turn = std::max(turn, worker.place + 1);
      ++worker.steps;
      ++done;
      idle = 0;
    }
  }
  return done;
}

// However many CTAs run, and even where sequences overlap and share turns.
TEST(CudaVisits, NobodyWaitsForever) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Sequence> batch;
    int expected = 0;
    for (int n = 0; n < 3; ++n) {
      Sequence sequence;
      sequence.shape = random_shape(random);
      sequence.first_query_tile = round % 2 == 0 ? 100 * n : static_cast<int>(random() % 5);
      sequence.visits = visits_of(sequence.shape);
      sequence.upward = random() % 2 == 0;
      for (const TileRange& range : sequence.visits) {
        expected += range.end - range.begin;
      }
      batch.push_back(sequence);
    }
    const int workers = 1 + static_cast<int>(random() % 12);
    ASSERT_EQ(run_turns(batch, workers, random), expected) << workers << " CTAs";
  }
}

// Whoever waits for the turn of an earlier place waits for a tile with an earlier ticket.
TEST(CudaVisits, TilesOfAHeadStartInTheOrderOfTheirNumbers) {
  for (const int units : {1, 3, 8, 37}) {
    for (const int blocks : {1, 2, 7}) {
      for (const int section : {1, 2, 4}) {
        if (section > units) {
          continue;
        }
        const auto sections = cuda::sm90::make_sections<int>(units, blocks, section,
                                                             [](int number) { return number; });
        std::vector<int> next(static_cast<size_t>(units));
        for (int index = 0; index < units * blocks; ++index) {
          const auto at = cuda::sm90::place_by_length(index, sections);
          ASSERT_EQ(blocks - 1 - at.block, next[static_cast<size_t>(at.unit)]++);
        }
      }
    }
  }
}

}  // namespace
}  // namespace rowmax::test
