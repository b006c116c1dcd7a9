// What servers and clients do with leaf states: accumulate output shares, answer retrievals, and
// make hints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

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
  std::uint8_t* hint;  // the tree's hint, repeated over kLanes leaves, with slack
  std::uint64_t negate;
};

// Any payload: convert into scratch memory, then add leaf by leaf.
template <class V, unsigned width>
void add_general(const Accumulation<V>& a, const std::uint8_t* states, std::size_t count,
                 std::uint8_t* acc) {
  const std::size_t payload = a.conversion->payload;
  convert_chunk<V>(*a.conversion, states, count, a.conv);
  for (std::size_t i = 0; i < count; ++i) {
    add_share<V, width>(acc + i * payload, a.conv + i * payload, a.hint,
                        control_mask(states + i * 16), a.negate, payload);
  }
}

// Payloads of whole blocks: everything stays in registers.
template <class V, unsigned width>
void add_blocks(const Accumulation<V>& a, const std::uint8_t* states, std::size_t count,
                std::uint8_t* acc) {
  using R = typename V::R;
  const R sign = V::splat(a.negate);
  const std::size_t num_bytes = count * a.conversion->payload;
  for_each_register<V>(*a.conversion, states, count, [&](std::size_t index, Cursor at, R block) {
    const R bits = V::spread_lsb(V::load(states + at.group * sizeof(R)));
    const R mask = V::permute(bits, V::load(a.conversion->source + at.register_));
    const R hint = V::load(a.hint + at.register_ * sizeof(R));
    const R share = V::template add<width>(block, V::bit_and(hint, mask));
    const R change = V::template sub<width>(V::bit_xor(share, sign), sign);
    const std::size_t to = index * sizeof(R);
    if (to + sizeof(R) <= num_bytes) {
      V::store(acc + to, V::template add<width>(V::load(acc + to), change));
    } else {
      const std::size_t rest = num_bytes - to;
      const R sum = V::template add<width>(V::load_tail(acc + to, rest), change);
      V::store_tail(acc + to, sum, rest);
    }
  });
}

// The low `bytes` bytes of every block of 16 / bytes registers, packed into one.
template <class V, int bytes>
inline typename V::R pack_blocks(const typename V::R* blocks) {
  if constexpr (bytes == 16) {
    return blocks[0];
  } else {
    return V::template pack<bytes>(pack_blocks<V, 2 * bytes>(blocks),
                                   pack_blocks<V, 2 * bytes>(blocks + 8 / bytes));
  }
}

// The shares of sizeof(R) / payload leaves, from their converted blocks.
template <class V, int payload, unsigned width>
inline typename V::R small_shares(const Accumulation<V>& a, const typename V::R* blocks,
                                  const std::uint8_t* states) {
  using R = typename V::R;
  constexpr int kRegisters = 16 / payload;
  std::uint64_t ones = 0;
  for (int i = 0; i < 8; i += payload) ones |= std::uint64_t{1} << (8 * i);
  R leaf[kRegisters];
  for (int i = 0; i < kRegisters; ++i) leaf[i] = V::load(states + i * sizeof(R));
  const R bits = V::bit_and(pack_blocks<V, payload>(leaf), V::splat(ones));
  const R mask = V::template sub<payload>(V::zero(), bits);
  const R share =
      V::template add<width>(pack_blocks<V, payload>(blocks), V::bit_and(V::load(a.hint), mask));
  const R sign = V::splat(a.negate);
  return V::template sub<width>(V::bit_xor(share, sign), sign);
}

