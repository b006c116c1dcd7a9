// Evaluation of all leaves. The registers of a group hold one tree (or subtree) a lane; a group is
// expanded breadth-first in a buffer that stays in the first-level cache, deep trees in stages.
// Control bits act through masks alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "fused_steps.h"
#include "path.h"
#include "rows_ahead.h"

namespace fsl {
namespace {

// Where leaves go.
struct Sink {
  // Takes `count` states of one tree, leaves `first` and after, with room for whole registers.
  void (*take)(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
               std::size_t count);
  // If not null, takes the leaves of kLanes lanes at once where all have `count`: registers of one
  // leaf of each, `stride` registers apart, and `num_registers` of these side by side. The first
  // lane is of `tree` and at leaf `first`; the others are the next trees, or the next subtrees
  // where the partition splits trees.
  void (*take_lanes)(void* context, std::size_t tree, std::size_t first, const void* nodes,
                     std::size_t stride, std::size_t count, int num_registers);
  void* context;
  // If not null, is told of the leaves of a table that are made, and brings their rows meanwhile.
  RowsAhead* rows = nullptr;
  bool shared_table = false;  // of `rows`
};

inline std::size_t ceil_shift(std::size_t value, unsigned shift) {
  return ((value - 1) >> shift) + 1;
}

// Leaves from the first of a lane's tree or subtree to the first of the next lane's.
inline std::size_t leaves_between_lanes(const Trees& trees, const Partition& partition) {
  return partition.units_per_tree ? std::size_t{1} << (trees.depth - partition.split_level)
                                  : trees.num_leaves;
}

// Children of `nodes` parents of `n` interleaved registers. `words`: n left, then n right words.
// Reads all parents before it writes, so children may overlap them.
template <class V, int n, int nodes>
FSL_INLINE void expand_nodes(const typename V::Key& key, const typename V::R* words,
                             const typename V::R* parents, typename V::R* children) {
  using R = typename V::R;
  constexpr int count = n * nodes;
  const R lsb_high = V::lsb_high();
  R sigma[count], chosen[count], x[2 * count];
  FSL_UNROLL
  for (int i = 0; i < count; ++i) {
    const R state = V::load(parents + i);
    chosen[i] = V::spread_lsb(state);
    sigma[i] = V::sigma(V::clear(state, V::lsb()));
    x[2 * i] = sigma[i];
    x[2 * i + 1] = V::bit_xor(sigma[i], lsb_high);  // sigma(s xor 1)
  }
  V::encrypt(key, x);
  FSL_UNROLL
  for (int i = 0; i < count; ++i) {
    const int node = i / n, k = i % n;
    const R left = V::bit_xor(x[2 * i], sigma[i]);
    const R right = V::xor3(x[2 * i + 1], sigma[i], lsb_high);
    V::store(children + 2 * node * n + k, V::xor_and(left, chosen[i], words[k]));
    V::store(children + (2 * node + 1) * n + k, V::xor_and(right, chosen[i], words[n + k]));
  }
}

// The same for paths that hash whitened inputs. `settled`: the parents were stored so long ago that
// loads across two of them need not wait for the stores.
template <class V, int n, int nodes, bool settled>
FSL_INLINE void expand_nodes_whitened(const typename V::Key& key, const typename V::R* words,
                                      const typename V::R* parents, typename V::R* children) {
  using R = typename V::R;
  constexpr int count = n * nodes;
  R x[2 * count], last[2 * count];  // left and right child of every parent
  FSL_UNROLL
  for (int i = 0; i < count; ++i) {
    R low, high;
    if constexpr (settled) {
      const auto* const parent = reinterpret_cast<const std::uint8_t*>(parents + i);
      low = V::doubled(parent);
      high = V::doubled(parent + 8);
    } else {
      const R state = V::load(parents + i);
      low = V::low_words(state, state);
      high = V::high_words(state, state);
    }
    const auto control = V::control_from(low);
    x[2 * i] = whiten<V>(key, V::sigma_of_seed_from(low, high));
    x[2 * i + 1] = V::bit_xor(x[2 * i], V::lsb_high());  // sigma(s xor 1)
    FSL_UNROLL
    for (int side = 0; side < 2; ++side) {
      const R plain = last_key<V>(key, x[2 * i + side]);
      last[2 * i + side] = xor_chosen<V>(plain, control, words[side * n + i % n]);
    }
  }
  hash_whitened<V>(key, x, last);
  FSL_UNROLL
  for (int i = 0; i < 2 * count; ++i) {
    const int node = i / 2 / n, k = i / 2 % n;
    V::store(children + (2 * node + i % 2) * n + k, x[i]);
  }
}

// Replaces `width` nodes by their children, in place and therefore from the last node down, `step`
// nodes at a time while there are so many. Meanwhile brings `rows`, if not null.
template <class V, int n, int step = 4 / n>
inline void expand_level(const typename V::Key& key, const typename V::R* words,
                         typename V::R* nodes, std::size_t width, RowsAhead* rows) {
  if constexpr (hashes_whitened<V>) {
    constexpr std::size_t kSettled = 4 * step;  // nodes between those stored last and those loaded
    for (; width >= step + kSettled; width -= step) {
      expand_nodes_whitened<V, n, step, true>(key, words, nodes + (width - step) * n,
                                              nodes + 2 * (width - step) * n);
      if (rows) rows->bring();
    }
    for (; width >= step; width -= step) {
      expand_nodes_whitened<V, n, step, false>(key, words, nodes + (width - step) * n,
                                               nodes + 2 * (width - step) * n);
    }
  } else {
    for (; width >= step; width -= step) {
      expand_nodes<V, n, step>(key, words, nodes + (width - step) * n,
                               nodes + 2 * (width - step) * n);
      if (rows) rows->bring();
    }
  }
  if constexpr (step > 1) {
    if (width) expand_level<V, n, step / 2>(key, words, nodes, width, rows);
  }
}

template <class V, int n>
class Walker {
 public:
  using R = typename V::R;
  static constexpr std::size_t kGroup = n * V::kLanes;

