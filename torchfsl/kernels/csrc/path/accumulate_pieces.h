// Additions of shares to an accumulator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "ring_lanes.h"

namespace fsl {
namespace {

// acc +- share
template <class V, unsigned width, bool negate>
FSL_INLINE typename V::R with_share(typename V::R acc, typename V::R share) {
  return negate ? V::template sub<width>(acc, share) : V::template add<width>(acc, share);
}

// Adds the first `num_bytes` of a register of shares, or subtracts them. Out of line: a kernel has
// many places for ends of odd length, and none of them is worth much code.
template <class V, unsigned width>
__attribute__((noinline)) void add_short(std::uint8_t* to, typename V::R share,
                                         std::size_t num_bytes, bool negate) {
  using L = Lanes<V, width>;
  alignas(64) std::uint8_t shares[2 * sizeof share];  // read in whole registers, so twice the size
  V::store(shares, share);
  for_run<V, width>(num_bytes, [&]<int n>(std::size_t at) FSL_INLINE_LAMBDA {
    const auto old = L::template load<n>(to + at), own = L::template load<n>(shares + at);
    L::template store<n>(to + at, negate ? L::sub(old, own) : L::add(old, own));
  });
}

// Calls `end.template operator()<fixed>()` for an end of `left` < 16 bytes: as many bytes where
// there is code for it, or else 0, for `add_short`.
template <unsigned width, class F>
FSL_INLINE void for_end(std::size_t left, F end) {
  if constexpr (width <= 8) {
    if (width == 8 || left == 8) return end.template operator()<8>();
  }
  if constexpr (width == 4) {
    if (left == 4) return end.template operator()<4>();
    return end.template operator()<12>();
  }
  if constexpr (width < 4) end.template operator()<0>();
}

}  // namespace
}  // namespace fsl
