// Output shares added to the accumulator and, read as signed integers, summed over the leaves of
// each tree, as a proof wants them. Whole registers of lanes go through the loops of `accumulate`,
// which sum shares where they have them. Of what is left, and of other widths, a chunk of leaves is
// converted first, which stays in the first-level cache, and then added column by column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "accumulate.h"
#include "ahead.h"
#include "arena.h"
#include "conversion.h"
#include "lane_sums.h"
#include "path.h"
#include "ring_lanes.h"
#include "tree_walk.h"

namespace fsl {
namespace {

// What a tree's sums are added to: low + 2^32 high, `high` only for widths above 4.
struct LeafTotals {
  std::size_t lifted;
  std::int64_t* low;
  std::int64_t* high;
};

// Adds a register of each of `count` converted leaves, from byte `at` on, to `acc`, and sums it up.
// Of a register that reaches beyond the payload only the beginning counts.
template <class V, unsigned width, bool negate, class B>
void add_column(const Accumulation<V>& a, std::size_t count, std::uint8_t* acc, std::size_t at,
                const LeafTotals& to) {
  using R = typename B::R;
  const Conversion<V>& conversion = *a.conversion;
  const std::size_t payload = conversion.payload, stride = conversion.leaf_bytes();
  const std::size_t left = payload - at, bytes = left < sizeof(R) ? left : sizeof(R);
  alignas(64) std::uint8_t ones[sizeof(R)] = {};
  std::memset(ones, 0xff, bytes);
  const R keep = B::load(ones), hint = B::load(a.hint + at);
  const bool lifts = at < to.lifted * width;
  HalfSums<width, sizeof(R)> sums;
  const auto share_of = [&](std::size_t leaf) FSL_INLINE_LAMBDA {
    const R word = B::bit_and(hint, B::template spread<1>(conversion.masks + leaf * 16));
    const R share = B::template add<width>(B::load(a.conv + leaf * stride + at), word);
    if (lifts) sums.add(share);
    return B::bit_and(share, keep);
  };
  // Whole registers while they lie within these leaves' sums.
  const std::size_t beyond = sizeof(R) - bytes + payload - 1;
  const std::size_t whole = beyond / payload < count ? count - beyond / payload : 0;
  acc += at;
  for (std::size_t leaf = 0; leaf < whole; ++leaf, acc += payload) {
    B::store(acc, with_share<B, width, negate>(B::load(acc), share_of(leaf)));
  }
  for (std::size_t leaf = whole; leaf < count; ++leaf, acc += payload) {
    add_short<B, width>(acc, share_of(leaf), bytes, negate);
  }
  const auto summed = sums;  // a copy, or the sums would be in memory all the time
  if (lifts) summed.add_to(to.low, to.lifted, at / width, 0, sizeof(R) / width);
}

// All columns: as wide as a register, then blocks.
template <class V, unsigned width, bool negate>
void add_columns(const Accumulation<V>& a, std::size_t count, std::uint8_t* acc,
                 const LeafTotals& to) {
  convert_chunk<V>(*a.conversion, count, a.conv);
  const std::size_t payload = a.conversion->payload;
  std::size_t at = 0;
  for (; at + sizeof(typename V::R) <= payload; at += sizeof(typename V::R)) {
    add_column<V, width, negate, V>(a, count, acc, at, to);
  }
  for (; at < payload; at += 16) {
    add_column<V, width, negate, typename V::Packed>(a, count, acc, at, to);
  }
}

// Adds what `count` <= kChunkLeaves leaves have at `shares`, `stride` bytes a leaf, to the sums.
template <unsigned width>
void lift_leaves(const std::uint8_t* shares, std::size_t stride, std::size_t count,
                 const LeafTotals& to) {
  constexpr unsigned kSpare = 64 - 8 * width;
  for (std::size_t i = 0; i < to.lifted; ++i) {
    std::int64_t low = 0, high = 0;
    for (std::size_t leaf = 0; leaf < count; ++leaf) {
      std::uint64_t word = 0;
      std::memcpy(&word, shares + leaf * stride + i * width, width);
      const std::int64_t lifted = static_cast<std::int64_t>(word << kSpare) >> kSpare;
      low += width > 4 ? lifted & 0xffffffff : lifted;
      high += lifted >> 32;
    }
    to.low[i] += low;
    if constexpr (width > 4) to.high[i] += high;
  }
}

template <class V, unsigned width>
void add_leaves(const Accumulation<V>& a, std::size_t count, std::uint8_t* acc,
                const LeafTotals& to) {
  add_converted<V, width, true>(a, count, acc);
  lift_leaves<width>(a.conv, a.conversion->leaf_bytes(), count, to);
}

template <class V>
using AddLifted = void (*)(const Accumulation<V>&, std::size_t, std::uint8_t*, const LeafTotals&);

template <class V, unsigned width>
AddLifted<V> choose_lifted(bool negate) {
  if constexpr (is_lane(width) && sizeof(typename V::Packed::R) == 16) {
    return negate ? add_columns<V, width, true> : add_columns<V, width, false>;
  } else {
    return add_leaves<V, width>;
  }
}

template <class V>
struct LiftedSink {
  AccumulateSink<V> plain;
  AddLifted<V> add;
  const LiftedArgs* args;

