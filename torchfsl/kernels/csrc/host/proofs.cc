// No branch and no address depends on states, hints or values.
#include "proofs.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "dispatch.h"
#include "parallel.h"
#include "schedule.h"

namespace fsl {
namespace {

using u64 = std::uint64_t;
using u128 = unsigned __int128;

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

// --- the field --------------------------------------------------------------------------------

constexpr u64 kUpper = 0xffffffffffffffe4ull;  // p = kUpper * 2^64 + 1
constexpr u128 kModulus = (u128{kUpper} << 64) | 1;

// All ones where `bit` is 1, in a way that no compiler turns into a branch.
u128 spread(u64 bit) {
  u64 mask = u64{0} - bit;
  __asm__("" : "+r"(mask));
  return (u128{mask} << 64) | mask;
}

u64 borrow_of(u128 a, u128 b, u128 difference) {
  return static_cast<u64>(((~a & b) | ((~a | b) & difference)) >> 127);
}

// (carry * 2^128 + value) modulo p, for numbers below 2 p.
u128 reduced(u128 value, u64 carry) {
  const u128 less = value - kModulus;
  const u128 keep = spread(borrow_of(value, kModulus, less) & (carry ^ 1));
  return (value & keep) | (less & ~keep);
}

u128 add(u128 a, u128 b) {
  const u128 sum = a + b;
  return reduced(sum, static_cast<u64>(((a & b) | ((a | b) & ~sum)) >> 127));
}

u128 subtract(u128 a, u128 b) {
  const u128 difference = a - b;
  return difference + (kModulus & spread(borrow_of(a, b, difference)));
}

// 1 unless the word is 0.
u64 not_zero(u64 word) { return (word | (u64{0} - word)) >> 63; }

// a * b / 2^128 modulo p (Montgomery). p = 1 modulo 2^64, so a multiplier of p is a negation.
u128 multiply(u128 a, u128 b) {
  const u64 a0 = static_cast<u64>(a), a1 = static_cast<u64>(a >> 64);
  const u64 b0 = static_cast<u64>(b), b1 = static_cast<u64>(b >> 64);
  u128 x = u128{a0} * b0;
  const u64 t0 = static_cast<u64>(x);
  x = u128{a1} * b0 + static_cast<u64>(x >> 64);
  const u64 t1 = static_cast<u64>(x), t2 = static_cast<u64>(x >> 64);
  x = u128{u64{0} - t0} * kUpper + t1 + not_zero(t0);
  const u64 s0 = static_cast<u64>(x);
  u128 y = u128{t2} + static_cast<u64>(x >> 64);
  const u64 s1 = static_cast<u64>(y), s2 = static_cast<u64>(y >> 64);
  x = u128{a0} * b1 + s0;
  const u64 v0 = static_cast<u64>(x);
  x = u128{a1} * b1 + s1 + static_cast<u64>(x >> 64);
  const u64 v1 = static_cast<u64>(x);
  y = u128{s2} + static_cast<u64>(x >> 64);
  const u64 v2 = static_cast<u64>(y), v3 = static_cast<u64>(y >> 64);
  x = u128{u64{0} - v0} * kUpper + v1 + not_zero(v0);
  y = u128{v2} + static_cast<u64>(x >> 64);
  const u64 carry = v3 + static_cast<u64>(y >> 64);
  return reduced((u128{static_cast<u64>(y)} << 64) | static_cast<u64>(x), carry);
}

// 2^256 modulo p.
u128 radix_squared() {
  u128 value = u128{0} - kModulus;  // 2^128 - p
  for (int i = 0; i < 128; ++i) value = add(value, value);
  return value;
}

// Powers of a root of order 2 P in Montgomery's form, and what takes P wires' points to the others.
class Transform {
 public:
  Transform(std::size_t order, u128 root) : order_(order), powers_(2 * order), turns_(order) {
    const u128 square = radix_squared();
    const u128 step = multiply(root, square);
    const u128 one = multiply(1, square);
    const u128 half = multiply((kModulus >> 1) + 1, square);
    powers_[0] = one;
    for (std::size_t i = 1; i < 2 * order; ++i) powers_[i] = multiply(powers_[i - 1], step);
    u128 scale = one;
    for (std::size_t n = 1; n < order; n *= 2) scale = multiply(scale, half);
    for (std::size_t i = 0, reversed = 0; i < order; ++i) {
      turns_[i] = multiply(powers_[reversed], scale);
      for (std::size_t bit = order / 2; bit && !((reversed ^= bit) & bit);) bit /= 2;
    }
  }

