// Authenticated retrieval: answers with one-time tags that both servers hold in shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "check_path.h"
#include "fused_steps.h"
#include "leaf_kernels.h"
#include "path.h"
#include "tree_walk.h"

namespace fsl {
namespace {

// H(s) of n registers of states, one a lane.
template <class V, int n>
FSL_INLINE void hash_seeds(const typename V::Key& key, const std::uint8_t* states,
                           typename V::R (&x)[n]) {
  using R = typename V::R;
  R added[n];  // what is added at the end: inputs, or last keys
  FSL_UNROLL
  for (int i = 0; i < n; ++i) {
    const R state = V::load(states + i * sizeof(R));
    if constexpr (hashes_whitened<V>) {
      const R low = V::low_words(state, state), high = V::high_words(state, state);
      x[i] = whiten<V>(key, V::sigma_of_seed_from(low, high));
      added[i] = last_key<V>(key, x[i]);
    } else {
      x[i] = added[i] = V::sigma(V::clear(state, V::lsb()));
    }
  }
  if constexpr (hashes_whitened<V>) {
    hash_whitened<V>(key, x, added);
  } else {
    V::encrypt(key, x);
    FSL_UNROLL
    for (int i = 0; i < n; ++i) x[i] = V::bit_xor(x[i], added[i]);
  }
}

// A register of the first `count` blocks at `from`, zero beyond them.
template <class V>
FSL_INLINE typename V::R load_blocks(const std::uint8_t* from, std::size_t count) {
  alignas(64) std::uint8_t padded[sizeof(typename V::R)] = {};
  std::memcpy(padded, from, 16 * count);
  return V::load(padded);
}

// For a chunk of leaves the answer, and then the sum of secrets times digests.
template <class V, template <class> class Products>
class Authentication {
 public:
  using R = typename V::R;

  Authentication(const AuthenticateArgs& args, std::size_t num_leaves, const RowsAhead& rows)
      : args_(args), num_leaves_(num_leaves), rows_(rows), key_(V::make_key(*args.key)) {}

  static void take(void* context, std::size_t tree, std::size_t first, const std::uint8_t* states,
                   std::size_t count) {
    const Authentication& self = *static_cast<Authentication*>(context);
    const AuthenticateArgs& args = self.args_;
    const std::size_t row = (args.shared_table ? 0 : tree) * self.num_leaves_ + first;
    const std::size_t at = tree - args.first_tree, stride = args.row_bytes;
    const RowsAhead::Next next = self.rows_.next();
    xor_all<V>(args.table + row * stride, stride, states, count, args.answers + at * stride, next);
    self.add_tags(args.digests + 16 * row, states, count, next, args.tags + 16 * at);
  }

 private:
  // Brings the digests of `then` into the cache meanwhile.
  void add_tags(const std::uint8_t* digests, const std::uint8_t* states, std::size_t count,
                RowsAhead::Next then, std::uint8_t* tag) const {
    constexpr std::size_t kLanes = V::kLanes, kLeaves = 8 * kLanes;
    Products<V> products;
    std::size_t leaf = 0;
    for (; leaf + kLeaves <= count; leaf += kLeaves) {
      const std::uint8_t* const own = digests + 16 * leaf;
      for (std::size_t line = 0; then.any && line < 16 * kLeaves; line += 64) {
        __builtin_prefetch(own + 16 * then.leaves + line, 0, 2);
      }
      R secret[8];
      hash_seeds<V>(key_, states + 16 * leaf, secret);
      FSL_UNROLL
      for (int i = 0; i < 8; ++i) products.add(secret[i], V::load(own + i * sizeof(R)));
    }
    for (; leaf < count; leaf += kLanes) {
      const std::size_t left = count - leaf;
      const std::uint8_t* const own = digests + 16 * leaf;
      R secret[1];
      hash_seeds<V>(key_, states + 16 * leaf, secret);
      products.add(secret[0], left < kLanes ? load_blocks<V>(own, left) : V::load(own));
    }
    products.reduce_into(tag);
  }

  const AuthenticateArgs args_;
  const std::size_t num_leaves_;
  const RowsAhead& rows_;
  const typename V::Key key_;
};

template <class V, template <class> class Products>
void authenticate(const Trees& trees, const Partition& partition, std::size_t begin,
                  std::size_t end, const AuthenticateArgs& args, void* memory) {
  Arena arena(memory);
  RowsAhead rows(args.table, args.row_bytes, args.digests);
  Authentication<V, Products> authentication(args, trees.num_leaves, rows);
  walk<V>(trees, partition, begin, end,
          {Authentication<V, Products>::take, nullptr, &authentication, &rows, args.shared_table},
          arena);
}

// The client's side: both parties' secrets are known, so that a tag is one product.
template <class V, template <class> class Products>
void tags(const TagsArgs& args) {
  using R = typename V::R;
  const typename V::Key key = V::make_key(*args.key);
  for (std::size_t tree = 0; tree < args.num_trees; tree += V::kLanes) {
    const std::size_t left = args.num_trees - tree, lanes = V::kLanes;
    const std::size_t count = left < lanes ? left : lanes;
    alignas(64) std::uint8_t secrets[sizeof(R)];
    R sum = V::zero();
    for (const std::uint8_t* const leaves : args.leaf) {
      R state[1], secret[1];
      state[0] = load_blocks<V>(leaves + 16 * tree, count);
      hash_seeds<V>(key, reinterpret_cast<const std::uint8_t*>(state), secret);
      sum = V::bit_xor(sum, secret[0]);
    }
    V::store(secrets, sum);
    for (std::size_t lane = 0; lane < count; ++lane) {
      Products<V> product;
      product.add(load_blocks<V>(secrets + 16 * lane, 1),
                  load_blocks<V>(args.digests + 16 * (tree + lane), 1));
      std::uint8_t* const tag = args.out + 16 * (tree + lane);
      std::memset(tag, 0, 16);
      product.reduce_into(tag);
    }
  }
}

}  // namespace
}  // namespace fsl
