// The smaller kernels over leaf states: evaluation, answers to retrievals, hints, the hash rate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "conversion.h"
#include "fused_steps.h"
#include "path.h"
#include "ring_lanes.h"
#include "tree_walk.h"

namespace fsl {
namespace {

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
  walk<V>(trees, partition, begin, end, {EvalSink::take, nullptr, &sink}, arena);
}

// XORs the chosen rows' bytes [0, n registers + part) into `out`, and brings `ahead` bytes a row,
// `next` further on, into the cache.
template <class V, int n, int part>
inline void xor_rows(const std::uint8_t* rows, std::size_t stride, const std::uint8_t* states,
                     std::size_t count, std::uint8_t* out, std::ptrdiff_t next, std::size_t ahead) {
  using R = typename V::R;
  using Bytes = Lanes<V, 1>;
  R sum[n + 1];
  FSL_UNROLL
  for (int j = 0; j < n; ++j) sum[j] = V::load(out + j * sizeof(R));
  if constexpr (part > 0) sum[n] = Bytes::template load<part>(out + n * sizeof(R));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* const row = rows + i * stride;
    for (std::size_t at = 0; at < ahead; at += 64) __builtin_prefetch(row + next + at, 0, 2);
    const auto chosen = control_of_one<V>(states + i * 16);
    FSL_UNROLL
    for (int j = 0; j < n; ++j) {
      sum[j] = xor_chosen<V>(sum[j], chosen, V::load(row + j * sizeof(R)));
    }
    if constexpr (part > 0) {
      const R last = Bytes::template load<part>(row + n * sizeof(R));
      sum[n] = xor_chosen<V>(sum[n], chosen, last);
    }
  }
  FSL_UNROLL
  for (int j = 0; j < n; ++j) V::store(out + j * sizeof(R), sum[j]);
  if constexpr (part > 0) Bytes::template store<part>(out + n * sizeof(R), sum[n]);
}

// The same for rows of any size: whole registers first, four at a time. `then`: what to bring.
template <class V>
void xor_all(const std::uint8_t* rows, std::size_t stride, const std::uint8_t* states,
             std::size_t count, std::uint8_t* out, RowsAhead::Next then) {
  constexpr std::size_t kRegister = sizeof(typename V::R);
  const std::ptrdiff_t next = then.leaves * static_cast<std::ptrdiff_t>(stride);
  std::size_t at = 0, ahead = then.any ? stride : 0;
  const auto pass = [&]<int n, int part>() FSL_INLINE_LAMBDA {
    xor_rows<V, n, part>(rows + at, stride, states, count, out + at, next, ahead);
    at += n * kRegister + part;
    ahead = 0;  // the first pass has brought whole rows
  };
  while (at + 4 * kRegister <= stride) pass.template operator()<4, 0>();
  while (at + kRegister + 8 <= stride) pass.template operator()<1, 8>();
  for_run<V, 1>(stride - at, [&]<int bytes>(std::size_t) FSL_INLINE_LAMBDA {
    if constexpr (bytes == kRegister) {
      pass.template operator()<1, 0>();
    } else {
      pass.template operator()<0, bytes>();
    }
  });
}

template <class V>
struct AnswerSink {
  const AnswerArgs* args;
  std::size_t num_leaves;
  const RowsAhead* rows;

  static void take(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
                   std::size_t count) {
    const AnswerSink& self = *static_cast<AnswerSink*>(context);
    const AnswerArgs& args = *self.args;
    const std::size_t row = (args.shared_table ? 0 : tree) * self.num_leaves + first;
    xor_all<V>(args.table + row * args.row_bytes, args.row_bytes, states, count,
               args.out + (tree - args.first_tree) * args.row_bytes, self.rows->next());
  }
};

template <class V>
void answer(const Trees& trees, const Partition& partition, std::size_t begin, std::size_t end,
            const AnswerArgs& args, void* memory) {
  Arena arena(memory);
  RowsAhead rows(args.table, args.row_bytes, nullptr);
  AnswerSink<V> sink = {&args, trees.num_leaves, &rows};
  walk<V>(trees, partition, begin, end,
          {AnswerSink<V>::take, nullptr, &sink, &rows, args.shared_table}, arena);
}

// Combines the two conversions of `count` trees into hints sign (beta - conv0 + conv1); every slot
// is written the same way.
template <class V, unsigned width>
void combine_hints(const HintArgs& args, std::size_t first, std::size_t count,
                   std::size_t leaf_bytes, const std::uint8_t* conv0, const std::uint8_t* conv1) {
  using L = Lanes<V, width>;
  const std::size_t row_bytes = args.payload >> args.nu;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t tree = first + i;
    const std::uint8_t* value = args.values + tree * row_bytes;
    const typename L::R sign = L::splat(control_mask(args.leaf[1] + tree * 16));
    for (std::size_t slot = 0; slot < std::size_t{1} << args.nu; ++slot) {
      const std::uint64_t differs = args.slots[tree] ^ slot;
      const typename L::R mask = L::splat(((differs | (0 - differs)) >> 63) - 1);
      const std::size_t from = i * leaf_bytes + slot * row_bytes;
      std::uint8_t* out = args.out + tree * args.payload + slot * row_bytes;
      for_run<V, width>(row_bytes, [&]<int n>(std::size_t at) FSL_INLINE_LAMBDA {
        const auto beta = L::chosen(L::template load<n>(value + at), mask);
        const auto less = L::sub(beta, L::template load<n>(conv0 + from + at));
        const auto word = L::add(less, L::template load<n>(conv1 + from + at));
        L::template store<n>(out + at, L::signed_by(sign, word));
      });
    }
  }
}

