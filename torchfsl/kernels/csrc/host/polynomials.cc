// Polynomials over the field of p = 2^128 - 7 * 2^66 + 1 elements, and weighted sums of integers.
// No branch and no address depends on an element or an integer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "field128.h"
#include "parallel.h"
#include "proofs.h"

namespace fsl {
namespace {

using namespace field128;

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

// low + 2^64 middle + 2^128 high modulo p, where `high` is below 2^64 and the others below 2^127.
u128 of_limbs(u128 low, u128 middle, u128 high, u128 square) {
  const u128 upper = high + (middle >> 64);
  const u128 sum = low + (middle << 64);
  const u64 carry = static_cast<u64>(sum < low);
  const u128 small = reduced(sum, 0);
  const u128 shifted = multiply(upper + carry, square);
  return add(small, shifted);
}

}  // namespace

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
    store_element(sum, args.out + 2 * k);
  }
}

void weighted_sums(const WeightedArgs& args, unsigned num_threads) {
  const u128 square = radix_squared();
  u128 weights = 0;
  for (std::size_t k = 0; k < args.num_rows; ++k) {
    weights = add(weights, element(args.weights + 2 * k));
  }
  // Integers are taken as unsigned, 2^63 more, which is subtracted at the end.
  const u128 beyond = multiply(weights, multiply(u128{1} << 63, square));
  // Column by column, so that sums stay in registers; neighbours share the lines of a cache.
  constexpr std::size_t kColumns = 8;
  const std::size_t tiles = (args.num_columns + kColumns - 1) / kColumns;
  for_trees(tiles, args.num_rows * kColumns, num_threads,
            [&](std::size_t first, std::size_t count) {
              const std::size_t end = std::min(args.num_columns, (first + count) * kColumns);
              for (std::size_t column = first * kColumns; column < end; ++column) {
                u128 low = 0, middle = 0, high = 0;
                for (std::size_t k = 0; k < args.num_rows; ++k) {
                  const std::int64_t number = args.values[k * args.num_columns + column];
                  const u64 value = static_cast<u64>(number) ^ (u64{1} << 63);
                  const u128 x = u128{args.weights[2 * k]} * value;
                  const u128 y = u128{args.weights[2 * k + 1]} * value;
                  low += static_cast<u64>(x);
                  middle += (x >> 64) + static_cast<u64>(y);
                  high += y >> 64;
                }
                const u128 whole = of_limbs(low, middle, high, square);
                store_element(subtract(whole, beyond), args.out + 2 * column);
              }
            });
}

void field_transform(const TransformArgs& args) {
  const std::size_t order = args.order;
  const u128 square = radix_squared();
  const u128 step = multiply(element(args.root), square);
  std::vector<u128> powers(std::max<std::size_t>(1, order / 2)), x(order);
  powers[0] = multiply(1, square);
  for (std::size_t i = 1; i < powers.size(); ++i) powers[i] = multiply(powers[i - 1], step);
  for (std::size_t i = 0, reversed = 0; i < order; ++i) {
    x[reversed] = element(args.values + 2 * i);
    for (std::size_t bit = order / 2; bit && !((reversed ^= bit) & bit);) bit /= 2;
  }
  for (std::size_t half = 1; half < order; half *= 2) {
    const std::size_t stride = order / (2 * half);
    for (std::size_t start = 0; start < order; start += 2 * half) {
      for (std::size_t j = 0; j < half; ++j) {
        const u128 u = x[start + j], v = multiply(x[start + j + half], powers[j * stride]);
        x[start + j] = add(u, v);
        x[start + j + half] = subtract(u, v);
      }
    }
  }
  for (std::size_t i = 0; i < order; ++i) store_element(x[i], args.out + 2 * i);
}

}  // namespace fsl
