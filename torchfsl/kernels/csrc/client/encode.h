// A client's update: what the caller gave, quantised and checked; ring values; 16-bit floats.
#pragma once

#include "plan.h"
#include "support.h"

namespace fsl::client {

// One segment's part: rows, increasing, of segments with trees; values [rows or m, tau].
struct Part {
  Vector<i64> rows, values;
};

// The rows asked for, by retrieved segment in plan order; throws a Failure (TFSL_ARGUMENT).
std::vector<Vector<i64>> checked_rows(const Plan& plan, const tfsl_rows* wanted, std::size_t num);

// The parts by segment, quantised as torchfsl.submodel.quantise does, and checked as in
// check_update; throws a Failure (TFSL_ARGUMENT).
std::vector<Part> checked_update(const Plan& plan, const tfsl_part* parts, std::size_t num,
                                 Random& random);
void check_weight(const Plan& plan, u64 weight);
std::vector<Part> no_update(const Plan& plan);

// The sum of squares, or more than `most` where it is above that.
u128 norm_squared(const Vector<i64>& values, u128 most);

// --- ring values: `width` little-endian bytes ---
inline void store_ring(i64 value, unsigned width, u8* out) {
  const u64 words[2] = {static_cast<u64>(value), static_cast<u64>(value >> 63)};
  std::memcpy(out, words, width);
}
inline i64 load_signed(const u8* from, unsigned width) {  // up to 8 bytes
  u64 word = 0;
  std::memcpy(&word, from, width);
  const unsigned shift = 64 - 8 * width;
  return static_cast<i64>(word << shift) >> shift;
}
Bytes ring_of(const Vector<i64>& values, unsigned width);
// values -= others, value by value.
void subtract_ring(u8* values, const u8* others, std::size_t count, unsigned width);

// --- what servers send, little-endian, in the tensor's own dtype: false if a value is not finite
// ---
bool widen(View sent, u32 download, u32 dtype, Bytes& out);

}  // namespace fsl::client
