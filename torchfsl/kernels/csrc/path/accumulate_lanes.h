// Output shares of whole registers of lanes, straight from the leaves as the walk leaves them.
//
// A register holds one leaf of kLanes trees, or of kLanes subtrees of one tree. Its conversion
// needs no move between lanes, and only finished shares are transposed: kLanes registers of them
// become one run of kLanes blocks for each lane, which is one addition to the accumulator. What
// fills no run is added block by block. Sums over leaves, where they are wanted, are made of the
// shares before they are transposed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "accumulate_pieces.h"
#include "ahead.h"
#include "arena.h"
#include "conversion.h"
#include "fused_steps.h"
#include "lane_sums.h"
#include "path.h"
#include "ring_lanes.h"

namespace fsl {
namespace {

// What the leaves of kLanes trees, or subtrees of one tree, have in common. Lanes lie `hint_stride`
// bytes apart in the hints and `lane_stride` in the accumulator.
// The functions with the loops take it and the leaves by value: what they refer to would be loaded
// again after every store of bytes, which might have changed it.
template <class V>
struct LaneGroup {
  const typename V::Key* key;
  const std::uint8_t* counters;  // of block_counters, 16 bytes each
  typename V::R* hints;          // one block a register
  std::size_t payload;
  std::size_t hint_stride;  // 0 where all lanes are of one tree
  std::size_t lane_stride;
  Ahead* ahead;
  bool often;  // whether batches bring what comes next: asked where they are, not compiled twice
  const std::uint8_t* lane_hints = nullptr;  // of the first lane
  LaneTotals totals = {};
};

// Leaves from `nodes` on, `stride` registers apart, and where those of the first lane are summed.
template <class V>
struct LaneLeaves {
  const typename V::R* nodes;
  std::size_t stride;
  std::size_t count;
  std::uint8_t* acc;
};

// The states of leaf `leaf` in the k-th of the registers beside each other.
template <class V>
FSL_INLINE const std::uint8_t* states_at(const LaneLeaves<V>& from, std::size_t leaf, int k = 0) {
  return reinterpret_cast<const std::uint8_t*>(from.nodes + leaf * from.stride + k);
}

// Blocks on their way through AES: block b of leaf i of a batch is register i * blocks + b.
template <class V, int leaves, int blocks>
struct Batch {
  using R = typename V::R;
  R x[leaves * blocks];
  R added[leaves * blocks];  // at the end: inputs, or last keys

  // The blocks `block` and after of the leaves `leaf` and after.
  FSL_INLINE void start(const LaneGroup<V>& group, const LaneLeaves<V>& from, std::size_t leaf,
                        std::size_t block) {
    FSL_UNROLL
    for (int i = 0; i < leaves; ++i) {
      const R seed = sigma_of(states_at(from, leaf + i));
      FSL_UNROLL
      for (int b = 0; b < blocks; ++b) {
        const int at = i * blocks + b;
        x[at] = V::bit_xor(seed, V::template spread<1>(group.counters + (block + b) * 16));
        if constexpr (hashes_whitened<V>) {
          added[at] = last_key<V>(*group.key, x[at]);
        } else {
          V::store(added + at, x[at]);
        }
      }
    }
  }

  FSL_INLINE void encrypt(const LaneGroup<V>& group) {
    if constexpr (hashes_whitened<V>) {
      hash_whitened<V>(*group.key, x, added);
    } else {
      V::encrypt(*group.key, x);
      FSL_UNROLL
      for (int i = 0; i < leaves * blocks; ++i) x[i] = V::bit_xor(x[i], V::load(added + i));
    }
  }
  // Encrypts while `aside.operator()<0>()` and then `<1>()` work on something else.
  template <class F>
  FSL_INLINE void encrypt_beside(const LaneGroup<V>& group, F aside) {
    if constexpr (hashes_whitened<V>) {
      hash_whitened_beside<V>(*group.key, x, added, aside);
    } else {
      encrypt(group);
      aside.template operator()<0>();
      aside.template operator()<1>();
    }
  }