// Converts n registers of leaves and adds them; all of them exist when `rest` is 0, else only
// `rest` bytes.
template <class V, int payload, unsigned width, int n>
inline void add_small_step(const Accumulation<V>& a, const std::uint8_t* states, std::uint8_t* acc,
                           std::size_t rest) {
  using R = typename V::R;
  constexpr int kRegisters = 16 / payload;
  R sigma[n], blocks[n];
  for (int i = 0; i < n; ++i) {
    sigma[i] = V::sigma(V::clear(V::load(states + i * sizeof(R)), V::lsb()));
    blocks[i] = sigma[i];
  }
  V::encrypt(a.conversion->key, blocks);
  for (int i = 0; i < n; ++i) blocks[i] = V::bit_xor(blocks[i], sigma[i]);
  for (int i = 0; i < n; i += kRegisters) {
    const R share = small_shares<V, payload, width>(a, blocks + i, states + i * sizeof(R));
    std::uint8_t* to = acc + i / kRegisters * sizeof(R);
    if (rest == 0) {
      V::store(to, V::template add<width>(V::load(to), share));
    } else {
      V::store_tail(to, V::template add<width>(V::load_tail(to, rest), share), rest);
    }
  }
}

// Payloads of 2, 4 or 8 bytes: the useful ends of several blocks are packed into one register.
template <class V, int payload, unsigned width>
void add_small(const Accumulation<V>& a, const std::uint8_t* states, std::size_t count,
               std::uint8_t* acc) {
  constexpr std::size_t kRegisters = 16 / payload;
  constexpr std::size_t kLeaves = kRegisters * V::kLanes;
  std::size_t i = 0;
  for (; i + 8 * V::kLanes <= count; i += 8 * V::kLanes) {
    add_small_step<V, payload, width, 8>(a, states + i * 16, acc + i * payload, 0);
  }
  for (; i + kLeaves <= count; i += kLeaves) {
    add_small_step<V, payload, width, kRegisters>(a, states + i * 16, acc + i * payload, 0);
  }
  if (i < count) {
    add_small_step<V, payload, width, kRegisters>(a, states + i * 16, acc + i * payload,
                                                  (count - i) * payload);
  }
}

template <class V>
using AddChunk = void (*)(const Accumulation<V>&, const std::uint8_t*, std::size_t, std::uint8_t*);

template <class V, unsigned width>
AddChunk<V> choose_add(std::size_t payload) {
  if constexpr (has_lane(width)) {
    if (payload % 16 == 0) return add_blocks<V, width>;
    if constexpr (width <= 2) {
      if (payload == 2) return add_small<V, 2, width>;
    }
    if constexpr (width <= 4) {
      if (payload == 4) return add_small<V, 4, width>;
    }
    if constexpr (width <= 8) {
      if (payload == 8) return add_small<V, 8, width>;
    }
  }
  return add_general<V, width>;
}

template <class V>
AddChunk<V> choose_add(unsigned width, std::size_t payload) {
  switch (width) {
    case 2:
      return choose_add<V, 2>(payload);
    case 3:
      return choose_add<V, 3>(payload);
    case 4:
      return choose_add<V, 4>(payload);
    case 6:
      return choose_add<V, 6>(payload);
    case 8:
      return choose_add<V, 8>(payload);
    default:
      return choose_add<V, 16>(payload);
  }
}

// Lays the hint out as the additions above want it: once, over kLanes leaves, or over a register.
template <class V>
inline void repeat_hint(const std::uint8_t* hint, std::size_t payload, std::uint8_t* to) {
  if (payload == 2 || payload == 4 || payload == 8) {
    std::uint64_t pattern = 0;
    std::memcpy(&pattern, hint, payload);
    if (payload == 2) pattern *= 0x0001000100010001;
    if (payload == 4) pattern *= 0x0000000100000001;
    return V::store(to, V::splat(pattern));
  }
  const int copies = payload % 16 == 0 ? V::kLanes : 1;
  for (int i = 0; i < copies; ++i) std::memcpy(to + i * payload, hint, payload);
}

template <class V>
struct AccumulateSink {
  Accumulation<V> state;
  AddChunk<V> add;

