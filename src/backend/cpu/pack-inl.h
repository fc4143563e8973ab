// Loads from and stores to tensors: the only place where a CPU kernel meets a dtype. A kernel
// computes in V::E; every element is converted once, here.
#pragma once

#include <cstdint>

#include "backend/cpu/tile-inl.h"
#include "core/half.h"
#include "rowmax/dtype.h"

namespace rowmax::cpu::ROWMAX_ISA {

// Storage policies: element type T, one element, one vector.
struct StoredF32 {
  using T = float;
  static ROWMAX_INLINE double get(const T* p) { return *p; }
  static ROWMAX_INLINE void put(T* p, double x) { *p = static_cast<float>(x); }
};
struct StoredF64 {
  using T = double;
  static ROWMAX_INLINE double get(const T* p) { return *p; }
  static ROWMAX_INLINE void put(T* p, double x) { *p = x; }
};
struct StoredBF16 {
  using T = uint16_t;
  static ROWMAX_INLINE double get(const T* p) { return bf16_to_float(*p); }
  static ROWMAX_INLINE void put(T* p, double x) { *p = float_to_bf16(static_cast<float>(x)); }
};
// A boolean mask as an addend: 0 where true, -inf where false.
struct StoredMask {
  using T = uint8_t;
  static ROWMAX_INLINE double get(const T* p) { return *p != 0 ? 0.0 : -__builtin_inf(); }
};
struct StoredF16 {
  using T = uint16_t;
  static ROWMAX_INLINE double get(const T* p) { return f16_to_float(*p); }
  static ROWMAX_INLINE void put(T* p, double x) { *p = float_to_f16(static_cast<float>(x)); }
};

template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;

// Conversion by value; a finite value beyond fp32's range becomes the largest fp32 value, so that a
// huge finite bias stays finite (a finite value never hides a key).
template <class E>
ROWMAX_INLINE E to_element(double x) {
  if constexpr (sizeof(E) == 4) {
    constexpr double kLargest = 3.4028234663852886e38;
    if (x > kLargest && x < __builtin_inf()) {
      return static_cast<E>(kLargest);
    }
    if (x < -kLargest && x > -__builtin_inf()) {
      return static_cast<E>(-kLargest);
    }
  }
  return static_cast<E>(x);
}

template <class V, class S>
ROWMAX_INLINE typename V::R load_vector(const typename S::T* p) {
  if constexpr (kSame<S, StoredBF16>) {
    return V::load_bf16(p);
  } else if constexpr (kSame<S, StoredF16>) {
    return V::load_f16(p);
  } else if constexpr (kSame<S, StoredMask>) {
    return V::load_mask(p);
  } else if constexpr (kSame<typename S::T, typename V::E>) {
    return V::load(p);
  } else {
    typename V::E lanes[V::W];
    for (int i = 0; i < V::W; ++i) {
      lanes[i] = to_element<typename V::E>(static_cast<double>(p[i]));
    }
    return V::load(lanes);
  }
}

template <class V, class S>
ROWMAX_INLINE void store_vector(typename S::T* p, typename V::R x) {
  if constexpr (kSame<S, StoredBF16>) {
    V::store_bf16(p, x);
  } else if constexpr (kSame<S, StoredF16>) {
    V::store_f16(p, x);
  } else if constexpr (kSame<typename S::T, typename V::E>) {
    V::store(p, x);
  } else {
    typename V::E lanes[V::W];
    V::store(lanes, x);
    for (int i = 0; i < V::W; ++i) {
      p[i] = static_cast<typename S::T>(lanes[i]);
    }
  }
}

// Calls body(policy) with the storage policy of a floating dtype.
template <class Body>
ROWMAX_INLINE auto with_storage(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF64:
      return body(StoredF64{});
    case DType::kBF16:
      return body(StoredBF16{});
    case DType::kF16:
      return body(StoredF16{});
    default:
      return body(StoredF32{});
  }
}

// Address of element `offset` of a tensor of this dtype.
ROWMAX_INLINE const void* element(const void* data, DType dtype, int64_t offset) {
  return static_cast<const char*>(data) + offset * static_cast<int64_t>(size_of(dtype));
}
ROWMAX_INLINE void* element(void* data, DType dtype, int64_t offset) {
  return static_cast<char*>(data) + offset * static_cast<int64_t>(size_of(dtype));
}

// Rows -> out[step][lanes], times scale: (rows, steps) at `src` with row stride ld becomes the
// packed operand of dot_tile, or a transposed tile of a bias. Lanes past `rows` and steps past
// `steps` (up to `padded`) are 0. Returns whether every element read is finite.
template <class V, class S>
ROWMAX_NOINLINE inline bool pack_transposed_as(const typename S::T* src, int64_t ld, int64_t rows,
                                               int64_t steps, int64_t padded, int64_t lanes,
                                               typename V::E scale, typename V::E* out) {
  using E = typename V::E;
  constexpr int W = V::W;
  const auto factor = V::set1(scale);
  auto finite = V::zero();  // x * 0 is NaN for a non-finite x
  E finite_tail = 0;
  for (int64_t i = 0; i < lanes; i += W) {
    int64_t d = 0;
    if (i < rows) {
      for (; d + W <= steps; d += W) {
        typename V::R r[W];
#pragma GCC unroll 16
        for (int u = 0; u < W; ++u) {
          r[u] = i + u < rows ? load_vector<V, S>(src + (i + u) * ld + d) : V::zero();
          finite = V::fma(r[u], V::zero(), finite);
          r[u] = V::mul(factor, r[u]);
        }
        V::transpose(r);
#pragma GCC unroll 16
        for (int u = 0; u < W; ++u) {
          V::store(out + (d + u) * lanes + i, r[u]);
        }
      }
    }
    for (; d < padded; ++d) {
      for (int u = 0; u < W; ++u) {
        E x = 0;
        if (i + u < rows && d < steps) {
          x = to_element<E>(S::get(src + (i + u) * ld + d));
          finite_tail += x * E(0);
        }
        out[d * lanes + i + u] = x * scale;
      }
    }
  }
  return V::all(V::eq(finite, V::zero())) && finite_tail == E(0);
}

