// Steps that a wide path does in fewer instructions than the members every path has.
#pragma once

#include <cstdint>

#include "arena.h"
#include "ring_lanes.h"

namespace fsl {
namespace {

// Whether encryption is a call, which takes as long for several registers at once as one by one.
template <class V>
inline constexpr bool encrypts_in_calls = requires { V::kOutOfLine; };

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
inline constexpr bool hashes_whitened = requires(const typename V::Key& key) { key.ends; };

// The fixed-key hash in fewer instructions: its inputs are whitened already, and the key of the
// last round adds them, and perhaps more, to the result.
template <class V>
FSL_INLINE typename V::R whiten(const typename V::Key& key, typename V::R x) {
  return V::bit_xor(x, key.round[0]);
}
template <class V>
FSL_INLINE typename V::R last_key(const typename V::Key& key, typename V::R whitened) {
  return V::bit_xor(whitened, key.ends);
}
// What makes a last key leave the result whitened for `next`, instead of adding the input.
template <class V>
FSL_INLINE typename V::R between(const typename V::Key& key, const typename V::Key& next) {
  return V::bit_xor(key.round[10], next.round[0]);
}

// Puts all inputs before the first round, or the compiler mixes them with those of the last.
template <class R, int n>
FSL_INLINE void settle([[maybe_unused]] R (&x)[n]) {
#if defined(__x86_64__)  // other compilations see the letter v, too, and do not know it
  FSL_UNROLL
  for (int i = 0; i < n; ++i) __asm__ volatile("" : "+v"(x[i]));
  __asm__ volatile("" ::: "memory");
#endif
}

// `settled`: in the order that `settle` gives.
template <class V, bool settled = true, int n>
FSL_INLINE void hash_whitened(const typename V::Key& key, typename V::R (&x)[n],
                              const typename V::R* last) {
  if constexpr (settled) settle(x);
  V::template rounds<1, 10>(key, x);
  V::last_round(x, last);
}
// The same while `aside.operator()<0>()` and then `<1>()` work on something else; what they do may
// well mix with the inputs.
template <class V, int n, class F>
FSL_INLINE void hash_whitened_beside(const typename V::Key& key, typename V::R (&x)[n],
                                     const typename V::R* last, F aside) {
  V::template rounds<1, 4>(key, x);
  aside.template operator()<0>();
  V::template rounds<4, 7>(key, x);
  aside.template operator()<1>();
  V::template rounds<7, 10>(key, x);
  V::last_round(x, last);
}

// share + word in the blocks of the control bits, share elsewhere.
template <class V, unsigned width, class Control>
FSL_INLINE typename V::R add_chosen(typename V::R share, typename V::R word, Control control) {
  if constexpr (requires { V::template add_chosen<width>(share, word, control); }) {
    return V::template add_chosen<width>(share, word, control);
  } else {
    return V::template add<width>(share, V::bit_and(word, control));
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

}  // namespace
}  // namespace fsl