  Walker(const Trees& trees, const Partition& partition, Sink sink, Arena& arena)
      : trees_(trees),
        partition_(partition),
        sink_(sink),
        key_(V::make_key(*trees.key)),
        words_(arena.take<R>(2 * n * (trees.depth + 1))),
        tile_(arena.take<std::uint8_t>(V::kLanes * kChunkLeaves * 16)),
        stages_(arena.take<R>((trees.depth / kStageLevels + 2) * kStageStride)) {}

  void run(std::size_t begin, std::size_t end) {
    if (partition_.units_per_tree == 0) {
      for (std::size_t unit = begin; unit < end; ++unit) run_trees(unit * kGroup);
      return;
    }
    std::size_t top_tree = trees_.num_trees;
    for (std::size_t unit = begin; unit < end; ++unit) {
      const std::size_t tree = unit / partition_.units_per_tree;
      if (tree != top_tree) expand_top(tree);
      top_tree = tree;
      run_subtrees(tree, (unit % partition_.units_per_tree) * kGroup);
    }
  }

 private:
  static constexpr std::size_t kStageStride = kStageRegisters + 2 * kGroup;

  // Registers from `count` blocks at `from`, zero beyond them.
  static void load_blocks(const std::uint8_t* from, std::size_t count, R* to) {
    alignas(64) std::uint8_t padded[kGroup * 16] = {};
    if (count < kGroup) {
      std::memcpy(padded, from, count * 16);
      from = padded;
    }
    for (int k = 0; k < n; ++k) V::store(to + k, V::load(from + k * sizeof(R)));
  }

  void set_words(unsigned level, int k, R left, R right_bit) {
    R* words = words_ + 2 * n * level;
    V::store(words + k, left);
    V::store(words + n + k, V::bit_or(V::clear(left, V::lsb()), right_bit));
  }

  // Lanes are the trees from `tree` on.
  void run_trees(std::size_t tree) {
    const std::size_t left = trees_.num_trees - tree;
    const std::size_t count = left < kGroup ? left : kGroup;
    for (unsigned level = 0; level < trees_.depth; ++level) {
      R words[n];
      std::uint8_t right[kGroup] = {};
      load_blocks(trees_.cw + level * trees_.cw_stride + tree * 16, count, words);
      std::memcpy(right, trees_.cw_right + level * trees_.right_stride + tree, count);
      for (int k = 0; k < n; ++k) {
        set_words(level, k, words[k], V::bits_from_bytes(right + k * V::kLanes));
      }
    }
    R roots[n];
    load_blocks(trees_.roots + tree * 16, count, roots);
    tree_ = tree;
    num_lanes_ = count;
    subtree_leaves_ = 0;
    descend(0, 0, roots, 0);
  }