template <class V>
using CombineHints = void (*)(const HintArgs&, std::size_t, std::size_t, std::size_t,
                              const std::uint8_t*, const std::uint8_t*);

template <class V>
void hint_gen(const HintArgs& args, void* memory) {
  Arena arena(memory);
  const Conversion<V> conversion(*args.key, args.payload, arena);
  const auto combine = of_width(
      args.width, []<unsigned width>() -> CombineHints<V> { return combine_hints<V, width>; });
  std::uint8_t* const states = arena.take<std::uint8_t>((kChunkLeaves + V::kLanes) * 16);
  std::uint8_t* const conv[2] = {conversion.take_output(arena), conversion.take_output(arena)};
  for (std::size_t first = 0; first < args.num_trees; first += conversion.chunk) {
    const std::size_t left = args.num_trees - first;
    const std::size_t count = left < conversion.chunk ? left : conversion.chunk;
    for (int b = 0; b < 2; ++b) {
      std::memcpy(states, args.leaf[b] + first * 16, count * 16);
      conversion.prepare(states, count);
      convert_chunk<V>(conversion, count, conv[b]);
    }
    combine(args, first, count, conversion.leaf_bytes(), conv[0], conv[1]);
  }
}

// Hashes eight registers in place.
template <class V>
FSL_INLINE void hash_step(const typename V::Key& key, typename V::R* at) {
  using R = typename V::R;
  R x[8], added[8];  // what is added at the end: inputs, or last keys
  FSL_UNROLL
  for (int i = 0; i < 8; ++i) {
    if constexpr (hashes_whitened<V>) {
      const auto* const block = reinterpret_cast<const std::uint8_t*>(at + i);
      x[i] = whiten<V>(key, V::sigma_from(V::doubled(block), V::doubled(block + 8)));
      added[i] = last_key<V>(key, x[i]);
    } else {
      x[i] = added[i] = V::sigma(V::load(at + i));
    }
  }
  if constexpr (hashes_whitened<V>) {
    hash_whitened<V>(key, x, added);
  } else {
    V::encrypt(key, x);
    FSL_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = V::bit_xor(x[i], added[i]);
  }
  FSL_UNROLL
  for (int i = 0; i < 8; ++i) V::store(at + i, x[i]);
}

// The counters are public, the key is not.
template <class V>
void counter_blocks(const CounterArgs& args) {
  constexpr std::size_t kStep = 8 * V::kLanes;
  const typename V::Key key = V::make_key(*args.key);
  alignas(64) std::uint8_t blocks[16 * kStep];
  for (std::size_t done = 0; done < args.num_blocks; done += kStep) {
    for (std::size_t i = 0; i < kStep; ++i) {
      const std::uint64_t number = __builtin_bswap64(args.first + done + i);
      std::memcpy(blocks + 16 * i, args.prefix, 8);
      std::memcpy(blocks + 16 * i + 8, &number, 8);
    }
    typename V::R x[8];
    for (int i = 0; i < 8; ++i) x[i] = V::load(blocks + i * sizeof x[0]);
    V::encrypt(key, x);
    for (int i = 0; i < 8; ++i) V::store(blocks + i * sizeof x[0], x[i]);
    const std::size_t left = args.num_blocks - done;
    std::memcpy(args.out + 16 * done, blocks, 16 * (left < kStep ? left : kStep));
  }
}

// Keeps 8 registers in flight over a 4 KiB buffer: the rate that no use of the hash can exceed.
template <class V>
void hash_blocks(const KeySchedule& schedule, std::size_t num_blocks, void* memory) {
  using R = typename V::R;
  constexpr std::size_t kSteps = 4096 / (8 * sizeof(R));
  const typename V::Key key = V::make_key(schedule);
  R* const buffer =
      Arena(memory).take<R>(8 * kSteps + 1);  // the last may be read with what follows
  for (std::size_t i = 0; i <= 8 * kSteps; ++i) V::store(buffer + i, V::splat(i));
  for (std::size_t done = 0; done < num_blocks;) {
    for (std::size_t step = 0; step < kSteps; ++step, done += 8 * V::kLanes) {
      hash_step<V>(key, buffer + 8 * step);
    }
  }
}

}  // namespace
}  // namespace fsl