template <class V>
ROWMAX_NOINLINE inline bool pack_transposed(const void* src, DType dtype, int64_t ld, int64_t rows,
                                            int64_t steps, int64_t padded, int64_t lanes,
                                            typename V::E scale, typename V::E* out) {
  return with_storage(
      dtype, [&](auto policy) __attribute__((always_inline)) {
        using S = decltype(policy);
        return pack_transposed_as<V, S>(static_cast<const typename S::T*>(src), ld, rows, steps,
                                        padded, lanes, scale, out);
      });
}

// Rows -> column panels [panel][capacity][panel width], times scale, written at rows
// [row_begin, row_begin + rows) of the panels. Columns past the width are 0.
template <class V, class S>
ROWMAX_NOINLINE inline void pack_columns_as(const Columns<V>& columns, const typename S::T* src,
                                            int64_t ld, int64_t rows, int64_t capacity,
                                            int64_t row_begin, typename V::E scale,
                                            typename V::E* out) {
  using E = typename V::E;
  constexpr int W = V::W;
  const auto factor = V::set1(scale);
  for (int p = 0; p < columns.count; ++p) {
    const int64_t begin = columns.panels[p].begin;
    const int64_t width = columns.panels[p].vectors * W;
    E* o = out + begin * capacity + row_begin * width;
    if (begin + width <= columns.width) {
      if (width == 3 * W) {
        for (int64_t j = 0; j < rows; ++j, o += 3 * W) {
#pragma GCC unroll 3
          for (int x = 0; x < 3 * W; x += W) {
            V::store(o + x, V::mul(factor, load_vector<V, S>(src + j * ld + begin + x)));
          }
        }
      } else {
        for (int64_t j = 0; j < rows; ++j, o += width) {
          for (int64_t x = 0; x < width; x += W) {
            V::store(o + x, V::mul(factor, load_vector<V, S>(src + j * ld + begin + x)));
          }
        }
      }
    } else {
      for (int64_t j = 0; j < rows; ++j, o += width) {
        for (int64_t x = 0; x < width; ++x) {
          o[x] = begin + x < columns.width ? to_element<E>(S::get(src + j * ld + begin + x)) * scale
                                           : E(0);
        }
      }
    }
  }
}

template <class V>
ROWMAX_NOINLINE inline void pack_columns(const Columns<V>& columns, const void* src, DType dtype,
                                         int64_t ld, int64_t rows, int64_t capacity,
                                         int64_t row_begin, typename V::E scale,
                                         typename V::E* out) {
  with_storage(
      dtype, [&](auto policy) __attribute__((always_inline)) {
        using S = decltype(policy);
        pack_columns_as<V, S>(columns, static_cast<const typename S::T*>(src), ld, rows, capacity,
                              row_begin, scale, out);
      });
}

// Zeroes rows [begin, end) of every column panel.
template <class V>
ROWMAX_NOINLINE inline void zero_column_rows(const Columns<V>& columns, int64_t capacity,
                                             int64_t begin, int64_t end, typename V::E* out) {
  for (int p = 0; p < columns.count; ++p) {
    const int64_t width = columns.panels[p].vectors * V::W;
    typename V::E* o = out + columns.panels[p].begin * capacity + begin * width;
    for (int64_t x = 0; x < (end - begin) * width; x += V::W) {
      V::store(o + x, V::zero());
    }
  }
}

// Rows -> rows of `padded` elements (a multiple of W), zero past `width`.
template <class V>
ROWMAX_NOINLINE inline void pack_rows(const void* src, DType dtype, int64_t ld, int64_t rows,
                                      int64_t width, int64_t padded, typename V::E* out) {
  using E = typename V::E;
  with_storage(
      dtype, [&](auto policy) __attribute__((always_inline)) {
        using S = decltype(policy);
        const auto* from = static_cast<const typename S::T*>(src);
        for (int64_t j = 0; j < rows; ++j, from += ld, out += padded) {
          int64_t d = 0;
          for (; d + V::W <= width; d += V::W) {
            V::store(out + d, load_vector<V, S>(from + d));
          }
          for (; d < padded; ++d) {
            out[d] = d < width ? to_element<E>(S::get(from + d)) : E(0);
          }
        }
      });
}

// One row of `width` compute values, times scale, to a tensor row.
template <class V>
ROWMAX_NOINLINE inline void store_row(const typename V::E* row, int64_t width, typename V::E scale,
                                      void* dst, DType dtype) {
  with_storage(
      dtype, [&](auto policy) __attribute__((always_inline)) {
        using S = decltype(policy);
        auto* to = static_cast<typename S::T*>(dst);
        const auto factor = V::set1(scale);
        int64_t d = 0;
        for (; d + V::W <= width; d += V::W) {
          store_vector<V, S>(to + d, V::mul(factor, V::load(row + d)));
        }
        for (; d < width; ++d) {
          S::put(to + d, static_cast<double>(row[d] * scale));
        }
      });
}

}  // namespace rowmax::cpu::ROWMAX_ISA