 private:
  static FSL_INLINE R sigma_of(const std::uint8_t* states) {
    if constexpr (hashes_whitened<V>) {
      return V::sigma_of_seed_from(V::doubled(states), V::doubled(states + 8));
    } else {
      return V::sigma(V::clear(V::load(states), V::lsb()));
    }
  }
};

// Share of one block from its register of a batch. The state is loaded again, registers being few.
template <class V, unsigned width>
FSL_INLINE typename V::R share_of(const LaneGroup<V>& group, const LaneLeaves<V>& from,
                                  std::size_t leaf, std::size_t block, typename V::R converted) {
  const std::uint8_t* const states = states_at(from, leaf);
  const auto word = V::load(group.hints + block);
  if constexpr (hashes_whitened<V>) {
    return add_chosen<V, width>(converted, word, V::control_from(V::doubled(states)));
  } else {
    return V::template add<width>(converted, V::bit_and(word, V::spread_lsb(V::load(states))));
  }
}

// Encrypts batches of leaves from `leaf` on while there are whole ones. While one is under way,
// `finish.operator()<half>(leaf, registers)` does half of the work on the batch before: AES alone
// leaves most execution ports idle. With `group.often`, batches bring what comes next.
template <class V, int leaves, int blocks, class F>
FSL_INLINE void for_batches(const LaneGroup<V>& group, const LaneLeaves<V>& from, std::size_t& leaf,
                            std::size_t block, F finish) {
  if (leaf + leaves > from.count) return;
  Batch<V, leaves, blocks> done;
  done.start(group, from, leaf, block);
  if (group.often) {
    group.ahead->bring_beside((leaves + (from.count - leaf) % leaves) * blocks * V::kLanes);
  }
  done.encrypt(group);
  for (leaf += leaves; leaf + leaves <= from.count; leaf += leaves) {
    Batch<V, leaves, blocks> next;
    next.start(group, from, leaf, block);
    if (group.often) group.ahead->bring_beside(leaves * blocks * V::kLanes);
    next.encrypt_beside(group, [&]<int half>() FSL_INLINE_LAMBDA {
      finish.template operator()<half>(leaf - leaves, done.x);
    });
    FSL_UNROLL
    for (int i = 0; i < leaves * blocks; ++i) done.x[i] = next.x[i];
  }
  finish.template operator()<0>(leaf - leaves, done.x);
  finish.template operator()<1>(leaf - leaves, done.x);
}

template <class V, unsigned width, bool negate>
FSL_INLINE void add_run(std::uint8_t* to, typename V::R share) {
  V::store(to, with_share<V, width, negate>(V::load(to), share));
}

// Adds registers [begin, end) of a batch with `blocks` blocks a leaf, in runs of kLanes.
template <class V, unsigned width, bool negate, int blocks, int begin, int end, class Sums>
FSL_INLINE void add_runs(const LaneGroup<V>& group, const LaneLeaves<V>& from, std::size_t leaf,
                         std::size_t block, typename V::R* batch, Sums& sums) {
  using R = typename V::R;
  FSL_UNROLL
  for (int i = begin; i < end; i += V::kLanes) {
    R runs[V::kLanes];
    FSL_UNROLL
    for (int j = i; j < i + V::kLanes; ++j) {
      batch[j] = share_of<V, width>(group, from, leaf + j / blocks, block + j % blocks, batch[j]);
      sums.add(j % blocks, batch[j]);
    }
    V::transpose(batch + i, 1, runs);
    std::uint8_t* to = from.acc + (leaf + i / blocks) * group.payload + block * 16;
    FSL_UNROLL
    for (int lane = 0; lane < V::kLanes; ++lane, to += group.lane_stride) {
      add_run<V, width, negate>(to, runs[lane]);
    }
  }
}

// Adds the low `bytes` bytes of one block of a leaf of every lane.
template <class V, unsigned width, bool negate, int bytes>
FSL_INLINE void add_ends(const LaneGroup<V>& group, std::uint8_t* first, typename V::R share) {
  using R = typename V::R;
  for_blocks<V>(share, [&]<int lane>(R piece) FSL_INLINE_LAMBDA {
    std::uint8_t* const to = first + lane * group.lane_stride;
    const R old = Lanes<V, width>::template load<bytes>(to);
    Lanes<V, width>::template store<bytes>(to, with_share<V, width, negate>(old, piece));
  });
}

// Adds one block of the leaves from `leaf` on, or its first `bytes` bytes; `fixed` are the bytes if
// they are not 0.
template <class V, unsigned width, bool negate, int fixed, bool lifts>
void add_block_column(const LaneGroup<V> group, const LaneLeaves<V> from, std::size_t leaf,
                      std::size_t block, std::size_t bytes = fixed) {
  using R = typename V::R;
  ColumnSums<V, width, lifts, 1> sums;
  const auto add = [&](std::size_t at, R encrypted) FSL_INLINE_LAMBDA {
    const R share = share_of<V, width>(group, from, at, block, encrypted);
    sums.add(0, share);
    std::uint8_t* const first = from.acc + at * group.payload + block * 16;
    if constexpr (fixed == 0) {
      for_blocks<V>(share, [&]<int lane>(R piece) FSL_INLINE_LAMBDA {
        add_short<V, width>(first + lane * group.lane_stride, piece, bytes, negate);
      });
    } else {
      add_ends<V, width, negate, fixed>(group, first, share);
    }
  };
  for_batches<V, 8, 1>(group, from, leaf, block,
                       [&]<int half>(std::size_t first, const R* batch) FSL_INLINE_LAMBDA {
                         FSL_UNROLL
                         for (int i = 4 * half; i < 4 * half + 4; ++i) add(first + i, batch[i]);
                       });
  for (; leaf < from.count; ++leaf) {
    Batch<V, 1, 1> batch;
    batch.start(group, from, leaf, block);
    batch.encrypt(group);
    add(leaf, batch.x[0]);
  }
  sums.add_blocks_to(group.totals, 0, block * 16);
}

// Columns of `blocks` blocks: kLanes of a leaf, or fewer if they are the whole payload.
template <class V, unsigned width, bool negate, int blocks, bool lifts>
void add_run_column(const LaneGroup<V> group, const LaneLeaves<V> from, std::size_t block) {
  using R = typename V::R;
  constexpr int few = V::kLanes / blocks, many = 8 / blocks;
  ColumnSums<V, width, lifts, blocks> sums;
  std::size_t leaf = 0;
  for_batches<V, many, blocks>(group, from, leaf, block,
                               [&]<int half>(std::size_t first, R* batch) FSL_INLINE_LAMBDA {
                                 add_runs<V, width, negate, blocks, 4 * half, 4 * half + 4>(
                                     group, from, first, block, batch, sums);
                               });
  for (; leaf + few <= from.count; leaf += few) {
    Batch<V, few, blocks> batch;
    batch.start(group, from, leaf, block);
    batch.encrypt(group);
    add_runs<V, width, negate, blocks, 0, V::kLanes>(group, from, leaf, block, batch.x, sums);
  }
  for (int b = 0; b < blocks; ++b) sums.add_blocks_to(group.totals, b, (block + b) * 16);
  for (int b = 0; leaf < from.count && b < blocks; ++b) {
    add_block_column<V, width, negate, 16, lifts>(group, from, leaf, block + b);
  }
}

// The last kLanes blocks of every leaf and `tail` bytes behind them, together: additions of short
// ends take long, and AES of whole blocks goes on beside them.
template <class V, unsigned width, bool negate, int tail, bool lifts>
void add_run_and_tail(const LaneGroup<V> group, const LaneLeaves<V> from, std::size_t block) {
  using R = typename V::R;
  constexpr int kBlocks = V::kLanes + 1;
  ColumnSums<V, width, lifts, kBlocks> sums;
  const auto finish = [&](std::size_t leaf, R* own) FSL_INLINE_LAMBDA {
    add_runs<V, width, negate, V::kLanes, 0, V::kLanes>(group, from, leaf, block, own, sums);
    const std::size_t last = block + V::kLanes;
    const R share = share_of<V, width>(group, from, leaf, last, own[V::kLanes]);
    sums.add(V::kLanes, share);
    std::uint8_t* const first = from.acc + leaf * group.payload + last * 16;
    add_ends<V, width, negate, tail>(group, first, share);
  };
  std::size_t leaf = 0;
  for_batches<V, 2, kBlocks>(group, from, leaf, block,
                             [&]<int half>(std::size_t first, R* batch) FSL_INLINE_LAMBDA {
                               finish(first + half, batch + half * kBlocks);
                             });
  for (; leaf < from.count; ++leaf) {
    Batch<V, 1, kBlocks> batch;
    batch.start(group, from, leaf, block);
    batch.encrypt(group);
    finish(leaf, batch.x);
  }
  for (int b = 0; b < kBlocks; ++b) sums.add_blocks_to(group.totals, b, (block + b) * 16);
}

// Payloads of 8 bytes: two registers of one block a leaf become half a register each.
template <class V, unsigned width, bool negate, bool lifts>
void add_halves(const LaneGroup<V> group, const LaneLeaves<V> from) {
  using R = typename V::R;
  constexpr int kLanes = V::kLanes;
  ColumnSums<V, width, lifts, 1> sums;
  R first[kLanes];
  std::size_t leaf = 0;
  for_batches<V, 2 * kLanes, 1>(
      group, from, leaf, 0, [&]<int half>(std::size_t at, R* batch) FSL_INLINE_LAMBDA {
        R runs[kLanes];
        FSL_UNROLL
        for (int i = half * kLanes; i < (half + 1) * kLanes; ++i) {
          batch[i] = share_of<V, width>(group, from, at + i, 0, batch[i]);
          sums.add(0, batch[i]);
        }
        V::transpose(batch + half * kLanes, 1, runs);
        std::uint8_t* to = from.acc + at * 8;
        FSL_UNROLL
        for (int lane = 0; lane < kLanes; ++lane, to += group.lane_stride) {
          if (half == 0) first[lane] = runs[lane];
          if (half == 1) {
            add_run<V, width, negate>(to, V::template pack<8>(first[lane], runs[lane]));
          }
        }
      });
  sums.add_blocks_to(group.totals, 0, 0);
  add_block_column<V, width, negate, 8, lifts>(group, from, leaf, 0);
}

// Adds the column from `block` on, and returns the block behind it: as many blocks as fill runs, or
// else one. The end of a payload goes along with such blocks before it.
template <class V, unsigned width, bool negate, bool lifts>
std::size_t add_column_at(const LaneGroup<V>& group, const LaneLeaves<V>& from, std::size_t block) {
  const std::size_t payload = group.payload, left = payload - block * 16;
  if constexpr (width <= 8) {
    if (payload == 8) return add_halves<V, width, negate, lifts>(group, from), 1;
  }
  if constexpr (V::kLanes > 1) {
    if (payload == 16) return add_run_column<V, width, negate, 1, lifts>(group, from, 0), 1;
  }
  if constexpr (V::kLanes > 2) {
    if (payload == 32) return add_run_column<V, width, negate, 2, lifts>(group, from, 0), 2;
  }
  if (left >= V::kLanes * 16) {
    if constexpr (V::kLanes > 1 && width <= 8) {
      const auto with_tail = [&]<int tail>() FSL_INLINE_LAMBDA {
        add_run_and_tail<V, width, negate, tail, lifts>(group, from, block);
        return block + V::kLanes + 1;
      };
      if (left == V::kLanes * 16 + 8) return with_tail.template operator()<8>();
      if constexpr (width == 4) {
        if (left == V::kLanes * 16 + 4) return with_tail.template operator()<4>();
        if (left == V::kLanes * 16 + 12) return with_tail.template operator()<12>();
      }
    }
    add_run_column<V, width, negate, V::kLanes, lifts>(group, from, block);
    return block + V::kLanes;
  }
  if (left >= 16)
    return add_block_column<V, width, negate, 16, lifts>(group, from, 0, block), block + 1;
  for_end<width>(left, [&]<int fixed>() FSL_INLINE_LAMBDA {
    add_block_column<V, width, negate, fixed, lifts>(group, from, 0, block, left);
  });
  return block + 1;
}

template <class V, unsigned width, bool negate>
void add_lanes(const LaneGroup<V>& group, const LaneLeaves<V>& from) {
  for (std::size_t block = 0; block * 16 < group.payload;) {
    with_sums<width>(group.totals, block * 16, [&]<bool lifts>() FSL_INLINE_LAMBDA {
      block = add_column_at<V, width, negate, lifts>(group, from, block);
    });
  }
}

// Sigma of the block numbers of a payload, whitened where inputs are.
template <class V>
const std::uint8_t* block_counters(const typename V::Key& key, std::size_t blocks, Arena& arena) {
  std::uint8_t* const counters = arena.take<std::uint8_t>(blocks * 16 + sizeof(typename V::R));
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::uint64_t sigma[2] = {0, block};  // of the number's two words: (high, high xor low)
    alignas(64) std::uint8_t words[sizeof(typename V::R)] = {};
    std::memcpy(words, sigma, 16);
    if constexpr (hashes_whitened<V>) V::store(words, whiten<V>(key, V::load(words)));
    std::memcpy(counters + block * 16, words, 16);
  }
  return counters;
}

// Block b of the lanes' hints into register b.
template <class V>
void lay_out_hints(const LaneGroup<V>& group) {
  const std::size_t payload = group.payload;
  for (std::size_t block = 0; block * 16 < payload; ++block) {
    const std::size_t left = payload - block * 16, size = left < 16 ? left : 16;
    alignas(64) std::uint8_t words[sizeof(typename V::R)] = {};
    for (int lane = 0; lane < V::kLanes; ++lane) {
      std::memcpy(words + 16 * lane, group.lane_hints + lane * group.hint_stride + block * 16,
                  size);
    }
    V::store(group.hints + block, V::load(words));
  }
}

}  // namespace
}  // namespace fsl
