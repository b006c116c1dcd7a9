// No branch and no address depends on states, hints or values.
#include "proofs.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "dispatch.h"
#include "parallel.h"
#include "schedule.h"

namespace fsl {
namespace {

using u64 = std::uint64_t;

constexpr std::size_t kCarryWidth = 7;
constexpr std::size_t kChunk = 128;  // leaves converted at once; sums of halves fit 32 bits

template <unsigned kWidth>
u64 load(const std::uint8_t* from) {
  u64 word = 0;
  std::memcpy(&word, from, kWidth);  // little-endian machines alone, as elsewhere
  return word;
}

template <unsigned kWidth>
std::int64_t signed_of(u64 word) {
  constexpr unsigned kSpare = 64 - 8 * kWidth;
  return static_cast<std::int64_t>(word << kSpare) >> kSpare;
}

u64 mask_of(const std::uint8_t* state) { return u64{0} - (state[0] & 1); }

// Adds the lifted values of `count` leaves, whose converted bytes are `plain`, to low and high.
template <unsigned kWidth>
void add_lifts(const std::uint8_t* states, std::size_t count, const std::uint8_t* plain,
               const std::uint8_t* hints, std::size_t payload, std::int64_t* low,
               std::int64_t* high) {
  const std::size_t num_values = payload / kWidth;
  for (std::size_t leaf = 0; leaf < count; ++leaf) {
    const u64 chosen = mask_of(states + 16 * leaf);
    const std::uint8_t* row = plain + leaf * payload;
    for (std::size_t i = 0; i < num_values; ++i) {
      const u64 word = load<kWidth>(row + kWidth * i) + (load<kWidth>(hints + kWidth * i) & chosen);
      const std::int64_t lifted = signed_of<kWidth>(word);
      if constexpr (kWidth > 4) {
        low[i] += lifted & 0xffffffff;
        high[i] += lifted >> 32;
      } else {
        low[i] += lifted;
      }
    }
  }
}

// Four numbers of 32 bits side by side, which every machine's compiler knows.
using Four = std::uint32_t __attribute__((vector_size(16)));
constexpr std::size_t kSpare = 16;  // bytes behind a buffer that a load of four may touch

Four load_four(const std::uint8_t* from) {
  Four four;
  std::memcpy(&four, from, sizeof(four));
  return four;
}

// The same for four bytes: halves of the shifted values are summed in 32 bits, four values at once.
template <>
void add_lifts<4>(const std::uint8_t* states, std::size_t count, const std::uint8_t* plain,
                  const std::uint8_t* hints, std::size_t payload, std::int64_t* low,
                  std::int64_t*) {
  const std::size_t num_values = payload / 4;
  std::uint32_t chosen[kChunk];
  for (std::size_t leaf = 0; leaf < count; ++leaf) {
    chosen[leaf] = static_cast<std::uint32_t>(mask_of(states + 16 * leaf));
  }
  for (std::size_t first = 0; first < num_values; first += 4) {
    const std::size_t size = std::min<std::size_t>(4, num_values - first);
    Four hint = {}, lower = {}, upper = {};
    std::memcpy(&hint, hints + 4 * first, 4 * size);
    for (std::size_t leaf = 0; leaf < count; ++leaf) {
      const Four row = load_four(plain + leaf * payload + 4 * first);
      const Four word = (row + (hint & chosen[leaf])) ^ 0x80000000u;
      lower += word & 0xffffu;
      upper += word >> 16;
    }
    for (std::size_t i = 0; i < size; ++i) {
      const u64 total = lower[i] + (u64{upper[i]} << 16);
      low[first + i] += static_cast<std::int64_t>(total) - (static_cast<std::int64_t>(count) << 31);
    }
  }
}

// The bytes that some leaves are converted to, and the scratch space for it, chunk after chunk.
class Converted {
 public:
  explicit Converted(const LeafArgs& args)
      : args_(args),
        bytes_(kChunk * args.payload + kSpare),
        scratch_(arena_bytes(0, args.payload)) {}

  const std::uint8_t* of(const std::uint8_t* states, std::size_t count) {
    active_path().convert({args_.key, states, count, args_.payload, bytes_.data()}, scratch_.get());
    return bytes_.data();
  }

