// Kernels of proofs: lifted shares summed over leaves, and sums of squares of polynomials modulo
// p = 2^128 - 7 * 2^66 + 1. Sizes and ranges have been checked by the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aes_key.h"

namespace fsl {

// One party's leaves of T trees: `states [T, N, 16]`, `hints [T, payload]`.
struct LeafArgs {
  const KeySchedule* key;
  const std::uint8_t* states;
  std::size_t num_trees;
  std::size_t num_leaves;  // below 2^30
  const std::uint8_t* hints;
  std::size_t payload;
  unsigned party;
};

// Lifted shares of `width` bytes, 2, 3, 4 or 6, summed over the leaves of each tree: `low` and
// `high [T, payload / width]`; a sum is low + 2^32 high, and high is 0 for widths up to 4.
void leaf_sums(const LeafArgs& args, unsigned width, std::int64_t* low, std::int64_t* high,
               unsigned num_threads);

// Lifted shares of 7 bytes: `carried [N, payload / 7]` over all trees, `sums [T, payload / 7, 2]`
// over the leaves of each tree, low and high 32 bits apart.
void carry_sums(const LeafArgs& args, std::int64_t* carried, std::int64_t* sums);

// Elements of the field as two words, the lower first.
struct SquareArgs {
  const std::uint64_t* values;  // [P, L, 2]: of L polynomials at the powers of root^2
  std::size_t order;            // P, a power of two
  std::size_t num_wires;        // L
  std::uint64_t root[2];        // of order 2 P
  std::uint64_t* out;           // [2 P, 2]: the sum of their squares at the powers of root
};
void square_sums(const SquareArgs& args, unsigned num_threads);

// What one verifier opens of its share of a proof at a point, see `portable.proofs`. Wires go
// through the seeds at root^0, and through the rows of all parts, each part times its scale, and of
// the tail behind them at root^1 and so on.
struct QueryArgs {
  const std::uint64_t* proof;              // [L + C, 2]: a seed a wire, then coefficients
  std::size_t num_wires;                   // L
  std::size_t num_coefficients;            // C
  std::size_t order;                       // P, a power of two
  std::uint64_t root[2];                   // of order P
  std::uint64_t point[2];                  // public by now
  std::vector<const std::int64_t*> parts;  // [K, L] each, K + t below P
  std::size_t num_rows;                    // K
  const std::uint64_t* scales;             // [parts, 2]
  const std::uint64_t* tail;               // [t, L, 2]
  std::size_t num_tail;                    // t
  std::uint64_t* opened;  // [L + 1, 2]: wires and the coefficients' polynomial there
  std::uint64_t* values;  // [P, 2]: the polynomial's values at the powers of root
};
void query_proof(const QueryArgs& args);

// out [n]: a polynomial's values at the powers of a root of order n from its coefficients.
struct TransformArgs {
  const std::uint64_t* values;  // [n, 2]
  std::size_t order;            // n, a power of two
  std::uint64_t root[2];
  std::uint64_t* out;  // [n, 2]
};
void field_transform(const TransformArgs& args);

}  // namespace fsl
