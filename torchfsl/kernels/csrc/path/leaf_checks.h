// Verification of trees: the leaf hash, check words, and the fold of all corrected leaf hashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "check_path.h"
#include "path.h"
#include "tree_walk.h"

namespace fsl {
namespace {

// Lower or upper 64 bits of every block.
template <class V>
inline typename V::R low_words(std::uint64_t value) {
  return V::bit_and(V::splat(value), V::template sub<8>(V::zero(), V::lsb()));
}
template <class V>
inline typename V::R high_words(std::uint64_t value) {
  return V::bit_and(V::splat(value), V::template sub<8>(V::zero(), V::lsb_high()));
}

// The permutations of the leaf hash.
template <class V>
struct LeafHash {
  explicit LeafHash(const LeafKeys& keys)
      : permutation{V::make_key(keys.schedule[0]), V::make_key(keys.schedule[1]),
                    V::make_key(keys.schedule[2])} {}
  const typename V::Key permutation[3];
};

// The leaf hash of n registers v of states: q = P_0(v) xor tweak; first = v xor P_1(q);
// second = v xor q xor P_2(first). The tweak is the leaf in the lower word, the tree in the upper.
template <class V, int n>
inline void hash_leaves(const LeafHash<V>& hash, const typename V::R (&state)[n],
                        const typename V::R (&tweak)[n], typename V::R (&first)[n],
                        typename V::R (&second)[n]) {
  typename V::R middle[n];
  for (int i = 0; i < n; ++i) middle[i] = state[i];
  V::encrypt(hash.permutation[0], middle);
  for (int i = 0; i < n; ++i) first[i] = middle[i] = V::bit_xor(middle[i], tweak[i]);
  V::encrypt(hash.permutation[1], first);
  for (int i = 0; i < n; ++i) second[i] = first[i] = V::bit_xor(first[i], state[i]);
  V::encrypt(hash.permutation[2], second);
  for (int i = 0; i < n; ++i) second[i] = V::xor3(second[i], state[i], middle[i]);
}

// Check words of n registers of trees whose arrays begin at the given pointers.
template <class V, int n>
inline void generate_checks(const LeafHash<V>& hash, const std::uint8_t* const (&leaf)[2],
                            const std::uint64_t* alpha, std::uint64_t tree, std::uint8_t* out) {
  using R = typename V::R;
  constexpr int kGroup = n * V::kLanes;
  alignas(64) std::uint64_t words[2 * kGroup];
  for (int i = 0; i < kGroup; ++i) {
    words[2 * i] = alpha[i];
    words[2 * i + 1] = static_cast<std::uint32_t>(tree + i);
  }
  R tweak[n], sum[2][n] = {};
  for (int k = 0; k < n; ++k) tweak[k] = V::load(words + 2 * k * V::kLanes);
  for (int b = 0; b < 2; ++b) {
    R state[n], half[2][n];
    for (int k = 0; k < n; ++k) state[k] = V::load(leaf[b] + k * sizeof(R));
    hash_leaves<V, n>(hash, state, tweak, half[0], half[1]);
    for (int k = 0; k < n; ++k) {
      for (int h = 0; h < 2; ++h) sum[h][k] = V::bit_xor(sum[h][k], half[h][k]);
    }
  }
  for (int h = 0; h < 2; ++h) {
    alignas(64) std::uint8_t blocks[kGroup * 16];
    for (int k = 0; k < n; ++k) V::store(blocks + k * sizeof(R), sum[h][k]);
    for (int i = 0; i < kGroup; ++i) std::memcpy(out + 32 * i + 16 * h, blocks + 16 * i, 16);
  }
}

template <class V>
void check_gen(const CheckGenArgs& args) {
  constexpr int kRegisters = 8;
  constexpr std::size_t kGroup = kRegisters * V::kLanes;
  const LeafHash<V> hash(*args.keys);
  std::size_t tree = 0;
  for (; tree + kGroup <= args.num_trees; tree += kGroup) {
    generate_checks<V, kRegisters>(hash, {args.leaf[0] + 16 * tree, args.leaf[1] + 16 * tree},
                                   args.alpha + tree, args.first_tree + tree,
                                   args.out + kHashBytes * tree);
  }
  const std::size_t left = args.num_trees - tree;
  if (left == 0) return;
  alignas(64) std::uint8_t leaf[2][kGroup * 16] = {};
  std::uint64_t alpha[kGroup] = {};
  std::uint8_t out[kGroup * kHashBytes];
  for (int b = 0; b < 2; ++b) std::memcpy(leaf[b], args.leaf[b] + 16 * tree, 16 * left);
  std::memcpy(alpha, args.alpha + tree, left * sizeof *alpha);
  generate_checks<V, kRegisters>(hash, {leaf[0], leaf[1]}, alpha, args.first_tree + tree, out);
  std::memcpy(args.out + kHashBytes * tree, out, kHashBytes * left);
}

// What the leaves of one chunk of one tree have in common.
template <class V>
struct ChunkMasks {
  using R = typename V::R;
  R word[2];                // halves of the tree's check word
  R base;                   // D_j xor F
  const std::uint8_t* low;  // E at the first leaf, half 0; half 1 is kLowStride further on
};

template <class V>
class Verification {
 public:
  using R = typename V::R;

