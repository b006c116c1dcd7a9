// Matrix products modulo p = 2^32 - 5; time and addresses depend on the shapes alone.
//
// A sum of C <= 2^24 products is kept as `full`, modulo 2^64, and as `high`, the exact sum of the
// products' high halves, below 2^56. The sum of the low halves is then full - 2^32 high, also below
// 2^56, and 2^32 = 5 mod p turns both into one number below 2^60.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "field_lanes.h"
#include "path.h"

namespace fsl {
namespace {

// The last column where their number is odd, or fewer than fill a register are left.
struct OneNumber : OneWord {
  static constexpr std::size_t kNumbers = 1;
  static R load(const std::uint32_t* from) { return from[0]; }
  static void store(std::uint32_t* to, R x) { to[0] = static_cast<std::uint32_t>(x); }
};

// The sum behind `full` and `high`, in [0, p).
template <class L>
FSL_INLINE typename L::R reduced(typename L::R full, typename L::R high) {
  using R = typename L::R;
  R x = L::add(L::subtract(full, L::raise(high)), L::times5(high));  // below 2^60
  x = L::add(L::times5(L::high(x)), L::low(x));                      // below 2^33
  x = L::add(L::times5(L::high(x)), L::low(x));                      // below 2^32
  const R carry = L::high(L::add(x, L::splat(5)));                   // 1 from p on, else 0
  return L::low(L::add(x, L::times5(carry)));
}

// `rows` rows of `L::kNumbers` columns.
template <class L, int rows>
FSL_INLINE void field_block(const FieldArgs& args, std::size_t row, std::size_t column) {
  using R = typename L::R;
  R full[2][rows], high[2][rows];
  FSL_UNROLL
  for (int r = 0; r < rows; ++r) {
    full[0][r] = full[1][r] = high[0][r] = high[1][r] = L::splat(0);
  }
  const std::uint32_t* left = args.left + row * args.num_terms;
  const std::uint32_t* right = args.right + column;
  for (std::size_t c = 0; c < args.num_terms; ++c, right += args.num_columns) {
    const R even = L::load(right);
    const R odd = L::high(even);
    FSL_UNROLL
    for (int r = 0; r < rows; ++r) {
      const R factor = L::splat(left[r * args.num_terms + c]);
      const R product[2] = {L::multiply(factor, even), L::multiply(factor, odd)};
      full[0][r] = L::add(full[0][r], product[0]);
      full[1][r] = L::add(full[1][r], product[1]);
      high[0][r] = L::add(high[0][r], L::high(product[0]));
      high[1][r] = L::add(high[1][r], L::high(product[1]));
    }
  }
  FSL_UNROLL
  for (int r = 0; r < rows; ++r) {
    const R even = reduced<L>(full[0][r], high[0][r]);
    const R odd = reduced<L>(full[1][r], high[1][r]);
    L::store(args.out + (row + r) * args.num_columns + column, L::add(even, L::raise(odd)));
  }
}

template <class L, int rows>
void field_rows(const FieldArgs& args, std::size_t row, std::size_t begin, std::size_t end) {
  std::size_t column = begin;
  for (; column + L::kNumbers <= end; column += L::kNumbers)
    field_block<L, rows>(args, row, column);
  for (; column < end; ++column) field_block<OneNumber, rows>(args, row, column);
}

// Columns [begin, end) of the product.
template <class L>
void field_multiply(const FieldArgs& args, std::size_t begin, std::size_t end) {
  std::size_t row = 0;
  for (; row + L::kRows <= args.num_rows; row += L::kRows) {
    field_rows<L, L::kRows>(args, row, begin, end);
  }
  for (; row < args.num_rows; ++row) field_rows<L, 1>(args, row, begin, end);
}

}  // namespace
}  // namespace fsl
