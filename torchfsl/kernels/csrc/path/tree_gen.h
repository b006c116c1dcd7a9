// Key generation (BGI16, Fig. 1), one tree a lane. Nothing branches on alpha or a control bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "fused_steps.h"
#include "path.h"

namespace fsl {
namespace {

// Views of one group of trees, `cw` and `cw_right` with their distance from level to level.
struct GenGroup {
  const std::uint8_t* roots[2];
  const std::uint64_t* alpha;
  std::uint8_t* cw;
  std::size_t cw_stride;
  std::uint8_t* cw_right;
  std::size_t right_stride;
  std::uint8_t* leaf[2];
};

// Children of n states, before correction: x[2i] left, x[2i + 1] right; and masks of control bits.
// These are ordinary registers on every path, so that what a client does needs no mask registers
// but for the carries of 128-bit values.
template <class V, int n>
FSL_INLINE void hash_children(const typename V::Key& key, const typename V::R (&state)[n],
                              typename V::R (&x)[2 * n], typename V::R (&control)[n]) {
  using R = typename V::R;
  const R lsb_high = V::lsb_high();
  if constexpr (hashes_whitened<V>) {
    R last[2 * n];
    FSL_UNROLL
    for (int i = 0; i < n; ++i) {
      const R low = V::low_words(state[i], state[i]), high = V::high_words(state[i], state[i]);
      control[i] = V::template sub<8>(V::zero(), V::bit_and(low, V::splat(1)));
      x[2 * i] = whiten<V>(key, V::sigma_of_seed_from(low, high));
      x[2 * i + 1] = V::bit_xor(x[2 * i], lsb_high);  // sigma(s xor 1)
      last[2 * i] = last_key<V>(key, x[2 * i]);
      last[2 * i + 1] = last_key<V>(key, x[2 * i + 1]);
    }
    constexpr bool settled = V::kRegisters < 32;  // with so many, the compiler's order is faster
    hash_whitened<V, settled>(key, x, last);
  } else {
    R sigma[n];
    FSL_UNROLL
    for (int i = 0; i < n; ++i) {
      sigma[i] = V::sigma(V::clear(state[i], V::lsb()));
      x[2 * i] = sigma[i];
      x[2 * i + 1] = V::bit_xor(sigma[i], lsb_high);  // sigma(s xor 1)
    }
    V::encrypt(key, x);
    FSL_UNROLL
    for (int i = 0; i < n; ++i) {
      control[i] = V::spread_lsb(state[i]);
      x[2 * i] = V::bit_xor(x[2 * i], sigma[i]);
      x[2 * i + 1] = V::xor3(x[2 * i + 1], sigma[i], lsb_high);
    }
  }
}

// One level of `n` registers of trees: writes the correction words, moves both parties' states on.
template <class V, int n>
FSL_INLINE void generate_level(const typename V::Key& key, const std::uint64_t* alpha,
                               unsigned shift, typename V::R (&state)[2 * n], std::uint8_t* cw,
                               std::uint8_t* cw_right) {
  using R = typename V::R;
  const R lsb = V::lsb();
  R x[4 * n], control[2 * n];  // children of party b in register k: x[4k + 2b] left, + 1 right
  hash_children<V>(key, state, x, control);
  FSL_UNROLL
  for (int k = 0; k < n; ++k) {
    const R* const left[2] = {x + 4 * k, x + 4 * k + 2};
    const R* const right[2] = {x + 4 * k + 1, x + 4 * k + 3};
    const R go_right = V::bit_mask(alpha + k * V::kLanes, shift);
    const R both_left = V::bit_xor(*left[0], *left[1]),
            both_right = V::bit_xor(*right[0], *right[1]);
    // The side that alpha leaves gets equal seeds (its difference is the seed correction) and
    // equal control bits; on the other side the control bits stay different.
    const R seed_word = V::select(go_right, both_left, both_right);
    const R left_word = V::select(lsb, V::xor3(both_left, go_right, lsb), seed_word);
    const R right_word = V::select(lsb, V::bit_xor(both_right, go_right), seed_word);
    V::store(cw + k * sizeof(R), left_word);
    V::bits_to_bytes(right_word, cw_right + k * V::kLanes);
    const R kept_word = V::select(go_right, right_word, left_word);
    FSL_UNROLL
    for (int b = 0; b < 2; ++b) {
      const R kept = V::select(go_right, *right[b], *left[b]);
      state[2 * k + b] = V::xor_and(kept, control[2 * k + b], kept_word);
    }
  }
}

template <class V, int n>
inline void generate_group(const typename V::Key& key, const GenGroup& group, unsigned depth) {
  typename V::R state[2 * n];
  FSL_UNROLL
  for (int k = 0; k < n; ++k) {
    FSL_UNROLL
    for (int b = 0; b < 2; ++b) {
      state[2 * k + b] = V::load(group.roots[b] + k * sizeof(typename V::R));
    }
  }
  for (unsigned level = 0; level < depth; ++level) {
    generate_level<V, n>(key, group.alpha, depth - 1 - level, state,
                         group.cw + level * group.cw_stride,
                         group.cw_right + level * group.right_stride);
  }
  FSL_UNROLL
  for (int k = 0; k < n; ++k) {
    FSL_UNROLL
    for (int b = 0; b < 2; ++b) {
      V::store(group.leaf[b] + k * sizeof(typename V::R), state[2 * k + b]);
    }
  }
}

// The last `count` trees, fewer than a full group, through padded copies.
template <class V, int n>
void generate_rest(const typename V::Key& key, const TreeGenArgs& args, std::size_t first) {
  constexpr std::size_t kGroup = n * V::kLanes;
  const std::size_t count = args.num_trees - first;
  alignas(64) std::uint8_t roots[2][kGroup * 16] = {};
  alignas(64) std::uint8_t leaf[2][kGroup * 16];
  alignas(64) std::uint8_t cw[kMaxDepth * kGroup * 16];
  alignas(64) std::uint8_t cw_right[kMaxDepth * kGroup];
  std::uint64_t alpha[kGroup] = {};
  FSL_UNROLL
  for (int b = 0; b < 2; ++b) std::memcpy(roots[b], args.roots[b] + first * 16, count * 16);
  std::memcpy(alpha, args.alpha + first, count * sizeof *alpha);
  const GenGroup group = {{roots[0], roots[1]}, alpha, cw, kGroup * 16, cw_right, kGroup,
                          {leaf[0], leaf[1]}};
  generate_group<V, n>(key, group, args.depth);
  for (unsigned level = 0; level < args.depth; ++level) {
    const std::size_t to = level * args.level_trees + first;
    std::memcpy(args.cw + to * 16, cw + level * kGroup * 16, count * 16);
    std::memcpy(args.cw_right + to, cw_right + level * kGroup, count);
  }
  FSL_UNROLL
  for (int b = 0; b < 2; ++b) std::memcpy(args.leaf[b] + first * 16, leaf[b], count * 16);
}

template <class V>
void tree_gen(const TreeGenArgs& args) {
  constexpr int kRegisters = V::kRegisters / 8;  // as many blocks as registers hold
  constexpr std::size_t kGroup = kRegisters * V::kLanes;
  const typename V::Key key = V::make_key(*args.key);
  std::size_t first = 0;
  for (; first + kGroup <= args.num_trees; first += kGroup) {
    const GenGroup group = {{args.roots[0] + first * 16, args.roots[1] + first * 16},
                            args.alpha + first,
                            args.cw + first * 16,
                            args.level_trees * 16,
                            args.cw_right + first,
                            args.level_trees,
                            {args.leaf[0] + first * 16, args.leaf[1] + first * 16}};
    generate_group<V, kRegisters>(key, group, args.depth);
  }
  if (first < args.num_trees) generate_rest<V, kRegisters>(key, args, first);
}

}  // namespace
}  // namespace fsl