  explicit Verification(const VerifyArgs& args)
      : args_(args), hash_(*args.keys), fold_(V::make_key(*args.key_fold)), sum_(V::zero()) {}

  // A chunk never crosses a multiple of 1024 leaves: it has at most 64, and lies in an aligned
  // power of two of them.
  static void take(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
                   std::size_t count) {
    Verification& self = *static_cast<Verification*>(context);
    const VerifyArgs& args = self.args_;
    const std::uint8_t* word = args.check_words + kHashBytes * tree;
    const R base = V::bit_xor(V::template spread<1>(args.delta_trees + 16 * tree),
                              V::template spread<1>(args.delta_high + first / kLowLeaves * 16));
    const ChunkMasks<V> masks = {{V::template spread<1>(word), V::template spread<1>(word + 16)},
                                 base,
                                 args.delta_low + first % kLowLeaves * 16};
    std::uint64_t lane[V::kLanes];
    for (int i = 0; i < V::kLanes; ++i) lane[i] = first + i;
    const std::uint64_t number = static_cast<std::uint32_t>(args.first_tree + tree);
    R tweak = V::bit_xor(V::counters(lane), high_words<V>(number));
    std::size_t i = 0;
    for (; i + 8 * V::kLanes <= count; i += 8 * V::kLanes) {
      self.fold_leaves<8>(masks, states, i, count, tweak);
    }
    if (i + 4 * V::kLanes <= count) {
      self.fold_leaves<4>(masks, states, i, count, tweak);
      i += 4 * V::kLanes;
    }
    for (; i < count; i += V::kLanes) self.fold_leaves<1>(masks, states, i, count, tweak);
  }

  // The same of whole registers, whose lanes are trees: one leaf of each.
  static void take_lanes(void* context, std::size_t tree, std::size_t first, const void* nodes,
                         std::size_t stride, std::size_t count, int num_registers) {
    Verification& self = *static_cast<Verification*>(context);
    const R* registers = static_cast<const R*>(nodes);
    if (num_registers == 4) return self.fold_trees<4>(tree, first, registers, stride, count);
    if (num_registers == 2) return self.fold_trees<2>(tree, first, registers, stride, count);
    for (int k = 0; k < num_registers; ++k, ++registers, tree += V::kLanes) {
      self.fold_trees<1>(tree, first, registers, stride, count);
    }
  }

  // XORs the fold so far into the 16 bytes at `to`.
  void add_to(std::uint8_t* to) const {
    alignas(64) std::uint8_t blocks[sizeof(R)];
    V::store(blocks, sum_);
    for (std::size_t i = 0; i < sizeof(R); ++i) to[i % 16] ^= blocks[i];
  }

 private:
  // n registers of leaves from the i-th of the chunk; moves `tweak` on.
  template <int n>
  void fold_leaves(const ChunkMasks<V>& masks, const std::uint8_t* states, std::size_t i,
                   std::size_t count, R& tweak) {
    const R step = low_words<V>(V::kLanes);
    R state[n], tweaks[n], half[2][n];
    for (int k = 0; k < n; ++k) {
      state[k] = V::load(states + 16 * i + k * sizeof(R));
      tweaks[k] = tweak;
      tweak = V::template add<8>(tweak, step);
    }
    hash_leaves<V, n>(hash_, state, tweaks, half[0], half[1]);
    for (int h = 0; h < 2; ++h) {
      const std::uint8_t* low = masks.low + h * kLowStride + 16 * i;
      for (int k = 0; k < n; ++k) {
        const R corrected = V::xor_and(half[h][k], V::spread_lsb(state[k]), masks.word[h]);
        half[h][k] = V::xor3(corrected, masks.base, V::load(low + k * sizeof(R)));
      }
      V::encrypt(fold_, half[h]);
    }
    for (int k = 0; k < n - 1; ++k) sum_ = V::xor3(sum_, half[0][k], half[1][k]);
    const R last = V::bit_xor(half[0][n - 1], half[1][n - 1]);
    sum_ = V::xor_and(sum_, last, existing_lanes(count - i - (n - 1) * V::kLanes));
  }

  // What the leaves of the trees of one register have in common.
  struct TreeMasks {
    R word[2];
    R base[2];  // D_j xor F, and keys that the steps around it leave to be added
    R tweak;
  };

  TreeMasks masks_of(std::size_t tree, std::size_t first) const {
    alignas(64) std::uint8_t words[2][sizeof(R)];
    alignas(64) std::uint64_t tweak[2 * V::kLanes];
    for (std::size_t lane = 0; lane < V::kLanes; ++lane) {
      const std::uint8_t* const word = args_.check_words + kHashBytes * (tree + lane);
      for (int h = 0; h < 2; ++h) std::memcpy(words[h] + 16 * lane, word + 16 * h, 16);
      tweak[2 * lane] = first;
      tweak[2 * lane + 1] = static_cast<std::uint32_t>(args_.first_tree + tree + lane);
    }
    const R high = V::template spread<1>(args_.delta_high + first / kLowLeaves * 16);
    const R base = whiten<V>(fold_, V::bit_xor(V::load(args_.delta_trees + 16 * tree), high));
    return {{V::load(words[0]), V::load(words[1])},
            {whiten<V>(hash_.permutation[2], base), base},
            V::load(tweak)};
  }

