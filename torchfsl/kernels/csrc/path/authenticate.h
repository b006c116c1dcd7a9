// Authenticated retrieval: answers with one-time tags that both servers hold in shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "check_path.h"
#include "conversion.h"
#include "leaf_kernels.h"
#include "path.h"
#include "ring_lanes.h"
#include "tree_walk.h"

namespace fsl {
namespace {

// Answers and tags in one pass over rows and leaves: the mask blocks y of a register of leaves meet
// the row words of the same leaves as soon as they are made.
template <class V, template <class> class Products>
class Authentication {
 public:
  using R = typename V::R;

  Authentication(const AuthenticateArgs& args, std::size_t num_leaves, const NextRows<V>& next,
                 Arena& arena)
      : args_(args),
        num_leaves_(num_leaves),
        next_(next),
        conversion_(*args.key, args.row_bytes, arena),
        pieces_{arena.take<std::uint8_t>(kPiecesBytes), arena.take<std::uint8_t>(kPiecesBytes)} {
    std::memset(pieces_[0], 0, kPiecesBytes);
    std::memset(pieces_[1], 0, kPiecesBytes);
  }

  static void take(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
                   std::size_t count) {
    const Authentication& self = *static_cast<Authentication*>(context);
    const AuthenticateArgs& args = self.args_;
    const std::size_t row = (args.shared_table ? 0 : tree) * self.num_leaves_ + first;
    const std::uint8_t* const rows = args.table + row * args.row_bytes;
    const std::size_t at = tree - args.first_tree, blocks = self.conversion_.blocks;
    std::uint8_t* const answer = args.answers + at * args.row_bytes;
    const std::uint8_t* const next =
        rows + self.next_.after(tree, first, count) * static_cast<std::ptrdiff_t>(args.row_bytes);
    self.conversion_.prepare(states, count);
    Products<V> products;
    for_each_column<V>(blocks, [&]<int leaves>(std::size_t block) FSL_INLINE_LAMBDA {
      if (!self.template is_whole<leaves>(block)) {
        self.template copy_pieces<leaves>(rows, block, count);
      }
      self.template add_column<leaves>(rows, block, count, answer, products, next);
    });
    products.reduce_into(args.tags + at * 16);
  }

 private:
  static constexpr std::size_t kPiecesBytes = (kChunkLeaves + 1) * sizeof(R);

  // Whether a column's registers lie within the rows.
  template <int leaves>
  bool is_whole(std::size_t block) const {
    return leaves == 1 && args_.row_bytes >= block * 16 + sizeof(R);
  }

  // Copies a column that does not: its pieces one after another, zeros where a row ends and behind
  // the last piece. At most two columns are copied, one of several leaves and the last one.
  template <int leaves>
  FSL_INLINE void copy_pieces(const std::uint8_t* rows, std::size_t block,
                              std::size_t count) const {
    using Bytes = Lanes<V, 1>;
    constexpr std::size_t kPiece = sizeof(R) / leaves;
    const std::size_t stride = args_.row_bytes, left = stride - block * 16;
    std::uint8_t* const pieces = pieces_of<leaves>();
    const std::uint8_t* const from = rows + block * 16;
    for_run<V, 1>(left < kPiece ? left : kPiece, [=]<int n>(std::size_t at) FSL_INLINE_LAMBDA {
      for (std::size_t i = 0; i < count; ++i) {
        const auto bytes = Bytes::template load<n>(from + i * stride + at);
        Bytes::template store<n>(pieces + i * kPiece + at, bytes);
      }
    });
    V::store(pieces + count * kPiece, V::zero());
  }
  template <int leaves>
  std::uint8_t* pieces_of() const {
    return pieces_[leaves == V::kLanes];
  }

