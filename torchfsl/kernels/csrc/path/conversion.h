// Conv: pseudorandom bytes from leaf seeds.
//
// The blocks of a leaf are converted column by column, for a chunk of leaves at a time. While a
// register's worth of blocks is left, a register takes neighbouring blocks of one leaf; the rest is
// taken from two leaves, then from all the leaves that fill it. So registers are full whatever the
// payload, and seeds reach them by loads alone, without moves between lanes, which would compete
// with AES for execution ports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "fused_steps.h"
#include "path.h"

namespace fsl {
namespace {

template <class V>
struct Conversion {
  using R = typename V::R;

  Conversion(const KeySchedule& schedule, std::size_t payload, Arena& arena)
      : key(V::make_key(schedule)),
        payload(payload),
        blocks((payload + 15) / 16),
        seeds(arena.take<std::uint8_t>((kChunkLeaves + V::kLanes) * 16)),
        masks(arena.take<std::uint8_t>((kChunkLeaves + V::kLanes) * 16)) {
    const std::size_t fit = kChunkBytes / leaf_bytes();
    chunk = fit < 8 ? 8 : fit > kChunkLeaves ? kChunkLeaves : fit - fit % 8;
  }

  // Bytes of a leaf's whole blocks.
  std::size_t leaf_bytes() const { return blocks * 16; }

  // Room for the conversion of `chunk` leaves, with slack for whole registers.
  std::uint8_t* take_output(Arena& arena) const {
    return arena.take<std::uint8_t>(chunk * leaf_bytes() + 2 * sizeof(R));
  }

  // Sets `seeds` and `masks` from `count` states, which are readable up to a multiple of kLanes.
  void prepare(const std::uint8_t* states, std::size_t count) const {
    for (std::size_t i = 0; i < count; i += V::kLanes) {
      const R state = V::load(states + i * 16);
      V::store(seeds + i * 16, V::sigma(V::clear(state, V::lsb())));
      V::store(masks + i * 16, V::spread_lsb(state));
    }
  }

  const typename V::Key key;
  const std::size_t payload;
  const std::size_t blocks;
  std::size_t chunk;          // leaves converted at a time
  std::uint8_t* const seeds;  // sigma of the seeds; sigma is linear, so counters are added after it
  std::uint8_t* const masks;  // control bits as masks of a block
};

// n registers of blocks of `leaves` leaves each, from `leaf` on: calls `use(leaf, register)`.
template <class V, int leaves, int n, class F>
FSL_INLINE void convert_step(const Conversion<V>& conversion, typename V::R counter,
                             std::size_t leaf, F use) {
  typename V::R sigma[n], x[n];
  FSL_UNROLL
  for (int i = 0; i < n; ++i) {
    const std::uint8_t* seeds = conversion.seeds + (leaf + i * leaves) * 16;
    sigma[i] = V::bit_xor(V::template spread<leaves>(seeds), counter);
    x[i] = sigma[i];
  }
  V::encrypt(conversion.key, x);
  FSL_UNROLL
  for (int i = 0; i < n; ++i) use(leaf + i * leaves, V::bit_xor(x[i], sigma[i]));
}

// Converts kLanes / leaves blocks, from `block` on, of `count` leaves. Calls `use(leaf, register)`,
// and `use_last` for a register that is filled beyond the last leaf.
template <class V, int leaves, class F, class G>
FSL_INLINE void convert_column(const Conversion<V>& conversion, std::size_t block,
                               std::size_t count, F use, G use_last) {
  std::uint64_t low[V::kLanes];
  for (int i = 0; i < V::kLanes; ++i) low[i] = block + i % (V::kLanes / leaves);
  const typename V::R counter = V::sigma(V::counters(low));
  std::size_t leaf = 0;
  if constexpr (!encrypts_in_calls<V>) {
    for (; leaf + 8 * leaves <= count; leaf += 8 * leaves) {
      convert_step<V, leaves, 8>(conversion, counter, leaf, use);
    }
  }
  for (; leaf + leaves <= count; leaf += leaves) {
    convert_step<V, leaves, 1>(conversion, counter, leaf, use);
  }
  if (leaf < count) convert_step<V, leaves, 1>(conversion, counter, leaf, use_last);
}

// Calls `column.template operator()<leaves>(block)` for all columns of a leaf's blocks.
template <class V, class F>
FSL_INLINE void for_each_column(std::size_t blocks, F column) {
  std::size_t block = 0;
  for (; block + V::kLanes <= blocks; block += V::kLanes) column.template operator()<1>(block);
  if constexpr (V::kLanes == 4) {
    if (block + 2 <= blocks) {
      column.template operator()<2>(block);
      block += 2;
    }
  }
  if constexpr (V::kLanes > 1) {
    if (block < blocks) column.template operator()<V::kLanes>(block);
  }
}

// Writes the conversions of `count` <= chunk prepared leaves to `out`, leaf_bytes() a leaf.
template <class V>
void convert_chunk(const Conversion<V>& conversion, std::size_t count, std::uint8_t* out) {
  using R = typename V::R;
  const std::size_t stride = conversion.leaf_bytes();
  for_each_column<V>(conversion.blocks, [&]<int leaves>(std::size_t block) FSL_INLINE_LAMBDA {
    std::uint8_t* const column = out + block * 16;
    const auto whole = [=](std::size_t leaf, R x)
                           FSL_INLINE_LAMBDA { V::store(column + leaf * stride, x); };
    const auto pieces = [=](std::size_t leaf, R x) FSL_INLINE_LAMBDA {
      constexpr std::size_t kPiece = sizeof(R) / leaves;
      alignas(64) std::uint8_t spilled[sizeof(R)];
      V::store(spilled, x);
      for (std::size_t i = 0; i < leaves && leaf + i < count; ++i) {
        std::memcpy(column + (leaf + i) * stride, spilled + i * kPiece, kPiece);
      }
    };
    if (leaves == 1 || stride * leaves == sizeof(R)) {
      convert_column<V, leaves>(conversion, block, count, whole, pieces);
    } else {
      convert_column<V, leaves>(conversion, block, count, pieces, pieces);
    }
  });
}

// Standalone conversion of states in the caller's memory.
template <class V>
void convert(const ConvertArgs& args, void* memory) {
  Arena arena(memory);
  const Conversion<V> conversion(*args.key, args.payload, arena);
  std::uint8_t* const states = arena.take<std::uint8_t>((kChunkLeaves + V::kLanes) * 16);
  std::uint8_t* const blocks = conversion.take_output(arena);
  for (std::size_t first = 0; first < args.count; first += conversion.chunk) {
    const std::size_t left = args.count - first;
    const std::size_t count = left < conversion.chunk ? left : conversion.chunk;
    std::memcpy(states, args.states + first * 16, count * 16);
    conversion.prepare(states, count);
    convert_chunk<V>(conversion, count, blocks);
    std::uint8_t* out = args.out + first * args.payload;
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(out + i * args.payload, blocks + i * conversion.leaf_bytes(), args.payload);
    }
  }
}

}  // namespace
}  // namespace fsl