  template <int side>
  void fold_trees(std::size_t tree, std::size_t first, const R* nodes, std::size_t stride,
                  std::size_t count) {
    constexpr std::size_t kLeaves = 8 / side;
    TreeMasks masks[side];
    for (int k = 0; k < side; ++k) masks[k] = masks_of(tree + k * V::kLanes, first);
    const std::uint8_t* low = args_.delta_low + first % kLowLeaves * 16;
    std::size_t leaf = 0;
    for (; leaf + kLeaves <= count; leaf += kLeaves, low += kLeaves * 16) {
      fold_registers<side, kLeaves>(masks, nodes + leaf * stride, stride, low);
    }
    for (; leaf < count; ++leaf, low += 16) {
      fold_registers<side, 1>(masks, nodes + leaf * stride, stride, low);
    }
  }

  // `leaves` leaves of `side` registers; moves the tweaks on. As `fold_leaves` does, but every last
  // key adds what a step adds to its result, and whitens that for the next permutation.
  template <int side, int leaves>
  FSL_INLINE void fold_registers(TreeMasks (&masks)[side], const R* nodes, std::size_t stride,
                                 const std::uint8_t* low) {
    constexpr int n = side * leaves;
    const typename V::Key &first_key = hash_.permutation[0], &second_key = hash_.permutation[1],
                          &third_key = hash_.permutation[2];
    const R one = low_words<V>(1);
    R x[n], last[n], middle[n], half[2][n];
    const auto state_of = [&](int i) FSL_INLINE_LAMBDA {
      return reinterpret_cast<const std::uint8_t*>(nodes + i / side * stride + i % side);
    };
    FSL_UNROLL
    for (int i = 0; i < n; ++i) {
      x[i] = whiten<V>(first_key, V::load(state_of(i)));
      last[i] = V::bit_xor(masks[i % side].tweak, between<V>(first_key, second_key));
      masks[i % side].tweak = V::template add<8>(masks[i % side].tweak, one);
    }
    hash_whitened<V>(first_key, x, last);
    FSL_UNROLL
    for (int i = 0; i < n; ++i) {
      middle[i] = x[i];
      last[i] = V::bit_xor(V::load(state_of(i)), between<V>(second_key, third_key));
    }
    hash_whitened<V>(second_key, x, last);
    FSL_UNROLL
    for (int i = 0; i < n; ++i) {
      half[0][i] = x[i];
      last[i] = V::xor3(V::load(state_of(i)), middle[i], between<V>(third_key, second_key));
    }
    hash_whitened<V>(third_key, x, last);
    FSL_UNROLL
    for (int i = 0; i < n; ++i) half[1][i] = x[i];
    FSL_UNROLL
    for (int h = 0; h < 2; ++h) {
      FSL_UNROLL
      for (int i = 0; i < n; ++i) {
        const TreeMasks& own = masks[i % side];
        const auto control = V::control_from(V::doubled(state_of(i)));
        const R e = V::template spread<1>(low + h * kLowStride + i / side * 16);
        const R corrected = xor_chosen<V>(half[h][i], control, own.word[h]);
        half[h][i] = V::xor3(corrected, own.base[h], e);
        last[i] = fold_.round[10];
      }
      hash_whitened<V>(fold_, half[h], last);
    }
    FSL_UNROLL
    for (int i = 0; i < n; ++i) sum_ = V::xor3(sum_, half[0][i], half[1][i]);
  }

  // All ones in the first `count` lanes.
  static R existing_lanes(std::size_t count) {
    alignas(64) static constexpr Ones kOnes = {};
    constexpr std::size_t kLanes = V::kLanes;
    return V::load(kOnes.bytes + sizeof(R) - 16 * (count < kLanes ? count : kLanes));
  }
  struct Ones {
    constexpr Ones() {
      for (std::size_t i = 0; i < sizeof(R); ++i) bytes[i] = 0xff;
    }
    std::uint8_t bytes[2 * sizeof(R)] = {};
  };

  const VerifyArgs args_;
  const LeafHash<V> hash_;
  const typename V::Key fold_;
  R sum_;
};

template <class V>
void verify(const Trees& trees, const Partition& partition, std::size_t begin, std::size_t end,
            const VerifyArgs& args, void* memory) {
  Arena arena(memory);
  Verification<V> verification(args);
  Sink sink = {Verification<V>::take, nullptr, &verification};
  if constexpr (hashes_whitened<V>) {
    if (partition.units_per_tree == 0) sink.take_lanes = Verification<V>::take_lanes;
  }
  walk<V>(trees, partition, begin, end, sink, arena);
  verification.add_to(args.fold);
}

}  // namespace
}  // namespace fsl
