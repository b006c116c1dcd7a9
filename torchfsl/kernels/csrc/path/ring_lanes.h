// Ring arithmetic on runs of packed values of `width` bytes. Values of 3 and 6 bytes are spread
// over lanes of 4 and 8. Selection is by masks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "arena.h"

namespace fsl {
namespace {

// Widths that are lanes of a register themselves.
constexpr bool is_lane(unsigned width) { return width != 3 && width != 6; }

// What `choose` has for the width, which `checked_width` has checked.
template <class F>
auto of_width(unsigned width, F choose) {
  switch (width) {
    case 2:
      return choose.template operator()<2>();
    case 3:
      return choose.template operator()<3>();
    case 4:
      return choose.template operator()<4>();
    case 6:
      return choose.template operator()<6>();
    case 8:
      return choose.template operator()<8>();
    default:
      return choose.template operator()<16>();
  }
}

// Loads, stores and lane width for runs of `width`-byte values.
template <class V, unsigned width>
struct Lanes {
  using Vector = std::conditional_t<is_lane(width), V, typename V::Packed>;
  using R = typename Vector::R;
  static constexpr int kLane = width == 3 ? 4 : width == 6 ? 8 : width;

  template <int n>
  static R load(const std::uint8_t* from) {
    if constexpr (!is_lane(width)) {
      return Vector::template load_packed<width, n>(from);
    } else if constexpr (n == sizeof(R)) {
      return Vector::load(from);
    } else {
      return Vector::template load_part<n>(from);
    }
  }
  template <int n>
  static void store(std::uint8_t* to, R value) {
    if constexpr (!is_lane(width)) {
      Vector::template store_packed<width, n>(to, value);
    } else if constexpr (n == sizeof(R)) {
      Vector::store(to, value);
    } else {
      Vector::template store_part<n>(to, value);
    }
  }
  static R splat(std::uint64_t value) { return Vector::splat(value); }
  static R add(R a, R b) { return Vector::template add<kLane>(a, b); }
  static R sub(R a, R b) { return Vector::template sub<kLane>(a, b); }
  static R chosen(R a, R mask) { return Vector::bit_and(a, mask); }
  // a or -a, as `sign` is 0 or all ones.
  static R signed_by(R sign, R a) { return sub(Vector::bit_xor(a, sign), sign); }
};

// One step of `for_run` if n bytes are left.
template <int n, class F>
FSL_INLINE void run_part(std::size_t num_bytes, std::size_t& at, F& step) {
  if (num_bytes - at < n) return;
  step.template operator()<n>(at);
  at += n;
}

// Calls `step.operator()<n>(offset)` for pieces of n bytes that make up a run of values.
template <class V, unsigned width, class F>
FSL_INLINE void for_run(std::size_t num_bytes, F step) {
  std::size_t at = 0;
  if constexpr (is_lane(width)) {
    constexpr int whole = sizeof(typename V::R);
    while (at + whole <= num_bytes) run_part<whole>(num_bytes, at, step);
    if (at == num_bytes) return;
    if constexpr (whole > 32) run_part<32>(num_bytes, at, step);
    if constexpr (whole > 16) run_part<16>(num_bytes, at, step);
    if constexpr (width <= 8) run_part<8>(num_bytes, at, step);
    if constexpr (width <= 4) run_part<4>(num_bytes, at, step);
    if constexpr (width <= 2) run_part<2>(num_bytes, at, step);
    if constexpr (width <= 1) run_part<1>(num_bytes, at, step);
  } else {
    while (at + 12 <= num_bytes) run_part<12>(num_bytes, at, step);
    if constexpr (width == 3) run_part<9>(num_bytes, at, step);
    run_part<6>(num_bytes, at, step);
    if constexpr (width == 3) run_part<3>(num_bytes, at, step);
  }
}

// 0 or ~0 from the control bit of the state at `state`.
inline std::uint64_t control_mask(const std::uint8_t* state) {
  return 0 - static_cast<std::uint64_t>(*state & 1);
}

}  // namespace
}  // namespace fsl
