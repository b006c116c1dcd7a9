// Ring arithmetic on runs of packed values of `width` bytes, for widths with and without a native
// lane. Selection is by masks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fsl {
namespace {

// Widths with a lane in the vector registers; the others (3 and 6 bytes) go value by value.
constexpr bool has_lane(unsigned width) {
  return width == 2 || width == 4 || width == 8 || width == 16;
}

template <unsigned width>
inline std::uint64_t load_value(const std::uint8_t* from) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, width);
  return value;
}
template <unsigned width>
inline void store_value(std::uint8_t* to, std::uint64_t value) {
  std::memcpy(to, &value, width);
}

// Calls `vector(offset, bytes)` for the whole and the last partial register of a run.
template <class V, class Whole, class Tail>
inline void for_run(std::size_t num_bytes, Whole whole, Tail tail) {
  constexpr std::size_t kRegister = sizeof(typename V::R);
  std::size_t at = 0;
  for (; at + kRegister <= num_bytes; at += kRegister) whole(at);
  if (at < num_bytes) tail(at, num_bytes - at);
}

// acc += sign (conv + (hint and chosen)): one leaf's share. `chosen` and `negate` are 0 or ~0.
template <class V, unsigned width>
inline void add_share(std::uint8_t* acc, const std::uint8_t* conv, const std::uint8_t* hint,
                      std::uint64_t chosen, std::uint64_t negate, std::size_t num_bytes) {
  using R = typename V::R;
  if constexpr (has_lane(width)) {
    const R mask = V::splat(chosen), sign = V::splat(negate);
    const auto share = [&](std::size_t at) {
      const R sum =
          V::template add<width>(V::load(conv + at), V::bit_and(V::load(hint + at), mask));
      return V::template sub<width>(V::bit_xor(sum, sign), sign);
    };
    for_run<V>(
        num_bytes,
        [&](std::size_t at) {
          V::store(acc + at, V::template add<width>(V::load(acc + at), share(at)));
        },
        [&](std::size_t at, std::size_t rest) {
          const R sum = V::template add<width>(V::load_tail(acc + at, rest), share(at));
          V::store_tail(acc + at, sum, rest);
        });
  } else {
    for (std::size_t at = 0; at < num_bytes; at += width) {
      const std::uint64_t sum =
          load_value<width>(conv + at) + (load_value<width>(hint + at) & chosen);
      store_value<width>(acc + at, load_value<width>(acc + at) + ((sum ^ negate) - negate));
    }
  }
}

// out = sign ((value and chosen) - conv0 + conv1): one slot of a hint.
template <class V, unsigned width>
inline void hint_slot(std::uint8_t* out, const std::uint8_t* value, const std::uint8_t* conv0,
                      const std::uint8_t* conv1, std::uint64_t chosen, std::uint64_t negate,
                      std::size_t num_bytes) {
  using R = typename V::R;
  if constexpr (has_lane(width)) {
    const R mask = V::splat(chosen), sign = V::splat(negate);
    const auto word = [&](R beta, std::size_t at) {
      const R less = V::template sub<width>(V::bit_and(beta, mask), V::load(conv0 + at));
      const R sum = V::template add<width>(less, V::load(conv1 + at));
      return V::template sub<width>(V::bit_xor(sum, sign), sign);
    };
    for_run<V>(
        num_bytes, [&](std::size_t at) { V::store(out + at, word(V::load(value + at), at)); },
        [&](std::size_t at, std::size_t rest) {
          V::store_tail(out + at, word(V::load_tail(value + at, rest), at), rest);
        });
  } else {
    for (std::size_t at = 0; at < num_bytes; at += width) {
      const std::uint64_t sum = (load_value<width>(value + at) & chosen) -
                                load_value<width>(conv0 + at) + load_value<width>(conv1 + at);
      store_value<width>(out + at, (sum ^ negate) - negate);
    }
  }
}

// 0 or ~0 from the control bit of the state at `state`.
inline std::uint64_t control_mask(const std::uint8_t* state) {
  return 0 - static_cast<std::uint64_t>(*state & 1);
}

}  // namespace
}  // namespace fsl