  std::size_t first_of(std::size_t tree) const { return (tree - args->first_tree) * args->lifted; }

  static void take(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
                   std::size_t count) {
    LiftedSink& self = *static_cast<LiftedSink*>(context);
    const Accumulation<V>& a = self.plain.state;
    const LiftedArgs& args = *self.args;
    const std::size_t payload = a.conversion->payload, chunk = a.conversion->chunk;
    std::memcpy(a.hint, a.args->hints + tree * payload, payload);
    std::uint8_t* acc = a.args->acc + (tree * a.num_leaves + first) * payload;
    const std::size_t at = self.first_of(tree);
    const LeafTotals totals = {args.lifted, args.low + at, args.high + at};
    self.plain.ahead.bring_beside(count * a.conversion->blocks);
    for (std::size_t i = 0; i < count; i += chunk) {
      const std::size_t now = count - i < chunk ? count - i : chunk;
      a.conversion->prepare(states + i * 16, now);
      self.add(a, now, acc + i * payload, totals);
    }
  }

  static void take_lanes(void* context, std::size_t tree, std::size_t first, const void* nodes,
                         std::size_t stride, std::size_t count, int num_registers) {
    LiftedSink& self = *static_cast<LiftedSink*>(context);
    // Lanes of one tree have one hint, and one sum.
    const std::size_t apart = self.plain.group.hint_stride ? self.args->lifted : 0;
    const LaneTotals totals = {self.args->low + self.first_of(tree), apart, self.args->lifted};
    self.plain.group.totals = totals;
    AccumulateSink<V>::take_lanes(&self.plain, tree, first, nodes, stride, count, num_registers);
  }
};

template <class V>
void accumulate_lifted(const Trees& trees, const Partition& partition, std::size_t begin,
                       std::size_t end, const LiftedArgs& args, void* memory) {
  Arena arena(memory);
  const AccumulateArgs& own = args.own;
  const Conversion<V> conversion(*own.key, own.payload, arena);
  LiftedSink<V> sink = {};
  sink.args = &args;
  sink.plain = make_sink(trees, partition, begin, end, own, conversion, arena);
  std::memset(sink.plain.state.hint, 0, own.payload + 2 * sizeof(typename V::R));
  if (own.width == 2) sink.add = choose_lifted<V, 2>(own.party);
  if (own.width == 3) sink.add = choose_lifted<V, 3>(own.party);
  if (own.width == 4) sink.add = choose_lifted<V, 4>(own.party);
  if (own.width == 6) sink.add = choose_lifted<V, 6>(own.party);
  static_assert(kStageRegisters <= kMaxSummed);
  const bool by_lanes = sink.plain.add_lanes && is_summed_in_registers(own.width);
  walk<V>(trees, partition, begin, end,
          {LiftedSink<V>::take, by_lanes ? LiftedSink<V>::take_lanes : nullptr, &sink}, arena);
}

}  // namespace
}  // namespace fsl
