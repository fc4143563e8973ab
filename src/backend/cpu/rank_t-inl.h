// The transposed rank tile: C[key][d] += sum over query panels and their lanes of A[key][lane] *
// B[lane][d]. A is P^T or dS^T as the panels wrote it, read along its rows; the accumulators stay
// in registers over all panels of a query block.
#pragma once

#include <cstdint>

#include "backend/cpu/tile-inl.h"

namespace rowmax::cpu::ROWMAX_ISA {

// One query panel's part of operand A: rows [begin, end) hold values, and the kTileMargin rows at
// either side hold zeros. Neither bound decreases from panel to panel (a band moves right).
struct PanelSpan {
  int64_t offset;  // elements from the start of A to the panel's row 0
  int64_t lanes;
  int64_t first_lane;  // row of B that meets lane 0
  int64_t begin;
  int64_t end;
};

// MR rows of C from row `key`, summed over spans[0, count).
template <class V, int MR, int NV>
ROWMAX_INLINE void rank_t_tile(const typename V::E* a, const PanelSpan* spans, int count,
                               int64_t key, const typename V::E* b, typename V::E* __restrict c,
                               int64_t ldc) {
  typename V::R acc[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[i][v] = V::load(c + i * ldc + v * V::W);
  for (int s = 0; s < count; ++s) {
    const int64_t lanes = spans[s].lanes;
    const auto* x = a + spans[s].offset + key * lanes;
    const auto* y = b + spans[s].first_lane * NV * V::W;
#pragma GCC unroll 8
    for (int64_t q = 0; q < lanes; ++q) {
      typename V::R bv[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) bv[v] = V::load(y + v * V::W);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        const auto t = V::bcast(x + i * lanes + q);
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[i][v] = V::fma(t, bv[v], acc[i][v]);
      }
      y += NV * V::W;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) V::store(c + i * ldc + v * V::W, acc[i][v]);
}

template <class V, int NV>
inline void rank_t_rows(int64_t rows, const typename V::E* a, const PanelSpan* spans, int count,
                        const typename V::E* b, typename V::E* c, int64_t ldc) {
  constexpr int M = V::tile_rows(NV);
  static_assert(M - 1 <= kTileMargin, "rows of A that a tile reads past a span");
  int first = 0;
  int last = 0;
  for (int64_t j = 0; j < rows;) {
    const int h = next_tile_height(rows - j, M);
    while (first < count && spans[first].end <= j) {
      ++first;
    }
    last = last < first ? first : last;
    while (last < count && spans[last].begin < j + h) {
      ++last;
    }
    const int64_t key = j;
    const PanelSpan* s = spans + first;
    const int n = last - first;
    typename V::E* cj = c + j * ldc;
    j += h;
    if (n == 0) {
      continue;
    }
    if (h == M) {
      rank_t_tile<V, M, NV>(a, s, n, key, b, cj, ldc);
    } else if (h == M - 1) {
      rank_t_tile<V, M - 1, NV>(a, s, n, key, b, cj, ldc);
    } else if (h == M - 2) {
      rank_t_tile<V, M - 2, NV>(a, s, n, key, b, cj, ldc);
    } else if (h == 2) {
      rank_t_tile<V, 2, NV>(a, s, n, key, b, cj, ldc);
    } else {
      rank_t_tile<V, 1, NV>(a, s, n, key, b, cj, ldc);
    }
  }
}

// All columns of C. b: column panels of `capacity` rows each (see pack_columns).
template <class V>
inline void rank_t_all(const Columns<V>& columns, int64_t rows, const typename V::E* a,
                       const PanelSpan* spans, int count, const typename V::E* b, int64_t capacity,
                       typename V::E* c, int64_t ldc) {
  for (int p = 0; p < columns.count; ++p) {
    const int64_t begin = columns.panels[p].begin;
    const typename V::E* bp = b + begin * capacity;
    if (columns.panels[p].vectors == 3) {
      rank_t_rows<V, 3>(rows, a, spans, count, bp, c + begin, ldc);
    } else if (columns.panels[p].vectors == 2) {
      rank_t_rows<V, 2>(rows, a, spans, count, bp, c + begin, ldc);
    } else {
      rank_t_rows<V, 1>(rows, a, spans, count, bp, c + begin, ldc);
    }
  }
}

}  // namespace rowmax::cpu::ROWMAX_ISA