 private:
  const LeafArgs& args_;
  std::vector<std::uint8_t> bytes_;
  const Scratch scratch_;
};

template <unsigned kWidth>
void sum_leaves(const LeafArgs& args, std::size_t tree, Converted& converted, std::int64_t* low,
                std::int64_t* high) {
  const std::uint8_t* states = args.states + 16 * tree * args.num_leaves;
  const std::uint8_t* hints = args.hints + tree * args.payload;
  for (std::size_t first = 0; first < args.num_leaves; first += kChunk) {
    const std::size_t count = std::min(kChunk, args.num_leaves - first);
    const std::uint8_t* plain = converted.of(states + 16 * first, count);
    add_lifts<kWidth>(states + 16 * first, count, plain, hints, args.payload, low, high);
  }
}

}  // namespace

void leaf_sums(const LeafArgs& args, unsigned width, std::int64_t* low, std::int64_t* high,
               unsigned num_threads) {
  const std::size_t num_values = args.payload / width;
  std::fill_n(low, args.num_trees * num_values, 0);
  std::fill_n(high, args.num_trees * num_values, 0);
  const std::size_t work = args.num_leaves * (args.payload / 16 + 1);
  for_trees(args.num_trees, work, num_threads, [&](std::size_t first, std::size_t count) {
    Converted converted(args);
    for (std::size_t tree = first; tree < first + count; ++tree) {
      std::int64_t* const lower = low + tree * num_values;
      std::int64_t* const upper = high + tree * num_values;
      if (width == 2) sum_leaves<2>(args, tree, converted, lower, upper);
      if (width == 3) sum_leaves<3>(args, tree, converted, lower, upper);
      if (width == 4) sum_leaves<4>(args, tree, converted, lower, upper);
      if (width == 6) sum_leaves<6>(args, tree, converted, lower, upper);
      for (std::size_t i = 0; args.party && i < num_values; ++i) {
        lower[i] = -lower[i];
        upper[i] = -upper[i];
      }
    }
  });
}

// Two words side by side, which every machine's compiler knows.
using Two = u64 __attribute__((vector_size(16)));

// A value of seven bytes is taken as the lifted one and kBias, and no sign is to be kept.
constexpr u64 kBias = u64{1} << (8 * kCarryWidth - 1);

// Adds such values of `count` <= kChunk leaves to `carried [count, slots]`, and their sums, below
// 2^63, to `totals`; two slots at once.
void carry_pairs(const std::uint8_t* states, std::size_t count, const std::uint8_t* plain,
                 const u64* hints, std::size_t slots, u64* carried, u64* totals) {
  u64 chosen[kChunk];
  for (std::size_t leaf = 0; leaf < count; ++leaf) chosen[leaf] = mask_of(states + 16 * leaf);
  for (std::size_t i = 0; i < slots; i += 2) {
    const Two hint = {hints[i], hints[i + 1]};
    Two total = {};
    for (std::size_t leaf = 0; leaf < count; ++leaf) {
      // Eight bytes a load: the last one is masked away, and there are some to spare.
      const std::uint8_t* row = plain + (leaf * slots + i) * kCarryWidth;
      const Two own = {load<8>(row), load<8>(row + kCarryWidth)};
      const Two value = ((own + (hint & chosen[leaf])) ^ kBias) & (2 * kBias - 1);
      total += value;
      Two sum;
      std::memcpy(&sum, carried + leaf * slots + i, sizeof(sum));
      sum += value;
      std::memcpy(carried + leaf * slots + i, &sum, sizeof(sum));
    }
    totals[i] += total[0];
    totals[i + 1] += total[1];
  }
}

// The same for a single slot.
void carry_single(const std::uint8_t* states, std::size_t count, const std::uint8_t* plain,
                  const u64* hints, std::size_t, u64* carried, u64* totals) {
  for (std::size_t leaf = 0; leaf < count; ++leaf) {
    const u64 own = load<8>(plain + leaf * kCarryWidth);
    const u64 word = own + (hints[0] & mask_of(states + 16 * leaf));
    const u64 value = (word ^ kBias) & (2 * kBias - 1);
    carried[leaf] += value;
    totals[0] += value;
  }
}

void carry_sums(const LeafArgs& args, std::int64_t* carried, std::int64_t* sums) {
  const std::size_t slots = args.payload / kCarryWidth;
  const auto carry = slots == 1 ? carry_single : carry_pairs;
  Converted converted(args);
  std::fill_n(sums, args.num_trees * slots * 2, 0);
  std::vector<u64> hints(args.num_trees * slots);
  for (std::size_t i = 0; i < hints.size(); ++i) {
    hints[i] = load<kCarryWidth>(args.hints + kCarryWidth * i);
  }
  std::vector<u64> totals(slots), here(kChunk * slots);
  const auto lifted = [&](u64 value, std::size_t number) {
    const auto whole = static_cast<std::int64_t>(value - number * kBias);
    return args.party ? -whole : whole;
  };
  // All trees of some leaves, so that their sums stay in the cache.
  for (std::size_t first = 0; first < args.num_leaves; first += kChunk) {
    const std::size_t count = std::min(kChunk, args.num_leaves - first);
    std::fill(here.begin(), here.end(), 0);
    for (std::size_t tree = 0; tree < args.num_trees; ++tree) {
      const std::uint8_t* states = args.states + 16 * (tree * args.num_leaves + first);
      const std::uint8_t* plain = converted.of(states, count);
      std::fill(totals.begin(), totals.end(), 0);
      carry(states, count, plain, hints.data() + tree * slots, slots, here.data(), totals.data());
      std::int64_t* const own = sums + 2 * tree * slots;
      for (std::size_t i = 0; i < slots; ++i) {
        const std::int64_t total = lifted(totals[i], count);
        const std::int64_t low = own[2 * i] + (total & 0xffffffff);
        own[2 * i] = low & 0xffffffff;
        own[2 * i + 1] += (total >> 32) + (low >> 32);
      }
    }
    for (std::size_t i = 0; i < count * slots; ++i) {
      carried[first * slots + i] = lifted(here[i], args.num_trees);
    }
  }
}

}  // namespace fsl
