// Output shares of all leaves, added to the accumulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "accumulate_lanes.h"
#include "accumulate_pairs.h"
#include "accumulate_pieces.h"
#include "ahead.h"
#include "arena.h"
#include "conversion.h"
#include "path.h"
#include "ring_lanes.h"
#include "tree_walk.h"

namespace fsl {
namespace {

template <class V>
struct Accumulation {
  const AccumulateArgs* args;
  const Conversion<V>* conversion;
  std::size_t num_leaves;
  std::uint8_t* conv;  // conversion of one chunk
  std::uint8_t* hint;  // the tree's hint, with slack
};

// Any payload: converts into scratch memory, then adds leaf by leaf. For ring values without a
// lane, and for leaves of which there are too few for `add_registers`. To keep the shares, they
// replace `a.conv` before the party's sign.
template <class V, unsigned width, bool keep = false>
void add_converted(const Accumulation<V>& a, std::size_t count, std::uint8_t* acc) {
  using L = Lanes<V, width>;
  const Conversion<V>& conversion = *a.conversion;
  convert_chunk<V>(conversion, count, a.conv);
  const std::size_t payload = conversion.payload, leaf_bytes = conversion.leaf_bytes();
  const bool negate = a.args->party;
  for (std::size_t i = 0; i < count; ++i) {
    const typename L::R mask = L::splat(control_mask(conversion.masks + i * 16));
    std::uint8_t* conv = a.conv + i * leaf_bytes;
    std::uint8_t* to = acc + i * payload;
    for_run<V, width>(payload, [&]<int n>(std::size_t at) FSL_INLINE_LAMBDA {
      const auto word = L::chosen(L::template load<n>(a.hint + at), mask);
      const auto share = L::add(L::template load<n>(conv + at), word);
      if constexpr (keep) L::template store<n>(conv + at, share);
      const auto old = L::template load<n>(to + at);
      L::template store<n>(to + at, negate ? L::sub(old, share) : L::add(old, share));
    });
  }
}

// The low `bytes` bytes of every block of 16 / bytes registers, packed into one.
template <class V, int bytes>
FSL_INLINE typename V::R pack_blocks(const typename V::R* blocks) {
  if constexpr (bytes == 16) {
    return blocks[0];
  } else {
    return V::template pack<bytes>(pack_blocks<V, 2 * bytes>(blocks),
                                   pack_blocks<V, 2 * bytes>(blocks + 8 / bytes));
  }
}

// Converts n registers of leaves and adds them: all, or else the first `rest` leaves.
template <class V, int payload, unsigned width, int n, bool all = true>
FSL_INLINE void add_small_step(const Accumulation<V>& a, std::size_t leaf, std::uint8_t* acc,
                               std::size_t rest = 0) {
  using R = typename V::R;
  using L = Lanes<V, width>;
  constexpr int kRegisters = 16 / payload;
  R sigma[n], blocks[n], masks[n];
  FSL_UNROLL
  for (int i = 0; i < n; ++i) {
    sigma[i] = V::load(a.conversion->seeds + leaf * 16 + i * sizeof(R));
    blocks[i] = sigma[i];
  }
  V::encrypt(a.conversion->key, blocks);
  FSL_UNROLL
  for (int i = 0; i < n; ++i) {
    blocks[i] = V::bit_xor(blocks[i], sigma[i]);
    masks[i] = V::load(a.conversion->masks + leaf * 16 + i * sizeof(R));
  }
  const R hint = V::load(a.hint);
  const bool negate = a.args->party;
  acc += leaf * payload;
  FSL_UNROLL
  for (int i = 0; i < n; i += kRegisters) {
    const R word = V::bit_and(hint, pack_blocks<V, payload>(masks + i));
    const R share = V::template add<width>(pack_blocks<V, payload>(blocks + i), word);
    std::uint8_t* to = acc + i / kRegisters * sizeof(R);
    if constexpr (all) {
      const R old = V::load(to);
      V::store(to, negate ? L::sub(old, share) : L::add(old, share));
    } else {
      add_short<V, width>(to, share, rest * payload, negate);
    }
  }
}

// Payloads of 2, 4 or 8 bytes: the useful ends of several blocks are packed into one register.
template <class V, int payload, unsigned width>
void add_small(const Accumulation<V>& a, std::size_t count, std::uint8_t* acc) {
  constexpr std::size_t kRegisters = 16 / payload;
  constexpr std::size_t kLeaves = kRegisters * V::kLanes;
  std::size_t i = 0;
  if constexpr (!encrypts_in_calls<V>) {
    for (; i + 8 * V::kLanes <= count; i += 8 * V::kLanes) {
      add_small_step<V, payload, width, 8>(a, i, acc);
    }
  }
  for (; i + kLeaves <= count; i += kLeaves) {
    add_small_step<V, payload, width, kRegisters>(a, i, acc);
  }
  if (i < count) add_small_step<V, payload, width, kRegisters, false>(a, i, acc, count - i);
}

template <class V>
using AddChunk = void (*)(const Accumulation<V>&, std::size_t, std::uint8_t*);

template <class V>
AddChunk<V> choose_add(unsigned width, std::size_t payload) {
  return of_width(width, [&]<unsigned own>() -> AddChunk<V> {
    if constexpr (own == 2 || own == 4) {
      if (payload == 2 * own) return add_small<V, 2 * own, own>;
    }
    if constexpr (is_lane(own) && own <= 8) {
      if (payload == own) return add_small<V, own, own>;
    }
    return add_converted<V, own>;
  });
}

// Copies the hint, or fills a register with it if that is how add_small wants it.
template <class V>
inline void lay_out_hint(const std::uint8_t* hint, std::size_t payload, std::uint8_t* to) {
  if (payload != 2 && payload != 4 && payload != 8) {
    std::memcpy(to, hint, payload);
    return;
  }
  std::uint64_t pattern = 0;
  std::memcpy(&pattern, hint, payload);
  if (payload == 2) pattern *= 0x0001000100010001;
  if (payload == 4) pattern *= 0x0000000100000001;
  V::store(to, V::splat(pattern));
}

// All lanes of registers that lie beside each other.
template <class V, unsigned width, bool negate>
void add_registers(LaneGroup<V> group, LaneLeaves<V> from, int num_registers) {
  const std::size_t num_blocks = V::kLanes * from.count * ((group.payload + 15) / 16);
  if constexpr (hashes_whitened<V> && V::kLanes == 2) {
    if (!group.often) group.ahead->bring_beside(num_registers * num_blocks);
    add_all_pairs<V, width, negate>(group, from, num_registers);
  } else {
    for (int k = 0; k < num_registers; ++k, ++from.nodes) {
      if (!group.often) group.ahead->bring_beside(num_blocks);
      lay_out_hints<V>(group);
      add_lanes<V, width, negate>(group, from);
      group.lane_hints += V::kLanes * group.hint_stride;
      group.totals = group.totals.from(V::kLanes);
      from.acc += V::kLanes * group.lane_stride;
    }
  }
}

template <class V>
using AddLanes = void (*)(LaneGroup<V>, LaneLeaves<V>, int num_registers);

// Null if leaves are better taken lane by lane.
template <class V, bool negate>
AddLanes<V> choose_add_lanes(unsigned width, std::size_t payload) {
  if constexpr (encrypts_in_calls<V>) {
    return nullptr;
  } else {
    switch (payload < 8 ? 0 : width) {
      case 2:
        return add_registers<V, 2, negate>;
      case 4:
        return add_registers<V, 4, negate>;
      case 8:
        return add_registers<V, 8, negate>;
      case 16:
        return add_registers<V, 16, negate>;
      default:
        return nullptr;
    }
  }
}

template <class V>
AddLanes<V> choose_add_lanes(const AccumulateArgs& args) {
  const unsigned width = args.width;
  const std::size_t payload = args.payload;
  return args.party ? choose_add_lanes<V, true>(width, payload)
                    : choose_add_lanes<V, false>(width, payload);
}

template <class V>
struct AccumulateSink {
  using R = typename V::R;

