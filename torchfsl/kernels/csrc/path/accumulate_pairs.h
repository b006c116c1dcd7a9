// Output shares of whole registers of two lanes, on paths that hash whitened inputs.
//
// A register of the walk holds one leaf of two trees, or of two subtrees of one tree. Two blocks of
// one lane's leaf fill a register, whose seed and control bit are loaded into both halves: shares
// need no move between lanes, which would compete with AES for execution ports, and are added to
// the accumulator as they are. What is left of a payload, less than two blocks, fills a register
// with both lanes, and is added a lane at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "accumulate_lanes.h"
#include "accumulate_pieces.h"
#include "arena.h"
#include "lane_sums.h"
#include "path.h"
#include "ring_lanes.h"

namespace fsl {
namespace {

// Two blocks from `block` on, or four, of `leaves` leaves in the registers [k, k + registers).
template <class V, unsigned width, bool negate, int pairs, int k, int registers, int leaves,
          class Sums>
FSL_INLINE void add_pairs(const LaneGroup<V>& group, const LaneLeaves<V>& from, std::size_t leaf,
                          std::size_t block, const typename V::R (&counters)[pairs], Sums& sums) {
  using R = typename V::R;
  constexpr int kLanes = 2 * registers, kStates = kLanes * leaves;
  const auto state_of = [&](int i) FSL_INLINE_LAMBDA {
    return states_at(from, leaf + i / kLanes, k + i % kLanes / 2) + i % 2 * 16;
  };
  R x[kStates * pairs], last[kStates * pairs];
  FSL_UNROLL
  for (int i = 0; i < kStates; ++i) {
    const std::uint8_t* const state = state_of(i);
    const R seed = V::sigma_of_seed_from(V::fourfold(state), V::fourfold(state + 8));
    FSL_UNROLL
    for (int j = 0; j < pairs; ++j) {
      const int at = i * pairs + j;
      x[at] = V::bit_xor(seed, counters[j]);
      last[at] = last_key<V>(*group.key, x[at]);
    }
  }
  hash_whitened<V>(*group.key, x, last);
  FSL_UNROLL
  for (int i = 0; i < kStates; ++i) {
    const int lane = 2 * k + i % kLanes;
    const auto control = V::control_from(V::fourfold(state_of(i)));
    FSL_UNROLL
    for (int j = 0; j < pairs; ++j) {
      const std::size_t at = (block + 2 * j) * 16;
      const R word = V::load(group.lane_hints + lane * group.hint_stride + at);
      std::uint8_t* const to =
          from.acc + (leaf + i / kLanes) * group.payload + lane * group.lane_stride + at;
      const R share = add_chosen<V, width>(x[i * pairs + j], word, control);
      sums.add(lane * pairs + j, share);
      V::store(to, with_share<V, width, negate>(V::load(to), share));
    }
  }
}

// The same blocks of the leaves [leaf, end) in `side` registers, eight registers of blocks at a
// time.
template <class V, unsigned width, bool negate, int side, int pairs, bool lifts>
FSL_INLINE void add_pair_columns(const LaneGroup<V>& group, const LaneLeaves<V>& from,
                                 std::size_t leaf, std::size_t end, std::size_t block) {
  constexpr int registers = 4 / pairs < side ? 4 / pairs : side, leaves = 4 / pairs / registers;
  ColumnSums<V, width, lifts, 2 * side * pairs> sums;
  typename V::R counters[pairs];
  FSL_UNROLL
  for (int j = 0; j < pairs; ++j) {
    counters[j] = V::load(group.counters + (block + 2 * j) * 16);
  }
  for (; leaf + leaves <= end; leaf += leaves) {
    if (group.often) group.ahead->bring_beside(4 * side * pairs * leaves);
    add_pairs<V, width, negate, pairs, 0, registers, leaves>(group, from, leaf, block, counters,
                                                             sums);
    if constexpr (registers < side) {
      add_pairs<V, width, negate, pairs, registers, registers, leaves>(group, from, leaf, block,
                                                                       counters, sums);
    }
  }
  for (; leaf < end; ++leaf) {
    if (group.often) group.ahead->bring_beside(4 * side * pairs);
    add_pairs<V, width, negate, pairs, 0, side, 1>(group, from, leaf, block, counters, sums);
  }
  for (int i = 0; i < 2 * side * pairs; ++i) {
    sums.add_lane_to(group.totals, i, i / pairs, (block + 2 * (i % pairs)) * 16);
  }
}

// A block that is alone in its column, or the beginning of one: both lanes' in a register.
template <class V, int side>
struct EndColumn {
  EndColumn(const LaneGroup<V>& group, std::size_t block)
      : block(block),
        bytes(group.payload - block * 16 < 16 ? group.payload - block * 16 : 16),
        counter(V::template spread<1>(group.counters + block * 16)) {
    alignas(64) std::uint8_t words[side * sizeof(typename V::R)] = {};
    for (int lane = 0; lane < 2 * side; ++lane) {
      const std::uint8_t* const hint = group.lane_hints + lane * group.hint_stride;
      std::memcpy(words + 16 * lane, hint + block * 16, bytes);
    }
    for (int k = 0; k < side; ++k) hints[k] = V::load(words + k * sizeof(typename V::R));
  }

