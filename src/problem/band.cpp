#include "problem/band.h"

#include <algorithm>

#include "rowmax/problem.h"

namespace rowmax {
namespace {

Bound tighter(const Bound& a, const Bound& b) {
  if (!a.bounded()) {
    return b;
  }
  return b.bounded() ? Bound::at(std::min(a.value(), b.value())) : a;
}

}  // namespace

// Both bounds grow outwards (left is a count of keys before the diagonal), so the smaller one is
// the tighter one at either end. A full band takes the other's alignment: it has no diagonal. Two
// bounded bands must agree on it; their lengths, which would relate the diagonals, are unknown
// here.
Band intersect(const Band& a, const Band& b) {
  Band out;
  out.left = tighter(a.left, b.left);
  out.right = tighter(a.right, b.right);
  out.alignment = a.is_full() ? b.alignment : a.alignment;
  return out;
}

}  // namespace rowmax
