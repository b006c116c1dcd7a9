// Polynomials over the field of p = 2^128 - 7 * 2^66 + 1 elements.
// No branch and no address depends on an element or an integer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
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

// root^0 to root^(order - 1) in Montgomery's form.
std::vector<u128> powers_of(u128 root, std::size_t order) {
  const u128 square = radix_squared();
  const u128 step = multiply(root, square);
  std::vector<u128> powers(order);
  powers[0] = multiply(1, square);
  for (std::size_t i = 1; i < order; ++i) powers[i] = multiply(powers[i - 1], step);
  return powers;
}

// A polynomial's values at the powers of a root from its coefficients, in place.
void transform(std::vector<u128>& x, const std::vector<u128>& powers) {
  const std::size_t order = x.size();
  for (std::size_t i = 0, reversed = 0; i < order; ++i) {
    if (i < reversed) std::swap(x[i], x[reversed]);
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
}

// One verifier's query of its share of a proof.
class Query {
 public:
  explicit Query(const QueryArgs& args)
      : args_(args),
        square_(radix_squared()),
        point_(multiply(element(args.point), square_)),
        powers_(powers_of(element(args.root), args.order)) {
    // f(r) = sum u_k f(w^k) with u_k = sum over j of (r / w^k)^j / P.
    u128 value = 1;
    for (std::size_t n = 1; n < args.order; n *= 2) {
      value = (value >> 1) + ((kModulus >> 1) + 1) * (value & 1);  // half of it modulo p
    }
    weights_.resize(args.order);
    for (u128& weight : weights_) {
      weight = value;
      value = multiply(value, point_);
    }
    std::vector<u128> back(args.order);  // the powers of 1 / w
    for (std::size_t k = 0; k < args.order; ++k) {
      back[k] = powers_[(args.order - k) % args.order];
    }
    transform(weights_, back);
    for (std::size_t k = 0; k < args.num_rows; ++k) inner_ = add(inner_, weights_[1 + k]);
    // Integers are taken as unsigned, 2^63 more, which is subtracted at the end.
    inner_ = multiply(inner_, multiply(u128{1} << 63, square_));
    for (std::size_t part = 0; part < args.parts.size(); ++part) {
      scales_.push_back(multiply(element(args.scales + 2 * part), square_));
    }
  }

  // The wire's polynomial at the point.
  u128 wire(std::size_t column) const {
    u128 total = product(weights_[0], element(args_.proof + 2 * column));
    for (std::size_t part = 0; part < args_.parts.size(); ++part) {
      total = add(total, multiply(weighted_sum(args_.parts[part] + column), scales_[part]));
    }
    for (std::size_t k = 0; k < args_.num_tail; ++k) {
      const u64* value = args_.tail + 2 * (k * args_.num_wires + column);
      total = add(total, product(weights_[1 + args_.num_rows + k], element(value)));
    }
    return total;
  }

  u128 at_point() const {
    u128 total = 0;
    for (std::size_t i = args_.num_coefficients; i-- > 0;) {
      total = add(multiply(total, point_), coefficient(i));
    }
    return total;
  }

  // At the powers of the root: modulo x^P - 1 the coefficients fold together.
  std::vector<u128> values() const {
    std::vector<u128> folded(args_.order);
    for (std::size_t i = 0; i < args_.num_coefficients; ++i) {
      u128& sum = folded[i % args_.order];
      sum = add(sum, coefficient(i));
    }
    transform(folded, powers_);
    return folded;
  }

 private:
  u128 coefficient(std::size_t i) const { return element(args_.proof + 2 * (args_.num_wires + i)); }

  u128 product(u128 a, u128 b) const { return multiply(multiply(a, square_), b); }

  // The weights times a column of integers.
  u128 weighted_sum(const std::int64_t* column) const {
    u128 low = 0, middle = 0, high = 0;
    for (std::size_t k = 0; k < args_.num_rows; ++k) {
      const u64 value = static_cast<u64>(column[k * args_.num_wires]) ^ (u64{1} << 63);
      const u128 x = u128{static_cast<u64>(weights_[1 + k])} * value;
      const u128 y = u128{static_cast<u64>(weights_[1 + k] >> 64)} * value;
      low += static_cast<u64>(x);
      middle += (x >> 64) + static_cast<u64>(y);
      high += y >> 64;
    }
    // low + 2^64 middle + 2^128 high, where `high` is below K 2^64 and the others are below 2^127.
    const u128 upper = high + (middle >> 64);
    const u128 sum = low + (middle << 64);
    const u64 carry = static_cast<u64>(sum < low);
    const u128 whole = add(reduced(sum, 0), multiply(upper + carry, square_));
    return subtract(whole, inner_);
  }

  const QueryArgs& args_;
  const u128 square_;
  const u128 point_;
  const std::vector<u128> powers_;  // of the root
  std::vector<u128> weights_;
  std::vector<u128> scales_;
  u128 inner_ = 0;
};

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

void query_proof(const QueryArgs& args) {
  const Query query(args);
  for (std::size_t wire = 0; wire < args.num_wires; ++wire) {
    store_element(query.wire(wire), args.opened + 2 * wire);
  }
  store_element(query.at_point(), args.opened + 2 * args.num_wires);
  const std::vector<u128> values = query.values();
  for (std::size_t k = 0; k < args.order; ++k) store_element(values[k], args.values + 2 * k);
}

void field_transform(const TransformArgs& args) {
  std::vector<u128> x(args.order);
  for (std::size_t i = 0; i < args.order; ++i) x[i] = element(args.values + 2 * i);
  transform(x, powers_of(element(args.root), args.order));
  for (std::size_t i = 0; i < args.order; ++i) store_element(x[i], args.out + 2 * i);
}

}  // namespace fsl
