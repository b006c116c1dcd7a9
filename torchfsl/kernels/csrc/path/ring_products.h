// Matrix products modulo 2^32 or 2^64; time and addresses depend on the shapes alone.
//
// Columns are taken in panels of two registers. Up to `kPanelTerms` rows of a panel are copied to
// where they lie one behind the other and stay in the first-level cache while all rows of the left
// factor meet them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "path.h"

namespace fsl {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t kRegisterBytes = 32;
#else
constexpr std::size_t kRegisterBytes = 16;
#endif
constexpr std::size_t kPanelTerms = 256;

// The compiler's own vectors: they multiply modulo 2^32 and 2^64 on every architecture.
template <class T>
struct RingPanel {
  typedef T R __attribute__((vector_size(kRegisterBytes)));
  static constexpr std::size_t kColumns = 2 * kRegisterBytes / sizeof(T);
  static constexpr int kRows = 4;

  R words[kPanelTerms][2];
};

// `terms` rows of `width` columns; the other columns of the panel are 0.
template <class T>
FSL_INLINE void fill_panel(RingPanel<T>& panel, const T* from, std::size_t distance,
                           std::size_t terms, std::size_t width) {
  constexpr std::size_t kColumns = RingPanel<T>::kColumns;
  for (std::size_t c = 0; c < terms; ++c, from += distance) {
    if (width == kColumns) {
      __builtin_memcpy(panel.words[c], from, kColumns * sizeof(T));
      continue;
    }
    T row[kColumns];
    for (std::size_t i = 0; i < kColumns; ++i) row[i] = i < width ? from[i] : 0;
    __builtin_memcpy(panel.words[c], row, sizeof row);
  }
}

// Adds `rows` rows of a panel's products to `out`, which holds `width` columns of it.
template <class T, int rows>
FSL_INLINE void ring_block(const RingArgs<T>& args, const RingPanel<T>& panel, const T* left,
                           std::size_t terms, T* out, std::size_t width) {
  using R = typename RingPanel<T>::R;
  constexpr std::size_t kColumns = RingPanel<T>::kColumns;
  R sum[rows][2] = {};
  for (std::size_t c = 0; c < terms; ++c) {
    const R first = panel.words[c][0], second = panel.words[c][1];
    FSL_UNROLL
    for (int r = 0; r < rows; ++r) {
      const T factor = left[r * args.num_terms + c];
      sum[r][0] += factor * first;
      sum[r][1] += factor * second;
    }
  }
  FSL_UNROLL
  for (int r = 0; r < rows; ++r) {
    T row[kColumns];
    __builtin_memcpy(row, sum[r], sizeof row);
    T* to = out + r * args.num_columns;
    for (std::size_t i = 0; i < (width == kColumns ? kColumns : width); ++i) to[i] += row[i];
  }
}

// Adds columns [begin, end) of the product to those of `args.out`.
template <class T>
void ring_multiply(const RingArgs<T>& args, std::size_t begin, std::size_t end) {
  constexpr std::size_t kColumns = RingPanel<T>::kColumns, kRows = RingPanel<T>::kRows;
  RingPanel<T> panel;
  for (std::size_t column = begin; column < end; column += kColumns) {
    const std::size_t width = end - column < kColumns ? end - column : kColumns;
    for (std::size_t term = 0; term < args.num_terms; term += kPanelTerms) {
      const std::size_t left_over = args.num_terms - term;
      const std::size_t terms = left_over < kPanelTerms ? left_over : kPanelTerms;
      fill_panel(panel, args.right + term * args.num_columns + column, args.num_columns, terms,
                 width);
      const T* left = args.left + term;
      T* out = args.out + column;
      std::size_t row = 0;
      for (; row + kRows <= args.num_rows; row += kRows) {
        ring_block<T, kRows>(args, panel, left + row * args.num_terms, terms,
                             out + row * args.num_columns, width);
      }
      for (; row < args.num_rows; ++row) {
        ring_block<T, 1>(args, panel, left + row * args.num_terms, terms,
                         out + row * args.num_columns, width);
      }
    }
  }
}

}  // namespace
}  // namespace fsl