  // Values at the powers of root^2 to values at root times these, in place.
  void to_odd_points(u128* x) const {
    for (std::size_t half = order_ / 2; half; half /= 2) {
      const std::size_t step = order_ / half;  // of powers of the root itself
      for (std::size_t start = 0; start < order_; start += 2 * half) {
        for (std::size_t j = 0; j < half; ++j) {
          const u128 u = x[start + j], v = x[start + j + half];
          x[start + j] = add(u, v);
          x[start + j + half] =
              multiply(subtract(u, v), powers_[(2 * order_ - j * step) % (2 * order_)]);
        }
      }
    }
    for (std::size_t i = 0; i < order_; ++i) x[i] = multiply(x[i], turns_[i]);
    for (std::size_t half = 1; half < order_; half *= 2) {
      const std::size_t step = order_ / half;
      for (std::size_t start = 0; start < order_; start += 2 * half) {
        for (std::size_t j = 0; j < half; ++j) {
          const u128 u = x[start + j], v = multiply(x[start + j + half], powers_[j * step]);
          x[start + j] = add(u, v);
          x[start + j + half] = subtract(u, v);
        }
      }
    }
  }

 private:
  std::size_t order_;
  std::vector<u128> powers_;
  std::vector<u128> turns_;
};

u128 element(const u64* words) { return (u128{words[1]} << 64) | words[0]; }

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

void carry_sums(const LeafArgs& args, std::int64_t* carried, std::int64_t* sums) {
  constexpr unsigned kWidth = 7;
  const std::size_t slots = args.payload / kWidth;
  const std::int64_t sign = args.party ? -1 : 1;
  Converted converted(args);
  std::fill_n(carried, args.num_leaves * slots, 0);
  std::fill_n(sums, args.num_trees * slots * 2, 0);
  for (std::size_t tree = 0; tree < args.num_trees; ++tree) {
    const std::uint8_t* states = args.states + 16 * tree * args.num_leaves;
    const std::uint8_t* hints = args.hints + tree * args.payload;
    for (std::size_t first = 0; first < args.num_leaves; first += kChunk) {
      const std::size_t count = std::min(kChunk, args.num_leaves - first);
      const std::uint8_t* plain = converted.of(states + 16 * first, count);
      for (std::size_t i = 0; i < slots; ++i) {
        const u64 hint = load<kWidth>(hints + kWidth * i);
        std::int64_t low = 0, high = 0;
        for (std::size_t leaf = 0; leaf < count; ++leaf) {
          const u64 chosen = mask_of(states + 16 * (first + leaf));
          // Eight bytes: the last one falls out of `signed_of`, and there are some to spare.
          const u64 word = load<8>(plain + leaf * args.payload + kWidth * i) + (hint & chosen);
          const std::int64_t lifted = sign * signed_of<kWidth>(word);
          carried[(first + leaf) * slots + i] += lifted;
          low += lifted & 0xffffffff;
          high += lifted >> 32;
        }
        sums[2 * (tree * slots + i)] += low;
        sums[2 * (tree * slots + i) + 1] += high;
      }
    }
  }
}

void square_sums(const SquareArgs& args, unsigned num_threads) {
  const std::size_t order = args.order;
  const Transform transform(order, element(args.root));
  std::vector<u128> total(2 * order);
  std::mutex mutex;
  for_trees(args.num_wires, 32 * order, num_threads, [&](std::size_t first, std::size_t count) {
    std::vector<u128> own(2 * order), x(order);
    for (std::size_t wire = first; wire < first + count; ++wire) {
      for (std::size_t k = 0; k < order; ++k) {
        x[k] = element(args.values + 2 * (k * args.num_wires + wire));
        own[2 * k] = add(own[2 * k], multiply(x[k], x[k]));
      }
      transform.to_odd_points(x.data());
      for (std::size_t k = 0; k < order; ++k) {
        own[2 * k + 1] = add(own[2 * k + 1], multiply(x[k], x[k]));
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (std::size_t k = 0; k < 2 * order; ++k) total[k] = add(total[k], own[k]);
  });
  const u128 square = radix_squared();
  for (std::size_t k = 0; k < 2 * order; ++k) {
    const u128 sum = multiply(total[k], square);
    args.out[2 * k] = static_cast<u64>(sum);
    args.out[2 * k + 1] = static_cast<u64>(sum >> 64);
  }
}

}  // namespace fsl