  // Expands one tree down to the split level, into the first stage, as one lane of one register.
  void expand_top(std::size_t tree) {
    for (unsigned level = 0; level < trees_.depth; ++level) {
      alignas(64) std::uint8_t copies[V::kLanes * 16];
      std::uint8_t right[V::kLanes];
      for (int lane = 0; lane < V::kLanes; ++lane) {
        std::memcpy(copies + 16 * lane, trees_.cw + level * trees_.cw_stride + tree * 16, 16);
        right[lane] = trees_.cw_right[level * trees_.right_stride + tree];
      }
      for (int k = 0; k < n; ++k) {
        set_words(level, k, V::load(copies), V::bits_from_bytes(right));
      }
    }
    std::uint8_t* top = reinterpret_cast<std::uint8_t*>(stages_);
    std::memcpy(top, trees_.roots + tree * 16, 16);
    for (unsigned level = 0; level < partition_.split_level; ++level) {
      const std::size_t width = ceil_shift(trees_.num_leaves, trees_.depth - level);
      const R words[2] = {V::load(words_ + 2 * n * level), V::load(words_ + 2 * n * level + n)};
      for (std::size_t node = width; node-- > 0;) expand_one(words, top, node);
    }
  }

  void expand_one(const R* words, std::uint8_t* blocks, std::size_t node) {
    R parent = V::zero(), children[2];
    std::memcpy(&parent, blocks + node * 16, 16);
    expand_nodes<V, 1, 1>(key_, words, &parent, children);
    std::memcpy(blocks + 2 * node * 16, &children[0], 16);
    std::memcpy(blocks + (2 * node + 1) * 16, &children[1], 16);
  }

  // Lanes are the subtrees from `node` on, at the split level of the tree in the first stage.
  void run_subtrees(std::size_t tree, std::size_t node) {
    const unsigned below = trees_.depth - partition_.split_level;
    const std::size_t left = ceil_shift(trees_.num_leaves, below) - node;
    R roots[n];
    tree_ = tree;
    num_lanes_ = left < kGroup ? left : kGroup;
    subtree_leaves_ = std::size_t{1} << below;
    load_blocks(reinterpret_cast<std::uint8_t*>(stages_) + node * 16, num_lanes_, roots);
    descend(partition_.split_level, node << below, roots, 1);
  }

  // All leaves below `roots`, whose first leaf (in lane 0) is `first`.
  void descend(unsigned level, std::size_t first, const R* roots, std::size_t stage) {
    const unsigned below = trees_.depth - level;
    const unsigned most = kStageLevels - (n == 4 ? 2 : n == 2 ? 1 : 0);
    const unsigned steps = below <= most ? below : (below - 1) % most + 1;
    std::size_t span = trees_.num_leaves - first;
    if (span > std::size_t{1} << below) span = std::size_t{1} << below;
    R* nodes = stages_ + stage * kStageStride;
    for (int k = 0; k < n; ++k) V::store(nodes + k, V::load(roots + k));
    std::size_t width = 1;
    RowsAhead* const rows = steps == below ? sink_.rows : nullptr;
    if (rows) tell(rows, first, span);
    for (unsigned i = 0; i < steps; ++i) {
      expand_level<V, n>(key_, words_ + 2 * n * (level + i), nodes, width, rows);
      width = ceil_shift(span, below - i - 1);
    }
    if (steps == below) return emit(nodes, width, first);
    for (std::size_t node = 0; node < width; ++node) {
      descend(level + steps, first + (node << (below - steps)), nodes + node * n, stage + 1);
    }
  }

