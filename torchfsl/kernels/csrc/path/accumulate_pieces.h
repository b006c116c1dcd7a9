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

// Adds `leaves` pieces of `num_bytes` from a register of shares, `stride` bytes apart.
template <class V, unsigned width, bool negate, int leaves>
FSL_INLINE void add_pieces(std::uint8_t* acc, typename V::R share, std::size_t stride,
                           std::size_t num_leaves, std::size_t num_bytes) {
  using L = Lanes<V, width>;
  alignas(64) std::uint8_t shares[2 * sizeof share];  // read in whole registers, so twice the size
  V::store(shares, share);
  for (std::size_t i = 0; i < leaves && i < num_leaves; ++i) {
    const std::uint8_t* from = shares + i * (sizeof share / leaves);
    std::uint8_t* to = acc + i * stride;
    for_run<V, width>(num_bytes, [&]<int n>(std::size_t at) FSL_INLINE_LAMBDA {
      const auto sum = with_share<V, width, negate>(L::template load<n>(to + at),
                                                    L::template load<n>(from + at));
      L::template store<n>(to + at, sum);
    });
  }
}

}  // namespace
}  // namespace fsl