  static void take(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
                   std::size_t count) {
    const AccumulateSink& self = *static_cast<AccumulateSink*>(context);
    const Accumulation<V>& a = self.state;
    const std::size_t payload = a.conversion->payload;
    repeat_hint<V>(a.args->hints + tree * payload, payload, a.hint);
    std::uint8_t* acc = a.args->acc + (tree * a.num_leaves + first) * payload;
    for (std::size_t i = 0; i < count; i += a.conversion->chunk) {
      const std::size_t left = count - i;
      self.add(a, states + i * 16, left < a.conversion->chunk ? left : a.conversion->chunk,
               acc + i * payload);
    }
  }
};

template <class V>
void accumulate(const Trees& trees, const Partition& partition, std::size_t begin, std::size_t end,
                const AccumulateArgs& args, void* memory) {
  Arena arena(memory);
  const Conversion<V> conversion(*args.key, args.payload, arena);
  AccumulateSink<V> sink = {};
  sink.state.args = &args;
  sink.state.conversion = &conversion;
  sink.state.num_leaves = trees.num_leaves;
  sink.state.conv = conversion.take_output(arena);
  sink.state.hint = arena.take<std::uint8_t>(V::kLanes * args.payload + 2 * sizeof(typename V::R));
  sink.state.negate = 0 - static_cast<std::uint64_t>(args.party);
  sink.add = choose_add<V>(args.width, args.payload);
  walk<V>(trees, partition, begin, end, {AccumulateSink<V>::take, &sink}, arena);
}

struct EvalSink {
  std::size_t num_leaves;
  std::uint8_t* out;

  static void take(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
                   std::size_t count) {
    const EvalSink& self = *static_cast<EvalSink*>(context);
    std::memcpy(self.out + (tree * self.num_leaves + first) * 16, states, count * 16);
  }
};

template <class V>
void tree_eval(const Trees& trees, const Partition& partition, std::size_t begin, std::size_t end,
               std::uint8_t* out, void* memory) {
  Arena arena(memory);
  EvalSink sink = {trees.num_leaves, out};
  walk<V>(trees, partition, begin, end, {EvalSink::take, &sink}, arena);
}

// XORs n registers' width of the chosen rows into `out`.
template <class V, int n>
inline void xor_columns(const std::uint8_t* rows, std::size_t stride, const std::uint8_t* states,
                        std::size_t count, std::uint8_t* out) {
  using R = typename V::R;
  R sum[n];
  for (int j = 0; j < n; ++j) sum[j] = V::load(out + j * sizeof(R));
  for (std::size_t i = 0; i < count; ++i) {
    const R mask = V::splat(control_mask(states + i * 16));
    for (int j = 0; j < n; ++j) {
      sum[j] = V::xor_and(sum[j], V::load(rows + i * stride + j * sizeof(R)), mask);
    }
  }
  for (int j = 0; j < n; ++j) V::store(out + j * sizeof(R), sum[j]);
}

template <class V>
struct AnswerSink {
  using R = typename V::R;
  const AnswerArgs* args;
  std::size_t num_leaves;

  static void take(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
                   std::size_t count) {
    const AnswerSink& self = *static_cast<AnswerSink*>(context);
    const AnswerArgs& args = *self.args;
    const std::size_t stride = args.row_bytes;
    const std::size_t row = (args.shared_table ? 0 : tree) * self.num_leaves + first;
    const std::uint8_t* rows = args.table + row * stride;
    std::uint8_t* out = args.out + (tree - args.first_tree) * stride;
    std::size_t at = 0;
    for (; at + 4 * sizeof(R) <= stride; at += 4 * sizeof(R)) {
      xor_columns<V, 4>(rows + at, stride, states, count, out + at);
    }
    for (; at + sizeof(R) <= stride; at += sizeof(R)) {
      xor_columns<V, 1>(rows + at, stride, states, count, out + at);
    }
    if (at == stride) return;
    R sum = V::load_tail(out + at, stride - at);
    for (std::size_t i = 0; i < count; ++i) {
      const R mask = V::splat(control_mask(states + i * 16));
      sum = V::xor_and(sum, V::load_tail(rows + i * stride + at, stride - at), mask);
    }
    V::store_tail(out + at, sum, stride - at);
  }
};

