// Shares read as signed integers and summed over leaves, as a proof wants them, while they are in
// registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"

namespace fsl {
namespace {

// Widths whose values lie in halves of 32-bit words.
constexpr bool is_summed_in_registers(unsigned width) { return width == 2 || width == 4; }

using FourWords = std::int32_t __attribute__((vector_size(16)));
using EightWords = std::int32_t __attribute__((vector_size(32)));
using SixteenWords = std::int32_t __attribute__((vector_size(64)));
using FourSums = std::uint32_t __attribute__((vector_size(16)));
using EightSums = std::uint32_t __attribute__((vector_size(32)));
using SixteenSums = std::uint32_t __attribute__((vector_size(64)));

template <std::size_t bytes>
struct WordsOf;
template <>
struct WordsOf<16> {
  using Type = FourWords;
  using Sums = FourSums;
};
template <>
struct WordsOf<32> {
  using Type = EightWords;
  using Sums = EightSums;
};
template <>
struct WordsOf<64> {
  using Type = SixteenWords;
  using Sums = SixteenSums;
};

// Sums of a register of shares of `bytes` bytes over at most kMaxSummed leaves.
//
// Of values of four bytes it keeps the sums modulo 2^32 and, exactly, those of their signed upper
// halves: the sum of the lower halves, below 2^32, is what the first lack of the second. Of values
// of two bytes it keeps both halves of each word.
template <unsigned width, std::size_t bytes>
struct HalfSums {
  using Words = typename WordsOf<bytes>::Type;
  using Sums = typename WordsOf<bytes>::Sums;
  static constexpr std::size_t kValues = bytes / width;

  template <class R>
  FSL_INLINE void add(R shares) {
    static_assert(sizeof shares == bytes);
    Words word;
    std::memcpy(&word, &shares, bytes);
    lower += reinterpret_cast<Sums>(width == 2 ? (word << 16) >> 16 : word);
    upper += word >> 16;
  }

  // Adds the values [from, from + count) to `low` from its value `first` on, as far as there are
  // `lifted`.
  __attribute__((noinline)) void add_to(std::int64_t* low, std::size_t lifted, std::size_t first,
                                        std::size_t from, std::size_t count) const {
    for (std::size_t i = 0; i < count && first + i < lifted; ++i) low[first + i] += value(from + i);
  }

  Sums lower = {};
  Words upper = {};

 private:
  std::int64_t value(std::size_t i) const {
    if constexpr (width == 2) return i % 2 ? upper[i / 2] : static_cast<std::int32_t>(lower[i / 2]);
    const std::int64_t high = std::int64_t{upper[i]} * 65536;
    return high + static_cast<std::uint32_t>(lower[i] - static_cast<std::uint32_t>(high));
  }
};
inline constexpr std::size_t kMaxSummed = std::size_t{1} << 16;

// The sums of neighbouring lanes, `stride` values apart; none if `lifted` is 0.
struct LaneTotals {
  std::int64_t* low = nullptr;
  std::size_t stride = 0;
  std::size_t lifted = 0;  // values of each leaf, from the first on

  // Those of the lanes from `lane` on.
  LaneTotals from(std::size_t lane) const { return {low + lane * stride, stride, lifted}; }
};

// Sums of n registers of shares that recur from leaf to leaf, or nothing.
template <class V, unsigned width, bool lifts, int n>
struct ColumnSums {
  using R = typename V::R;

  FSL_INLINE void add(int, R) {}
  // What register i holds are blocks of all lanes, each the one from byte `at` on of its leaf.
  FSL_INLINE void add_blocks_to(const LaneTotals&, int, std::size_t) const {}
  // What register i holds is of one lane, from byte `at` on.
  FSL_INLINE void add_lane_to(const LaneTotals&, int, int, std::size_t) const {}
};

template <class V, unsigned width, int n>
struct ColumnSums<V, width, true, n> {
  using R = typename V::R;
  using Own = HalfSums<width, sizeof(R)>;

  FSL_INLINE void add(int i, R share) { sums[i].add(share); }
  FSL_INLINE void add_blocks_to(const LaneTotals& to, int i, std::size_t at) const {
    const Own own = sums[i];  // a copy, or all of them would have to be in memory
    for (int lane = 0; lane < V::kLanes; ++lane) {
      own.add_to(to.low + lane * to.stride, to.lifted, at / width, lane * 16 / width, 16 / width);
    }
  }
  FSL_INLINE void add_lane_to(const LaneTotals& to, int i, int lane, std::size_t at) const {
    const Own own = sums[i];
    own.add_to(to.low + lane * to.stride, to.lifted, at / width, 0, Own::kValues);
  }

  Own sums[n];
};

// Calls `column.template operator()<lifts>()`, with whether the column from byte `at` on is summed.
template <unsigned width, class F>
FSL_INLINE void with_sums(const LaneTotals& totals, std::size_t at, F column) {
  if constexpr (is_summed_in_registers(width)) {
    if (at < totals.lifted * width) return column.template operator()<true>();
  }
  column.template operator()<false>();
}

}  // namespace
}  // namespace fsl