  // One column of words of `count` rows: to the sum of products, and chosen by control bits to the
  // answer. The first column brings the rows at `next` into the cache.
  template <int leaves>
  FSL_INLINE void add_column(const std::uint8_t* rows, std::size_t block, std::size_t count,
                             std::uint8_t* answer, Products<V>& products,
                             const std::uint8_t* next) const {
    constexpr std::size_t kPiece = sizeof(R) / leaves;
    const std::size_t stride = args_.row_bytes, left = stride - block * 16;
    const bool whole = is_whole<leaves>(block);
    const std::uint8_t* const words = whole ? rows + block * 16 : pieces_of<leaves>();
    const std::size_t step = whole ? stride : kPiece;
    const std::uint8_t* const masks = conversion_.masks;
    const std::size_t ahead = block == 0 ? leaves * stride : 0;
    Products<V> total = products;
    R sum = V::zero();
    const auto use = [&](std::size_t leaf, R mask_block) FSL_INLINE_LAMBDA {
      for (std::size_t at = 0; at < ahead; at += 64) {
        __builtin_prefetch(next + leaf * stride + at);
      }
      const R word = V::load(words + leaf * step);
      total.add(mask_block, word);
      sum = V::xor_and(sum, word, V::template spread<leaves>(masks + leaf * 16));
    };
    convert_column<V, leaves>(conversion_, block, count, use, use);
    products = total;
    xor_pieces<leaves>(sum, answer + block * 16, left < kPiece ? left : kPiece);
  }

  // XORs the first `num_bytes` bytes of the register's pieces into those at `to`.
  template <int leaves>
  FSL_INLINE static void xor_pieces(R sum, std::uint8_t* to, std::size_t num_bytes) {
    using Bytes = Lanes<V, 1>;
    constexpr std::size_t kPiece = sizeof(R) / leaves;
    alignas(64) std::uint8_t pieces[2 * sizeof(R)] = {};  // read in whole registers
    V::store(pieces, sum);
    for (std::size_t i = kPiece; i < sizeof(R); ++i) pieces[i % kPiece] ^= pieces[i];
    for_run<V, 1>(num_bytes, [=, &pieces]<int n>(std::size_t at) FSL_INLINE_LAMBDA {
      const auto old = Bytes::template load<n>(to + at);
      const auto piece = Bytes::template load<n>(pieces + at);
      Bytes::template store<n>(to + at, V::bit_xor(old, piece));
    });
  }

  const AuthenticateArgs args_;
  const std::size_t num_leaves_;
  const NextRows<V> next_;
  const Conversion<V> conversion_;
  std::uint8_t* const pieces_[2];
};

template <class V, template <class> class Products>
void authenticate(const Trees& trees, const Partition& partition, std::size_t begin,
                  std::size_t end, const AuthenticateArgs& args, void* memory) {
  Arena arena(memory);
  Authentication<V, Products> authentication(args, trees.num_leaves,
                                             {trees, partition, args.shared_table}, arena);
  walk<V>(trees, partition, begin, end,
          {Authentication<V, Products>::take, nullptr, &authentication}, arena);
}

// The client's side: both parties' mask blocks are known, so that a tag is one inner product.
template <class V, template <class> class Products>
void tags(const TagsArgs& args, void* memory) {
  using R = typename V::R;
  Arena arena(memory);
  const Conversion<V> conversion(*args.key, args.row_bytes, arena);
  const std::size_t leaf_bytes = conversion.leaf_bytes();
  std::uint8_t* const states = arena.take<std::uint8_t>((kChunkLeaves + V::kLanes) * 16);
  std::uint8_t* const conv[2] = {conversion.take_output(arena), conversion.take_output(arena)};
  std::uint8_t* const words = arena.take<std::uint8_t>(leaf_bytes + sizeof(R));
  std::memset(words, 0, leaf_bytes + sizeof(R));
  for (std::size_t first = 0; first < args.num_trees; first += conversion.chunk) {
    const std::size_t left = args.num_trees - first;
    const std::size_t count = left < conversion.chunk ? left : conversion.chunk;
    for (int b = 0; b < 2; ++b) {
      std::memcpy(states, args.leaf[b] + first * 16, count * 16);
      conversion.prepare(states, count);
      convert_chunk<V>(conversion, count, conv[b]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(words, args.rows + (first + i) * args.row_bytes, args.row_bytes);
      Products<V> products;
      for (std::size_t at = 0; at < leaf_bytes; at += sizeof(R)) {
        const std::size_t from = i * leaf_bytes + at;
        const R mask = V::bit_xor(V::load(conv[0] + from), V::load(conv[1] + from));
        products.add(mask, V::load(words + at));
      }
      std::uint8_t* const tag = args.out + (first + i) * 16;
      std::memset(tag, 0, 16);
      products.reduce_into(tag);
    }
  }
}

}  // namespace
}  // namespace fsl