  const std::size_t block;
  const std::size_t bytes;
  const typename V::R counter;
  typename V::R hints[side];
};

// The shares of n registers of such blocks: leaf `leaf` + i / side in register i % side.
template <class V, unsigned width, int side, int n, class Sums>
FSL_INLINE void share_ends(const LaneGroup<V>& group, const LaneLeaves<V>& from, std::size_t leaf,
                           const EndColumn<V, side>& column, typename V::R (&x)[n], Sums& sums) {
  typename V::R last[n];
  const auto state_of = [&](int i) FSL_INLINE_LAMBDA {
    return states_at(from, leaf + i / side, i % side);
  };
  FSL_UNROLL
  for (int i = 0; i < n; ++i) {
    const auto low = V::doubled(state_of(i)), high = V::doubled(state_of(i) + 8);
    x[i] = V::bit_xor(V::sigma_of_seed_from(low, high), column.counter);
    last[i] = last_key<V>(*group.key, x[i]);
  }
  hash_whitened<V>(*group.key, x, last);
  FSL_UNROLL
  for (int i = 0; i < n; ++i) {
    const auto control = V::control_from(V::doubled(state_of(i)));
    x[i] = add_chosen<V, width>(x[i], column.hints[i % side], control);
    sums.add(i % side, x[i]);
  }
}

// Adds these, a lane at a time; `fixed` are the bytes if they are not 0.
template <class V, unsigned width, bool negate, int side, int leaves, int fixed, class Sums>
FSL_INLINE void add_ends(const LaneGroup<V>& group, const LaneLeaves<V>& from, std::size_t leaf,
                         const EndColumn<V, side>& column, Sums& sums) {
  using Half = typename V::Packed;  // one block
  using Ring = Lanes<Half, width>;
  constexpr int n = leaves * side;
  typename V::R x[n];
  share_ends<V, width>(group, from, leaf, column, x, sums);
  FSL_UNROLL
  for (int i = 0; i < n; ++i) {
    alignas(64) std::uint8_t shares[2 * sizeof x[i]];  // read in whole registers, so twice the size
    V::store(shares, x[i]);
    for (int lane = 0; lane < 2; ++lane) {
      std::uint8_t* const to = from.acc + (leaf + i / side) * group.payload +
                               (i % side * 2 + lane) * group.lane_stride + column.block * 16;
      if constexpr (fixed) {
        const auto sum = with_share<Half, width, negate>(Ring::template load<fixed>(to),
                                                         Half::load(shares + 16 * lane));
        Ring::template store<fixed>(to, sum);
      } else {
        add_short<Half, width>(to, Half::load(shares + 16 * lane), column.bytes, negate);
      }
    }
  }
}

// The same of the leaves [leaf, end), eight registers at a time.
template <class V, unsigned width, bool negate, int side, int fixed, bool lifts>
FSL_INLINE void add_end_column(const LaneGroup<V>& group, const LaneLeaves<V>& from,
                               std::size_t leaf, std::size_t end,
                               const EndColumn<V, side>& column) {
  constexpr int kLeaves = 8 / side;
  ColumnSums<V, width, lifts, side> sums;
  for (; leaf + kLeaves <= end; leaf += kLeaves) {
    if (group.often) group.ahead->bring_beside(16);
    add_ends<V, width, negate, side, kLeaves, fixed>(group, from, leaf, column, sums);
  }
  for (; leaf < end; ++leaf) {
    if (group.often) group.ahead->bring_beside(2 * side);
    add_ends<V, width, negate, side, 1, fixed>(group, from, leaf, column, sums);
  }
  for (int k = 0; k < side; ++k) sums.add_blocks_to(group.totals.from(2 * k), k, column.block * 16);
}

// The leaves [leaf, end) in `side` registers: blocks in pairs, and then what is left.
template <class V, unsigned width, bool negate, int side>
void add_chunk(const LaneGroup<V> group, const LaneLeaves<V> from, std::size_t leaf,
               std::size_t end) {
  std::size_t block = 0;
  const auto summed = [&](auto column)
                          FSL_INLINE_LAMBDA { with_sums<width>(group.totals, block * 16, column); };
  for (; (block + 4) * 16 <= group.payload; block += 4) {
    summed([&]<bool lifts>() FSL_INLINE_LAMBDA {
      add_pair_columns<V, width, negate, side, 2, lifts>(group, from, leaf, end, block);
    });
  }
  if ((block + 2) * 16 <= group.payload) {
    summed([&]<bool lifts>() FSL_INLINE_LAMBDA {
      add_pair_columns<V, width, negate, side, 1, lifts>(group, from, leaf, end, block);
    });
    block += 2;
  }
  for (; block * 16 < group.payload; ++block) {
    const EndColumn<V, side> column(group, block);
    const auto add = [&]<int fixed>() FSL_INLINE_LAMBDA {
      summed([&]<bool lifts>() FSL_INLINE_LAMBDA {
        add_end_column<V, width, negate, side, fixed, lifts>(group, from, leaf, end, column);
      });
    };
    if (column.bytes == 16) {
      add.template operator()<16>();
    } else {
      for_end<width>(column.bytes, add);
    }
  }
}

template <class V, unsigned width, bool negate, int side>
void add_side(const LaneGroup<V>& group, const LaneLeaves<V>& from) {
  constexpr std::size_t kChunk = 64;  // leaves whose sums stay in the first-level cache meanwhile
  for (std::size_t leaf = 0; leaf < from.count; leaf += kChunk) {
    const std::size_t end = from.count - leaf < kChunk ? from.count : leaf + kChunk;
    add_chunk<V, width, negate, side>(group, from, leaf, end);
  }
}

// Payloads of one block, or of half of one: what neighbouring leaves of a lane get lies together
// and is added together.
template <class V, unsigned width, bool negate, int payload, int n, class Sums>
FSL_INLINE void add_dense(const LaneGroup<V>& group, const LaneLeaves<V>& from, std::size_t leaf,
                          const EndColumn<V, 1>& column, Sums& sums) {
  using R = typename V::R;
  constexpr int kLeaves = sizeof(R) / payload;  // of one lane in a register
  R x[n];
  share_ends<V, width>(group, from, leaf, column, x, sums);
  FSL_UNROLL
  for (int i = 0; i < n; i += kLeaves) {
    if constexpr (payload == 8) {
      x[i] = V::low_words(x[i], x[i + 1]);
      x[i + 1] = V::low_words(x[i + 2], x[i + 3]);
    }
    R runs[2];
    V::transpose(x + i, 1, runs);
    FSL_UNROLL
    for (int lane = 0; lane < 2; ++lane) {
      std::uint8_t* const to = from.acc + (leaf + i) * payload + lane * group.lane_stride;
      V::store(to, with_share<V, width, negate>(V::load(to), runs[lane]));
    }
  }
}

// The leaves of one register.
template <class V, unsigned width, bool negate, int payload, bool lifts>
void add_dense_column(const LaneGroup<V> group, const LaneLeaves<V> from) {
  ColumnSums<V, width, lifts, 1> sums;
  constexpr std::size_t kFew = sizeof(typename V::R) / payload;
  const EndColumn<V, 1> column(group, 0);
  std::size_t leaf = 0;
  for (; leaf + 8 <= from.count; leaf += 8) {
    if (group.often) group.ahead->bring_beside(16);
    add_dense<V, width, negate, payload, 8>(group, from, leaf, column, sums);
  }
  for (; leaf + kFew <= from.count; leaf += kFew) {
    if (group.often) group.ahead->bring_beside(2 * kFew);
    add_dense<V, width, negate, payload, kFew>(group, from, leaf, column, sums);
  }
  sums.add_blocks_to(group.totals, 0, 0);
  add_end_column<V, width, negate, 1, payload, lifts>(group, from, leaf, from.count, column);
}
template <class V, unsigned width, bool negate, int payload>
void add_all_dense(const LaneGroup<V>& group, const LaneLeaves<V>& from) {
  with_sums<width>(group.totals, 0, [&]<bool lifts>() FSL_INLINE_LAMBDA {
    add_dense_column<V, width, negate, payload, lifts>(group, from);
  });
}

// All leaves of `num_registers` registers beside each other.
template <class V, unsigned width, bool negate>
void add_all_pairs(LaneGroup<V> group, LaneLeaves<V> from, int num_registers) {
  static_assert(V::kLanes == 2);
  const auto one_by_one = [&](auto add) FSL_INLINE_LAMBDA {
    for (int k = 0; k < num_registers; ++k, ++from.nodes) {
      add(group, from);
      group.lane_hints += 2 * group.hint_stride;
      group.totals = group.totals.from(2);
      from.acc += 2 * group.lane_stride;
    }
  };
  if (group.payload == 16) return one_by_one(add_all_dense<V, width, negate, 16>);
  if constexpr (width <= 8) {
    if (group.payload == 8) return one_by_one(add_all_dense<V, width, negate, 8>);
  }
  for (; num_registers >= 2; num_registers -= 2, from.nodes += 2) {
    add_side<V, width, negate, 2>(group, from);
    group.lane_hints += 4 * group.hint_stride;
    group.totals = group.totals.from(4);
    from.acc += 4 * group.lane_stride;
  }
  one_by_one(add_side<V, width, negate, 1>);
}

}  // namespace
}  // namespace fsl
