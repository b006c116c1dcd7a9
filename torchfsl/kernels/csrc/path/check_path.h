// What a CPU path offers for the two checks, and the structs that describe their work; see path.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aes_key.h"

namespace fsl {

struct Partition;
struct Trees;

inline constexpr std::size_t kHashBytes = 32;
inline constexpr std::size_t kLowLeaves = 1024;
inline constexpr std::size_t kLowStride = kLowLeaves * 16 + 64;  // slack for whole registers

// Schedules of the three permutations of the leaf hash.
struct LeafKeys {
  KeySchedule schedule[3];
};

struct CheckGenArgs {
  const LeafKeys* keys;
  const std::uint8_t* leaf[2];
  const std::uint64_t* alpha;
  std::size_t num_trees;
  std::uint64_t first_tree;
  std::uint8_t* out;  // [T, 32]
};

struct VerifyArgs {
  const LeafKeys* keys;
  const KeySchedule* key_fold;
  const std::uint8_t* check_words;  // [T, 32]
  std::uint64_t first_tree;
  const std::uint8_t* delta_trees;  // [T, 16]
  const std::uint8_t* delta_low;    // [2, kLowStride]: half 0 of all leaves, then half 1
  const std::uint8_t* delta_high;   // [ceil(N / 1024), 16]
  std::uint8_t* fold;               // 16 bytes, XORed into
};

// Row `i` of `rows`, of `row_bytes` bytes, to `out [i, 16]`.
struct RowDigestArgs {
  const std::uint32_t* state;  // [8], after the block of the key
  const std::uint8_t* rows;
  std::size_t row_bytes;
  std::uint8_t* out;
};

struct AuthenticateArgs {
  const KeySchedule* key;
  const std::uint8_t* table;    // [T or 1, N, row_bytes]
  const std::uint8_t* digests;  // [T or 1, N, 16], of the rows of the table
  bool shared_table;
  std::size_t row_bytes;
  // Rows of the trees from `first_tree` on, XORed into.
  std::uint8_t* answers;  // [..., row_bytes]
  std::uint8_t* tags;     // [..., 16]
  std::size_t first_tree;
};

struct TagsArgs {
  const KeySchedule* key;
  const std::uint8_t* leaf[2];
  const std::uint8_t* digests;  // [T, 16], of the rows of the answers
  std::size_t num_trees;
  std::uint8_t* out;  // [T, 16]
};

struct CheckPath {
  void (*check_gen)(const CheckGenArgs&);
  void (*verify)(const Trees&, const Partition&, std::size_t begin, std::size_t end,
                 const VerifyArgs&, void* arena);
  // At index 1 with the carry-less multiplication of the path, which its CPUs may lack.
  void (*authenticate[2])(const Trees&, const Partition&, std::size_t begin, std::size_t end,
                          const AuthenticateArgs&, void* arena);
  void (*tags[2])(const TagsArgs&);
  // Rows [begin, end).
  void (*row_digests)(const RowDigestArgs&, std::size_t begin, std::size_t end);
};

}  // namespace fsl
