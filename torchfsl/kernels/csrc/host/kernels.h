// The kernels as the binding calls them: scratch memory, threads and the choice of the CPU path.
// Sizes and ranges have been checked by the caller. `num_threads` 0 means all of the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "path.h"

namespace fsl {

// `args.level_trees` is not used.
void tree_gen(const TreeGenArgs& args, unsigned num_threads = 1);
void tree_path(const TreePathArgs& args, unsigned num_threads = 1);
void tree_eval(const Trees& trees, std::uint8_t* out, unsigned num_threads = 1);
void convert(const ConvertArgs& args);
void hint_gen(const HintArgs& args, unsigned num_threads = 1);

// Several reports into one accumulator, part by part of it, so that it passes through the cache
// once: trees and payloads of all have one shape. `args.ahead` and `args.num_ahead` are not used.
struct AccumulateJob {
  Trees trees;
  AccumulateArgs args;
};
void accumulate(const std::vector<AccumulateJob>& jobs, unsigned num_threads);
// The same, of width 2, 3, 4 or 6, and the first `lifted` values of every leaf as signed integers,
// before the party's sign, summed over the leaves of each tree: low + 2^32 high. `low` and `high`
// [jobs, T, lifted] are added to, `high` for width 6 alone.
struct Lifted {
  std::size_t lifted;
  std::int64_t* low;
  std::int64_t* high;
};
void accumulate_lifted(const std::vector<AccumulateJob>& jobs, const Lifted& sums,
                       unsigned num_threads);
inline void accumulate(const Trees& trees, const AccumulateArgs& args, unsigned num_threads) {
  accumulate({{trees, args}}, num_threads);
}

// `out [T, row_bytes]` is overwritten; `args.out` and `args.first_tree` are not used.
void answer(const Trees& trees, const AnswerArgs& args, std::uint8_t* out, unsigned num_threads);

// The same; trees have ceil(args.num_rows / kBitRows) leaves.
void answer_bits(const Trees& trees, const BitAnswerArgs& args, std::uint8_t* out,
                 unsigned num_threads);

// Seconds that `num_threads` threads take to hash `num_blocks` blocks each in their own cache.
double aes_ceiling(std::size_t num_blocks, unsigned num_threads);

// out[x] += sum over e of acc[slots[e, x]] on rows of `row_bytes`, `slots [num_sums, num_rows]`.
// Throws std::invalid_argument, before it writes, if a slot is `num_slots` or more.
template <class Slot>
struct GatherArgs {
  const std::uint8_t* acc;
  std::size_t num_slots;
  const Slot* slots;
  std::size_t num_sums;
  std::size_t num_rows;
  std::size_t row_bytes;
  unsigned width;
  std::uint8_t* out;
};
void gather(const GatherArgs<std::uint32_t>& args, unsigned num_threads);
void gather(const GatherArgs<std::uint64_t>& args, unsigned num_threads);

inline constexpr std::size_t kMaxFieldTerms = std::size_t{1} << 24;
void field_multiply(const FieldArgs& args, unsigned num_threads);

// `args.out` is overwritten.
void ring_multiply(const RingArgs<std::uint32_t>& args, unsigned num_threads);
void ring_multiply(const RingArgs<std::uint64_t>& args, unsigned num_threads);

// Matches items to bins, greedily and exactly in item order, by breadth-first augmenting paths;
// `candidates [3, num_items]`, `bin_of [num_items]` receives a bin or -1. Throws
// std::invalid_argument if a candidate is `num_bins` or more.
void match(const std::uint32_t* candidates, std::size_t num_items, std::size_t num_bins,
           std::int64_t* bin_of);

// Indices of the keys in their order, `out [num_keys]`; equal keys in the order of their indices.
// Throws std::invalid_argument if an index may not fit 32 bits.
void stable_order(const std::uint64_t* keys, std::size_t num_keys, std::uint32_t* out,
                  unsigned num_threads);

}  // namespace fsl
