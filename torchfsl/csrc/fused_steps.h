// Steps that a wide path does in fewer instructions than the members every path has.
#pragma once

#include <cstdint>

#include "arena.h"
#include "ring_lanes.h"

namespace fsl {
namespace {

// The control bit of one state for all blocks, in the form that `xor_chosen` takes.
template <class V>
FSL_INLINE auto control_of_one(const std::uint8_t* state) {
  if constexpr (requires { V::control_of_one(state); }) {
    return V::control_of_one(state);
  } else {
    return V::splat(control_mask(state));
  }
}
// a xor b in the blocks of the control bits, a elsewhere.
template <class V, class Control>
FSL_INLINE typename V::R xor_chosen(typename V::R a, Control control, typename V::R b) {
  if constexpr (requires { V::xor_chosen(a, control, b); }) {
    return V::xor_chosen(a, control, b);
  } else {
    return V::xor_and(a, b, control);
  }
}

// Whether the path hashes inputs that are whitened already, and repeats words as it loads them.
template <class V>
inline constexpr bool hashes_whitened =
    requires(const typename V::Key& key, typename V::R x) { V::whiten(key, x); };

template <class V>
inline constexpr bool has_sigma_of_seed =
    requires(typename V::R state) { V::sigma_of_seed(state); };

// Sigma of the seed of a state.
template <class V>
FSL_INLINE typename V::R sigma_of_seed(typename V::R state) {
  if constexpr (has_sigma_of_seed<V>) {
    return V::sigma_of_seed(state);
  } else {
    return V::sigma(V::clear(state, V::lsb()));
  }
}

// share + word in the blocks whose state has the control bit, share elsewhere.
template <class V, unsigned width>
FSL_INLINE typename V::R add_chosen(typename V::R share, typename V::R word, typename V::R state) {
  if constexpr (requires { V::template add_chosen<width>(share, word, state); }) {
    return V::template add_chosen<width>(share, word, state);
  } else {
    return V::template add<width>(share, V::bit_and(word, V::spread_lsb(state)));
  }
}

// Calls `use.operator()<lane>(register)` for every block of r, which is the lowest of the register.
template <class V, class F, int lane = 0>
FSL_INLINE void for_blocks(typename V::R r, F use) {
  if constexpr (requires { V::template block<lane>(r); }) {
    use.template operator()<lane>(V::template block<lane>(r));
  } else {
    alignas(64) std::uint8_t blocks[2 * sizeof r];  // read in whole registers, so twice the size
    V::store(blocks, r);
    use.template operator()<lane>(V::load(blocks + 16 * lane));
  }
  if constexpr (lane + 1 < V::kLanes) for_blocks<V, F, lane + 1>(r, use);
}

// Encrypts while `aside.operator()<0>()` and then `<1>()` work on something else.
template <class V, int n, class F>
FSL_INLINE void encrypt_beside(const typename V::Key& key, typename V::R (&x)[n], F aside) {
  if constexpr (requires { V::template rounds<0, 3>(key, x); }) {
    V::template rounds<0, 3>(key, x);
    aside.template operator()<0>();
    V::template rounds<3, 6>(key, x);
    aside.template operator()<1>();
    V::template rounds<6, 11>(key, x);
  } else {
    V::encrypt(key, x);
    aside.template operator()<0>();
    aside.template operator()<1>();
  }
}

}  // namespace
}  // namespace fsl
