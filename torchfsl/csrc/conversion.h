// Conv: pseudorandom bytes from leaf seeds, in vectors over (leaf, counter) pairs so that every
// register is full whatever the payload size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "path.h"

namespace fsl {
namespace {

// kLanes neighbouring leaves give `blocks` registers of output blocks, in order of leaf, then
// counter. Register j takes its seeds by `source[j]` and its counters from `counter[j]`; block i
// of it goes to `offset[j * kLanes + i]` in the packed output of the kLanes leaves.
template <class V>
struct Conversion {
  using R = typename V::R;

  Conversion(const KeySchedule& schedule, std::size_t payload, Arena& arena)
      : key(V::make_key(schedule)),
        payload(payload),
        blocks((payload + 15) / 16),
        source(arena.take<R>(blocks)),
        counter(arena.take<R>(blocks)),
        offset(arena.take<std::uint32_t>(blocks * V::kLanes)) {
    const std::size_t fit = kChunkBytes / payload;
    chunk = fit < V::kLanes ? V::kLanes : fit > kChunkLeaves ? kChunkLeaves : fit;
    chunk -= chunk % V::kLanes;
    for (std::size_t j = 0; j < blocks; ++j) {
      int leaf[V::kLanes];
      std::uint64_t count[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) {
        const std::size_t block = j * V::kLanes + i;
        leaf[i] = static_cast<int>(block / blocks);
        count[i] = block % blocks;
        offset[block] = static_cast<std::uint32_t>(leaf[i] * payload + count[i] * 16);
      }
      V::store(source + j, V::block_index(leaf));
      V::store(counter + j, V::counters(count));
    }
  }

  // Room for the conversion of `chunk` leaves, with slack for whole registers.
  std::uint8_t* take_output(Arena& arena) const {
    return arena.take<std::uint8_t>(chunk * payload + 2 * sizeof(R));
  }

  const typename V::Key key;
  const std::size_t payload;
  const std::size_t blocks;
  std::size_t chunk;  // leaves converted at a time, a multiple of kLanes
  R* const source;
  R* const counter;
  std::uint32_t* const offset;
};

// Position in the sequence of output registers.
struct Cursor {
  std::size_t group = 0;      // which kLanes leaves
  std::size_t register_ = 0;  // which of their registers
};

inline void advance(Cursor& at, std::size_t blocks) {
  const bool wraps = ++at.register_ == blocks;
  at.register_ = wraps ? 0 : at.register_;
  at.group += wraps;
}

// The next `n` output registers from `at` on; at[i] receives the position of the i-th.
template <class V, int n>
inline void convert_registers(const Conversion<V>& conversion, const std::uint8_t* states,
                              Cursor& next, Cursor (&at)[n], typename V::R (&out)[n]) {
  using R = typename V::R;
  R sigma[n];
  for (int i = 0; i < n; ++i) {
    at[i] = next;
    const R seeds = V::clear(V::load(states + next.group * sizeof(R)), V::lsb());
    const R taken = V::permute(seeds, V::load(conversion.source + next.register_));
    sigma[i] = V::sigma(V::bit_xor(taken, V::load(conversion.counter + next.register_)));
    out[i] = sigma[i];
    advance(next, conversion.blocks);
  }
  V::encrypt(conversion.key, out);
  for (int i = 0; i < n; ++i) out[i] = V::bit_xor(out[i], sigma[i]);
}

// Calls `use(index, position, register)` for all output registers of `count` leaves.
template <class V, class F>
inline void for_each_register(const Conversion<V>& conversion, const std::uint8_t* states,
                              std::size_t count, F use) {
  const std::size_t total = (count * conversion.blocks + V::kLanes - 1) / V::kLanes;
  Cursor next;
  std::size_t index = 0;
  for (; index + 8 <= total; index += 8) {
    Cursor at[8];
    typename V::R out[8];
    convert_registers<V, 8>(conversion, states, next, at, out);
    for (int i = 0; i < 8; ++i) use(index + i, at[i], out[i]);
  }
  for (; index < total; ++index) {
    Cursor at[1];
    typename V::R out[1];
    convert_registers<V, 1>(conversion, states, next, at, out);
    use(index, at[0], out[0]);
  }
}

// Packs the conversions of `count` <= chunk leaves at `out`, which has slack after its end.
// `states` is readable up to a multiple of kLanes.
template <class V>
inline void convert_chunk(const Conversion<V>& conversion, const std::uint8_t* states,
                          std::size_t count, std::uint8_t* out) {
  using R = typename V::R;
  if (conversion.payload % 16 == 0) {
    for_each_register<V>(conversion, states, count, [=](std::size_t index, Cursor, R block) {
      V::store(out + index * sizeof(R), block);
    });
    return;
  }
  // Blocks are stored in ascending order: what sticks out of a leaf is overwritten by the next.
  const std::size_t group_bytes = V::kLanes * conversion.payload;
  for_each_register<V>(conversion, states, count, [&](std::size_t, Cursor at, R block) {
    V::store_blocks(out + at.group * group_bytes, conversion.offset + at.register_ * V::kLanes,
                    block);
  });
}

// Standalone conversion of states in the caller's memory.
template <class V>
void convert(const ConvertArgs& args, void* memory) {
  Arena arena(memory);
  const Conversion<V> conversion(*args.key, args.payload, arena);
  std::uint8_t* const states = arena.take<std::uint8_t>((kChunkLeaves + V::kLanes) * 16);
  std::uint8_t* const out = conversion.take_output(arena);
  for (std::size_t first = 0; first < args.count; first += conversion.chunk) {
    const std::size_t left = args.count - first;
    const std::size_t count = left < conversion.chunk ? left : conversion.chunk;
    std::memcpy(states, args.states + first * 16, count * 16);
    convert_chunk<V>(conversion, states, count, out);
    std::memcpy(args.out + first * args.payload, out, count * args.payload);
  }
}

}  // namespace
}  // namespace fsl
