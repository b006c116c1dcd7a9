// One path through each tree, one tree a lane, and the share of a comparison along it. The path is
// chosen by x, which is public; nothing branches on a state, a control bit or x.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fused_steps.h"
#include "path.h"

namespace fsl {
namespace {

// One level of `n` registers of trees: moves the states on, and adds to `smaller` (in the lowest
// bit) whether control bits change where the path goes left.
template <class V, int n>
FSL_INLINE void walk_level(const typename V::Key& key, const std::uint64_t* x, unsigned shift,
                           const std::uint8_t* cw, const std::uint8_t* cw_right,
                           typename V::R (&state)[n], typename V::R (&smaller)[n]) {
  using R = typename V::R;
  const R lsb = V::lsb(), lsb_high = V::lsb_high();
  R go_right[n], sigma[n], child[n];
  FSL_UNROLL
  for (int k = 0; k < n; ++k) {
    go_right[k] = V::bit_mask(x + k * V::kLanes, shift);
    const R left = V::sigma(V::clear(state[k], lsb));
    sigma[k] = V::bit_xor(left, V::bit_and(go_right[k], lsb_high));  // sigma(s xor 1) to the right
    child[k] = sigma[k];
  }
  V::encrypt(key, child);
  FSL_UNROLL
  for (int k = 0; k < n; ++k) {
    const R left_word = V::load(cw + k * sizeof(R));
    const R right_bit = V::bits_from_bytes(cw_right + k * V::kLanes);
    const R right_word = V::bit_or(V::clear(left_word, lsb), right_bit);
    const R word = V::select(go_right[k], right_word, left_word);
    const R hashed = V::bit_xor(child[k], sigma[k]);
    const R next = V::xor_and(hashed, V::spread_lsb(state[k]), word);
    smaller[k] = V::bit_xor(smaller[k], V::clear(V::bit_xor(state[k], next), go_right[k]));
    state[k] = next;
  }
}

// A whole group of trees at `args`.
template <class V, int n>
inline void walk_group(const typename V::Key& key, const TreePathArgs& args) {
  using R = typename V::R;
  const Trees& trees = args.trees;
  R state[n], smaller[n];
  FSL_UNROLL
  for (int k = 0; k < n; ++k) {
    state[k] = V::load(trees.roots + k * sizeof(R));
    smaller[k] = V::zero();
  }
  for (unsigned level = 0; level < trees.depth; ++level) {
    walk_level<V, n>(key, args.x, trees.depth - 1 - level, trees.cw + level * trees.cw_stride,
                     trees.cw_right + level * trees.right_stride, state, smaller);
  }
  FSL_UNROLL
  for (int k = 0; k < n; ++k) {
    V::store(args.states + k * sizeof(R), state[k]);
    V::bits_to_bytes(smaller[k], args.smaller + k * V::kLanes);
  }
}

// The last `count` trees, fewer than a full group, through padded copies.
template <class V, int n>
void walk_rest(const typename V::Key& key, const TreePathArgs& args, std::size_t count) {
  constexpr std::size_t kGroup = n * V::kLanes;
  alignas(64) std::uint8_t roots[kGroup * 16] = {}, states[kGroup * 16], smaller[kGroup];
  alignas(64) std::uint8_t cw[kMaxDepth * kGroup * 16] = {};
  alignas(64) std::uint8_t cw_right[kMaxDepth * kGroup] = {};
  std::uint64_t x[kGroup] = {};
  std::memcpy(roots, args.trees.roots, count * 16);
  std::memcpy(x, args.x, count * sizeof *x);
  for (unsigned level = 0; level < args.trees.depth; ++level) {
    const Trees& trees = args.trees;
    std::memcpy(cw + level * kGroup * 16, trees.cw + level * trees.cw_stride, count * 16);
    std::memcpy(cw_right + level * kGroup, trees.cw_right + level * trees.right_stride, count);
  }
  TreePathArgs padded = args;
  padded.trees.roots = roots;
  padded.trees.cw = cw;
  padded.trees.cw_stride = kGroup * 16;
  padded.trees.cw_right = cw_right;
  padded.trees.right_stride = kGroup;
  padded.x = x;
  padded.states = states;
  padded.smaller = smaller;
  walk_group<V, n>(key, padded);
  std::memcpy(args.states, states, count * 16);
  std::memcpy(args.smaller, smaller, count);
}

template <class V>
void tree_path(const TreePathArgs& args) {
  constexpr int kRegisters = V::kRegisters / 4;  // state, sigma, child and smaller of each
  constexpr std::size_t kGroup = kRegisters * V::kLanes;
  const typename V::Key key = V::make_key(*args.trees.key);
  std::size_t first = 0;
  for (; first + kGroup <= args.trees.num_trees; first += kGroup) {
    walk_group<V, kRegisters>(key, trees_from(args, first));
  }
  const std::size_t left = args.trees.num_trees - first;
  if (left) walk_rest<V, kRegisters>(key, trees_from(args, first), left);
}

}  // namespace
}  // namespace fsl
