// Answers to retrievals by one bit a row: a leaf's state gives the bits of 128 rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "authenticate.h"
#include "path.h"
#include "tree_walk.h"

namespace fsl {
namespace {

inline constexpr std::size_t kBlockRows = 64;  // of one word of bits

// XORs the rows whose bit is set into `out`: n registers of each of `count` <= 64 rows.
template <class V, int n>
inline void xor_by_bits(const std::uint8_t* rows, std::size_t stride, std::uint64_t bits,
                        std::size_t count, std::uint8_t* out) {
  using R = typename V::R;
  R sum[n];
  FSL_UNROLL
  for (int j = 0; j < n; ++j) sum[j] = V::load(out + j * sizeof(R));
  for (std::size_t i = 0; i < count; ++i, bits >>= 1) {
    const R chosen = V::splat(std::uint64_t{0} - (bits & 1));
    FSL_UNROLL
    for (int j = 0; j < n; ++j) {
      sum[j] = V::xor_and(sum[j], V::load(rows + i * stride + j * sizeof(R)), chosen);
    }
  }
  FSL_UNROLL
  for (int j = 0; j < n; ++j) V::store(out + j * sizeof(R), sum[j]);
}

// The same for a word of each row.
template <class Word>
inline void xor_words_by_bits(const std::uint8_t* rows, std::size_t stride, std::uint64_t bits,
                              std::size_t count, std::uint8_t* out) {
  Word sum;
  std::memcpy(&sum, out, sizeof sum);
  for (std::size_t i = 0; i < count; ++i, bits >>= 1) {
    Word word;
    std::memcpy(&word, rows + i * stride, sizeof word);
    sum ^= static_cast<Word>(word & (std::uint64_t{0} - (bits & 1)));
  }
  std::memcpy(out, &sum, sizeof sum);
}

// Whole rows: as many registers as they fill, then words.
template <class V>
void xor_block(const std::uint8_t* rows, std::size_t stride, std::uint64_t bits, std::size_t count,
               std::uint8_t* out) {
  std::size_t at = 0;
  const auto registers = [&]<int n>() FSL_INLINE_LAMBDA {
    constexpr std::size_t bytes = n * sizeof(typename V::R);
    for (; at + bytes <= stride; at += bytes) {
      xor_by_bits<V, n>(rows + at, stride, bits, count, out + at);
    }
  };
  const auto words = [&]<class Word>(Word) FSL_INLINE_LAMBDA {
    for (; at + sizeof(Word) <= stride; at += sizeof(Word)) {
      xor_words_by_bits<Word>(rows + at, stride, bits, count, out + at);
    }
  };
  registers.template operator()<4>();
  registers.template operator()<2>();
  registers.template operator()<1>();
  words(std::uint64_t{});
  words(std::uint32_t{});
  words(std::uint8_t{});
}

// The bits of all rows: the hash of a leaf's seed, and the tree's word where its control bit is
// set.
template <class V>
class LeafBits {
 public:
  using R = typename V::R;

  LeafBits(const BitAnswerArgs& args, std::size_t num_leaves)
      : args_(args), num_leaves_(num_leaves), key_(V::make_key(*args.key)) {}

  static void take(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
                   std::size_t count) {
    const LeafBits& self = *static_cast<LeafBits*>(context);
    alignas(64) std::uint8_t bits[16 * (kChunkLeaves + V::kLanes)];
    self.make_bits(self.args_.words + 16 * tree, states, count, bits);
    std::memcpy(self.args_.bits + 16 * (tree * self.num_leaves_ + first), bits, 16 * count);
  }

 private:
  void make_bits(const std::uint8_t* word, const std::uint8_t* states, std::size_t count,
                 std::uint8_t* bits) const {
    for (std::size_t leaf = 0; leaf < count; leaf += V::kLanes) {
      R block[1];
      hash_seeds<V>(key_, states + 16 * leaf, block);
      V::store(bits + 16 * leaf, block[0]);
    }
    std::uint64_t words[2], own[2];
    std::memcpy(words, word, sizeof words);
    for (std::size_t leaf = 0; leaf < count; ++leaf) {
      const std::uint64_t chosen = control_mask(states + 16 * leaf);
      std::memcpy(own, bits + 16 * leaf, sizeof own);
      for (int i = 0; i < 2; ++i) own[i] ^= words[i] & chosen;
      std::memcpy(bits + 16 * leaf, own, sizeof own);
    }
  }

  const BitAnswerArgs args_;
  const std::size_t num_leaves_;
  const typename V::Key key_;
};

template <class V>
void leaf_bits(const Trees& trees, const Partition& partition, std::size_t begin, std::size_t end,
               const BitAnswerArgs& args, void* memory) {
  Arena arena(memory);
  LeafBits<V> bits(args, trees.num_leaves);
  walk<V>(trees, partition, begin, end, {LeafBits<V>::take, nullptr, &bits}, arena);
}

// Rows of a table for the trees [tree, last) that see it: the blocks of the leaves [leaf, end).
template <class V>
void add_table_rows(const BitAnswerArgs& args, std::size_t tree, std::size_t last,
                    std::size_t num_leaves, std::size_t leaf, std::size_t end) {
  const std::size_t stride = args.row_bytes;
  const std::size_t table = args.shared_table ? 0 : tree * args.num_rows;
  for (std::size_t row = leaf * kBitRows; row < end * kBitRows; row += kBlockRows) {
    if (row >= args.num_rows) return;
    const std::size_t left = args.num_rows - row, count = left < kBlockRows ? left : kBlockRows;
    const std::uint8_t* const rows = args.table + (table + row) * stride;
    // With more trees than one, the next rows come from memory while these are used.
    const std::size_t lines = last - tree > 1 ? stride / (last - tree) + 1 : 0;
    const std::uint8_t* ahead = rows + kBlockRows * stride;
    for (std::size_t own = tree; own < last; ++own) {
      for (std::size_t i = 0; i < lines; ++i, ahead += 64) __builtin_prefetch(ahead);
      std::uint64_t bits;
      std::memcpy(&bits, args.bits + 16 * own * num_leaves + row / 8, sizeof bits);
      xor_block<V>(rows, stride, bits, count, args.out + (own - args.first_tree) * stride);
    }
  }
}

template <class V>
void rows_by_bits(const BitAnswerArgs& args, std::size_t num_trees, std::size_t num_leaves,
                  std::size_t begin, std::size_t end) {
  if (args.shared_table) return add_table_rows<V>(args, 0, num_trees, num_leaves, begin, end);
  while (begin < end) {
    const std::size_t tree = begin / num_leaves, first = tree * num_leaves;
    const std::size_t last = end - first < num_leaves ? end - first : num_leaves;
    add_table_rows<V>(args, tree, tree + 1, num_leaves, begin - first, last);
    begin = first + last;
  }
}

}  // namespace
}  // namespace fsl
