// The kernels of the two checks as the binding calls them; see kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "check_path.h"
#include "path.h"

namespace fsl {

// The keys AES_key(i), i = 0, 1, 2, of the leaf hash under the 16 bytes at `key`.
LeafKeys expand_leaf_keys(const std::uint8_t* key);

void check_gen(const CheckGenArgs& args, unsigned num_threads = 1);

// `delta_low [1024, 2, 16]`; `fold`, 16 bytes, is overwritten. `args.delta_low` and `args.fold` are
// not used.
void verify(const Trees& trees, const VerifyArgs& args, const std::uint8_t* delta_low,
            std::uint8_t* fold, unsigned num_threads);

// Several clients' retrievals from one table, part by part of it, so that it passes through the
// cache once: trees of all have one shape, and `args` one table. `answers [T, row_bytes]` and
// `tags [T, 16]` are overwritten; those of `args` are not used.
struct AuthenticateJob {
  Trees trees;
  AuthenticateArgs args;
  std::uint8_t* answers;
  std::uint8_t* tags;
};
void authenticate(const std::vector<AuthenticateJob>& jobs, unsigned num_threads);
inline void authenticate(const Trees& trees, const AuthenticateArgs& args, std::uint8_t* answers,
                         std::uint8_t* tags, unsigned num_threads) {
  authenticate({{trees, args, answers, tags}}, num_threads);
}

void tags(const TagsArgs& args, unsigned num_threads = 1);

// Digests of `num_rows` rows under the 16 bytes at `key`; `args.state` is not used.
void row_digests(const std::uint8_t* key, std::size_t num_rows, RowDigestArgs args,
                 unsigned num_threads = 1);

}  // namespace fsl