template <class V>
void answer(const Trees& trees, const Partition& partition, std::size_t begin, std::size_t end,
            const AnswerArgs& args, void* memory) {
  Arena arena(memory);
  AnswerSink<V> sink = {&args, trees.num_leaves};
  walk<V>(trees, partition, begin, end, {AnswerSink<V>::take, &sink}, arena);
}

// Combines the two conversions of `count` trees into hints; every slot is written the same way.
template <class V, unsigned width>
void combine_hints(const HintArgs& args, std::size_t first, std::size_t count,
                   const std::uint8_t* conv0, const std::uint8_t* conv1) {
  const std::size_t row_bytes = args.payload >> args.nu;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t tree = first + i;
    const std::uint64_t negate = control_mask(args.leaf[1] + tree * 16);
    for (std::size_t slot = 0; slot < std::size_t{1} << args.nu; ++slot) {
      const std::uint64_t differs = args.slots[tree] ^ slot;
      const std::uint64_t chosen = ((differs | (0 - differs)) >> 63) - 1;
      const std::size_t at = i * args.payload + slot * row_bytes;
      hint_slot<V, width>(args.out + first * args.payload + at, args.values + tree * row_bytes,
                          conv0 + at, conv1 + at, chosen, negate, row_bytes);
    }
  }
}

template <class V>
void combine_hints(const HintArgs& args, std::size_t first, std::size_t count,
                   const std::uint8_t* conv0, const std::uint8_t* conv1) {
  switch (args.width) {
    case 2:
      return combine_hints<V, 2>(args, first, count, conv0, conv1);
    case 3:
      return combine_hints<V, 3>(args, first, count, conv0, conv1);
    case 4:
      return combine_hints<V, 4>(args, first, count, conv0, conv1);
    case 6:
      return combine_hints<V, 6>(args, first, count, conv0, conv1);
    case 8:
      return combine_hints<V, 8>(args, first, count, conv0, conv1);
    default:
      return combine_hints<V, 16>(args, first, count, conv0, conv1);
  }
}

template <class V>
void hint_gen(const HintArgs& args, void* memory) {
  Arena arena(memory);
  const Conversion<V> conversion(*args.key, args.payload, arena);
  std::uint8_t* const states = arena.take<std::uint8_t>((kChunkLeaves + V::kLanes) * 16);
  std::uint8_t* const conv[2] = {conversion.take_output(arena), conversion.take_output(arena)};
  for (std::size_t first = 0; first < args.num_trees; first += conversion.chunk) {
    const std::size_t left = args.num_trees - first;
    const std::size_t count = left < conversion.chunk ? left : conversion.chunk;
    for (int b = 0; b < 2; ++b) {
      std::memcpy(states, args.leaf[b] + first * 16, count * 16);
      convert_chunk<V>(conversion, states, count, conv[b]);
    }
    combine_hints<V>(args, first, count, conv[0], conv[1]);
  }
}

// Keeps 8 registers in flight over a 4 KiB buffer: the rate that no use of the hash can exceed.
template <class V>
void hash_blocks(const KeySchedule& schedule, std::size_t num_blocks, void* memory) {
  using R = typename V::R;
  constexpr std::size_t kSteps = 4096 / (8 * sizeof(R));
  const typename V::Key key = V::make_key(schedule);
  R* const buffer = Arena(memory).take<R>(8 * kSteps);
  for (std::size_t i = 0; i < 8 * kSteps; ++i) V::store(buffer + i, V::splat(i));
  for (std::size_t done = 0; done < num_blocks;) {
    for (std::size_t step = 0; step < kSteps; ++step, done += 8 * V::kLanes) {
      R sigma[8], x[8];
      for (int i = 0; i < 8; ++i) x[i] = sigma[i] = V::sigma(V::load(buffer + 8 * step + i));
      V::encrypt(key, x);
      for (int i = 0; i < 8; ++i) V::store(buffer + 8 * step + i, V::bit_xor(x[i], sigma[i]));
    }
  }
}

}  // namespace
}  // namespace fsl
