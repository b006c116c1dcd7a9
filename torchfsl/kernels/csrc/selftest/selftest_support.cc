#include "selftest_support.h"

#include <bit>

#include "kernels.h"

namespace fsl::selftest {

std::uint64_t Random::next() {
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

Bytes Random::bytes(std::size_t count) {
  Bytes out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint8_t>(next() >> 56);
  return out;
}

std::uint64_t extend(std::uint64_t digest, const void* data, std::size_t count) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  for (std::size_t i = 0; i < count; ++i) digest = (digest ^ bytes[i]) * 0x100000001b3;
  return digest;
}

unsigned depth_of(std::size_t num_leaves) {
  return static_cast<unsigned>(std::bit_width(num_leaves - 1));
}

TreeSet::TreeSet(std::size_t num_trees, std::size_t num_leaves)
    : num_trees(num_trees),
      num_leaves(num_leaves),
      depth(depth_of(num_leaves)),
      alpha(num_trees),
      roots{Bytes(16 * num_trees), Bytes(16 * num_trees)},
      cw(16 * depth * num_trees),
      cw_right(depth * num_trees),
      leaf{Bytes(16 * num_trees), Bytes(16 * num_trees)} {}

TreeSet::TreeSet(std::size_t num_trees, std::size_t num_leaves, Random& random)
    : TreeSet(num_trees, num_leaves) {
  key = expand_key(random.bytes(16).data());
  for (std::uint64_t& position : alpha) position = random.below(num_leaves);
  for (int party = 0; party < 2; ++party) {
    roots[party] = random.bytes(16 * num_trees);
    for (std::size_t i = 0; i < num_trees; ++i) {
      std::uint8_t& low = roots[party][16 * i];
      low = static_cast<std::uint8_t>((low & 0xfe) | party);
    }
  }
  generate();
}

void TreeSet::generate() {
  TreeGenArgs args = {};
  args.key = &key;
  args.alpha = alpha.data();
  args.num_trees = num_trees;
  args.depth = depth;
  args.cw = cw.data();
  args.cw_right = cw_right.data();
  for (int party = 0; party < 2; ++party) {
    args.roots[party] = roots[party].data();
    args.leaf[party] = leaf[party].data();
  }
  tree_gen(args);
}

Trees TreeSet::view(int party) const {
  Trees trees = {};
  trees.key = &key;
  trees.roots = roots[party].data();
  trees.cw = cw.data();
  trees.cw_stride = 16 * num_trees;
  trees.cw_right = cw_right.data();
  trees.right_stride = num_trees;
  trees.num_trees = num_trees;
  trees.num_leaves = num_leaves;
  trees.depth = depth;
  return trees;
}

}  // namespace fsl::selftest