  Accumulation<V> state;
  AddChunk<V> add;
  AddLanes<V> add_lanes;
  LaneGroup<V> group;
  Ahead ahead;

  static void take(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
                   std::size_t count) {
    AccumulateSink& self = *static_cast<AccumulateSink*>(context);
    const Accumulation<V>& a = self.state;
    const std::size_t payload = a.conversion->payload, chunk = a.conversion->chunk;
    lay_out_hint<V>(a.args->hints + tree * payload, payload, a.hint);
    std::uint8_t* acc = a.args->acc + (tree * a.num_leaves + first) * payload;
    self.ahead.bring_beside(count * a.conversion->blocks);
    for (std::size_t i = 0; i < count; i += chunk) {
      const std::size_t now = count - i < chunk ? count - i : chunk;
      a.conversion->prepare(states + i * 16, now);
      self.add(a, now, acc + i * payload);
    }
  }

  static void take_lanes(void* context, std::size_t tree, std::size_t first, const void* nodes,
                         std::size_t stride, std::size_t count, int num_registers) {
    AccumulateSink& self = *static_cast<AccumulateSink*>(context);
    const Accumulation<V>& a = self.state;
    const std::size_t payload = a.conversion->payload;
    std::uint8_t* const acc = a.args->acc + (tree * a.num_leaves + first) * payload;
    self.group.lane_hints = a.args->hints + tree * payload;
    self.group.ahead = &self.ahead;
    self.add_lanes(self.group, {static_cast<const R*>(nodes), stride, count, acc}, num_registers);
  }
};

// The sink of the units [begin, end), whose memory is the arena's.
template <class V>
AccumulateSink<V> make_sink(const Trees& trees, const Partition& partition, std::size_t begin,
                            std::size_t end, const AccumulateArgs& args,
                            const Conversion<V>& conversion, Arena& arena) {
  const std::size_t total = trees.num_trees * trees.num_leaves * conversion.blocks;
  AccumulateSink<V> sink = {};
  sink.state.args = &args;
  sink.state.conversion = &conversion;
  sink.state.num_leaves = trees.num_leaves;
  sink.ahead = Ahead(args, total / partition.num_units * (end - begin));
  sink.state.conv = conversion.take_output(arena);
  sink.state.hint = arena.take<std::uint8_t>(args.payload + 2 * sizeof(typename V::R));
  sink.add = choose_add<V>(args.width, args.payload);
  const std::size_t lane_leaves = leaves_between_lanes(trees, partition);
  sink.add_lanes = choose_add_lanes<V>(args);
  sink.group = {&conversion.key,
                block_counters<V>(conversion.key, conversion.blocks, arena),
                arena.take<typename V::R>(conversion.blocks),
                args.payload,
                partition.units_per_tree ? 0 : args.payload,
                lane_leaves * args.payload,
                nullptr,
                lane_leaves >= 8 && sink.ahead.often()};  // fewer fill no batch
  return sink;
}

template <class V>
void accumulate(const Trees& trees, const Partition& partition, std::size_t begin, std::size_t end,
                const AccumulateArgs& args, void* memory) {
  Arena arena(memory);
  const Conversion<V> conversion(*args.key, args.payload, arena);
  AccumulateSink<V> sink = make_sink(trees, partition, begin, end, args, conversion, arena);
  walk<V>(
      trees, partition, begin, end,
      {AccumulateSink<V>::take, sink.add_lanes ? AccumulateSink<V>::take_lanes : nullptr, &sink},
      arena);
}

}  // namespace
}  // namespace fsl