  // Hands the leaf states to the sink: whole registers where it takes them, else lane by lane.
  void emit(const R* nodes, std::size_t width, std::size_t first) {
    constexpr std::size_t kTile = kChunkLeaves * 16;
    int whole = 0;
    if (sink_.take_lanes) {
      while (whole < n && is_whole(whole, first, width)) ++whole;
      if (whole) sink_.take_lanes(sink_.context, tree_, first, nodes, n, width, whole);
    }
    for (int k = whole; k < n; ++k) {
      for (std::size_t from = 0; from < width; from += kChunkLeaves) {
        const std::size_t count = width - from < kChunkLeaves ? width - from : kChunkLeaves;
        for (std::size_t i = 0; i < count; i += V::kLanes) {
          R columns[V::kLanes];
          V::transpose(nodes + (from + i) * n + k, n, columns);
          for (int lane = 0; lane < V::kLanes; ++lane) {
            V::store(tile_ + lane * kTile + i * 16, columns[lane]);
          }
        }
        for (std::size_t lane = 0; lane < V::kLanes && k * V::kLanes + lane < num_lanes_; ++lane) {
          hand_over(k * V::kLanes + lane, first, from, tile_ + lane * kTile, count);
        }
      }
    }
  }

  // Of the `width` leaves from `first` on that all lanes are about to make.
  void tell(RowsAhead* rows, std::size_t first, std::size_t width) const {
    const std::size_t apart = subtree_leaves_      ? subtree_leaves_
                              : sink_.shared_table ? 0
                                                   : trees_.num_leaves;
    const std::size_t leaf = sink_.shared_table ? first : tree_ * trees_.num_leaves + first;
    rows->begin(leaf, width, num_lanes_, apart, V::kLanes, width * n / 4);
  }

  std::size_t tree_of(std::size_t lane) const { return subtree_leaves_ ? tree_ : tree_ + lane; }

  // Whether every lane of register k has a tree or subtree, and `width` leaves of it.
  bool is_whole(int k, std::size_t first, std::size_t width) const {
    const std::size_t end = std::size_t(k + 1) * V::kLanes;
    return end <= num_lanes_ && first + (end - 1) * subtree_leaves_ + width <= trees_.num_leaves;
  }

  void hand_over(std::size_t lane, std::size_t first, std::size_t from, const std::uint8_t* states,
                 std::size_t count) {
    first += lane * subtree_leaves_ + from;
    if (first >= trees_.num_leaves) return;
    if (sink_.rows) sink_.rows->at(lane, from / kChunkLeaves);
    const std::size_t left = trees_.num_leaves - first;
    sink_.take(sink_.context, tree_of(lane), first, states, left < count ? left : count);
  }

  const Trees trees_;
  const Partition partition_;
  const Sink sink_;
  const typename V::Key key_;
  R* const words_;
  std::uint8_t* const tile_;
  R* const stages_;
  std::size_t tree_ = 0;
  std::size_t num_lanes_ = 0;
  std::size_t subtree_leaves_ = 0;  // 0 when lanes are trees
};

template <class V>
void walk(const Trees& trees, const Partition& partition, std::size_t begin, std::size_t end,
          Sink sink, Arena& arena) {
  if (partition.interleave == 4) return Walker<V, 4>(trees, partition, sink, arena).run(begin, end);
  if (partition.interleave == 2) return Walker<V, 2>(trees, partition, sink, arena).run(begin, end);
  Walker<V, 1>(trees, partition, sink, arena).run(begin, end);
}

inline unsigned interleave_of(unsigned levels) {
  return levels + 2 <= kStageLevels ? 4 : levels + 1 <= kStageLevels ? 2 : 1;
}

template <class V>
Partition partition(std::size_t num_trees, std::size_t num_leaves, unsigned depth,
                    unsigned num_threads) {
  const unsigned one_stage = interleave_of(depth);
  const bool many = num_trees >= 4 * V::kLanes;  // these fill two registers in several stages, too
  Partition whole = {0, 0, 0, 0, many && one_stage == 1 ? 2 : one_stage};
  whole.trees_per_unit = whole.interleave * V::kLanes;
  whole.num_units = (num_trees + whole.trees_per_unit - 1) / whole.trees_per_unit;
  const bool few = num_trees * 2 < whole.trees_per_unit || whole.num_units < num_threads;
  if (depth < 13 && (depth < 6 || !few)) return whole;

  Partition split = {0, 0, 0, 0, 0};
  split.split_level = depth / 2 + 1 < kStageLevels ? depth / 2 + 1 : kStageLevels;
  split.interleave = interleave_of(depth - split.split_level);
  const std::size_t group = split.interleave * V::kLanes;
  const std::size_t subtrees = ceil_shift(num_leaves, depth - split.split_level);
  split.units_per_tree = (subtrees + group - 1) / group;
  split.num_units = num_trees * split.units_per_tree;
  return split;
}

}  // namespace
}  // namespace fsl
