// What a CPU path offers, and the plain structs that describe its work.
//
// A path is compiled with its own instruction set. It therefore holds only templates with internal
// linkage over raw memory: no allocation, no thread, nothing from the standard library that the
// linker could share with code for older CPUs. Callers have checked every size.
//
// Letters as in the Python modules: T trees, d levels, N leaves, P payload bytes a leaf. A state is
// 16 bytes, a seed with the control bit in the lowest bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aes_key.h"
#include "check_path.h"

namespace fsl {

// One party's trees: `roots [T, 16]`, `cw [d, T, 16]`, `cw_right [d, T]`; the latter two with any
// distance between levels, in bytes.
struct Trees {
  const KeySchedule* key;
  const std::uint8_t* roots;
  const std::uint8_t* cw;
  std::size_t cw_stride;
  const std::uint8_t* cw_right;
  std::size_t right_stride;
  std::size_t num_trees;
  std::size_t num_leaves;
  unsigned depth;
};

// How the leaves of all trees are cut into units of work. Either a unit is a group of trees, one a
// lane, or trees are cut at `split_level` and a unit is a group of neighbouring subtrees of one
// tree.
struct Partition {
  std::size_t num_units;
  std::size_t units_per_tree;  // 0 when a unit is a group of trees
  std::size_t trees_per_unit;
  unsigned split_level;
  unsigned interleave;  // registers expanded side by side: 1, 2 or 4
};

struct TreeGenArgs {
  const KeySchedule* key;
  const std::uint8_t* roots[2];
  const std::uint64_t* alpha;
  std::size_t num_trees;
  unsigned depth;
  std::uint8_t* cw;
  std::uint8_t* cw_right;
  std::size_t level_trees;  // trees between a level of the correction words and the next
  std::uint8_t* leaf[2];
};

// One leaf x of each tree. `trees.num_leaves` is not used.
struct TreePathArgs {
  Trees trees;
  const std::uint64_t* x;
  std::uint8_t* states;   // [T, 16]
  std::uint8_t* smaller;  // [T], this party's share of [x < alpha]
};

// The arguments of the trees from `first` on. Static, as each path has its own instructions.
static inline TreePathArgs trees_from(const TreePathArgs& args, std::size_t first) {
  TreePathArgs rest = args;
  rest.trees.roots += 16 * first;
  rest.trees.cw += 16 * first;
  rest.trees.cw_right += first;
  rest.x += first;
  rest.states += 16 * first;
  rest.smaller += first;
  return rest;
}

struct ConvertArgs {
  const KeySchedule* key;
  const std::uint8_t* states;
  std::size_t count;
  std::size_t payload;
  std::uint8_t* out;
};

// AES_key(prefix, first), AES_key(prefix, first + 1), ...: 8 bytes, then a big-endian number.
struct CounterArgs {
  const KeySchedule* key;
  const std::uint8_t* prefix;
  std::uint64_t first;
  std::size_t num_blocks;
  std::uint8_t* out;
};

struct HintArgs {
  const KeySchedule* key;
  const std::uint8_t* leaf[2];
  const std::uint8_t* values;
  const std::uint64_t* slots;
  std::size_t num_trees;
  std::size_t payload;
  unsigned nu;
  unsigned width;
  std::uint8_t* out;
};

struct Stretch {
  const std::uint8_t* from;
  std::size_t num_bytes;
};

struct AccumulateArgs {
  const KeySchedule* key;
  const std::uint8_t* hints;
  std::size_t payload;
  unsigned party;
  unsigned width;
  std::uint8_t* acc;
  // What to bring into the cache meanwhile, in this order, because it is needed next.
  const Stretch* ahead;
  std::size_t num_ahead;
};

// As AccumulateArgs of width 2, 3, 4 or 6, and what the first `lifted` values of each leaf of the
// trees from `first_tree` on are added to as signed integers: low + 2^32 high, `[trees, lifted]`.
struct LiftedArgs {
  AccumulateArgs own;
  std::size_t lifted;
  std::int64_t* low;
  std::int64_t* high;  // untouched for widths up to 4
  std::size_t first_tree;
};

struct AnswerArgs {
  const std::uint8_t* table;
  bool shared_table;
  std::size_t row_bytes;
  std::uint8_t* out;  // rows of the trees from `first_tree` on, XORed into
  std::size_t first_tree;
};

// A leaf's state gives the bits of kBitRows rows: its hash, and `words` [T, 16] where its control
// bit is set.
struct BitAnswerArgs {
  const KeySchedule* key;  // of the hash
  const std::uint8_t* words;
  const std::uint8_t* table;  // [T or 1, num_rows, row_bytes]
  bool shared_table;
  std::size_t num_rows;  // the trees have as many leaves as these need
  std::size_t row_bytes;
  std::uint8_t* bits;  // [T, num_leaves, 16]
  std::uint8_t* out;   // rows of the trees from `first_tree` on, XORed into
  std::size_t first_tree;
};

// out [R, D] = left [R, C] times right [C, D], numbers modulo 2^32 - 5 and below it, C <= 2^24.
struct FieldArgs {
  const std::uint32_t* left;
  const std::uint32_t* right;
  std::size_t num_rows;
  std::size_t num_terms;
  std::size_t num_columns;
  std::uint32_t* out;
};

// out [R, D] = left [R, C] times right [C, D], modulo 2^32 or 2^64 as T is wide.
template <class T>
struct RingArgs {
  const T* left;
  const T* right;
  std::size_t num_rows;
  std::size_t num_terms;
  std::size_t num_columns;
  T* out;
};

// Scratch memory of one thread; large enough for every path.
inline constexpr std::size_t kStageLevels = 9;
inline constexpr std::size_t kStageRegisters = std::size_t{1} << kStageLevels;
inline constexpr std::size_t kChunkLeaves = 64;
inline constexpr std::size_t kChunkBytes = 8192;
inline constexpr std::size_t kBitRows = 128;
// Levels of a tree; one that is expanded has fewer, so that sizes fit into 64 bits.
inline constexpr unsigned kMaxDepth = 56;
inline constexpr unsigned kMaxExpandedDepth = 48;
inline constexpr std::size_t kMaxPayload = std::size_t{1} << 24;

constexpr std::size_t arena_bytes(unsigned depth, std::size_t payload) {
  const std::size_t stages = (depth / kStageLevels + 2) * (kStageRegisters + 32) * 64;
  const std::size_t words = 2 * (kMaxDepth + 4) * 4 * 64;
  const std::size_t tiles = 4 * (4 * kChunkLeaves * 16 + 128);
  const std::size_t chunks = 2 * (kChunkBytes + 8 * (payload + 16) + 256);
  const std::size_t lanes = 5 * (payload + 16) + 192;
  return stages + words + tiles + chunks + lanes + payload + 4096;
}

struct Path {
  const char* name;
  void (*tree_gen)(const TreeGenArgs&);
  void (*tree_path)(const TreePathArgs&);
  Partition (*partition)(std::size_t num_trees, std::size_t num_leaves, unsigned depth,
                         unsigned num_threads);
  // The next five process the units [begin, end).
  void (*tree_eval)(const Trees&, const Partition&, std::size_t begin, std::size_t end,
                    std::uint8_t* out, void* arena);
  void (*accumulate)(const Trees&, const Partition&, std::size_t begin, std::size_t end,
                     const AccumulateArgs&, void* arena);
  void (*accumulate_lifted)(const Trees&, const Partition&, std::size_t begin, std::size_t end,
                            const LiftedArgs&, void* arena);
  void (*answer)(const Trees&, const Partition&, std::size_t begin, std::size_t end,
                 const AnswerArgs&, void* arena);
  void (*leaf_bits)(const Trees&, const Partition&, std::size_t begin, std::size_t end,
                    const BitAnswerArgs&, void* arena);
  // The leaves [begin, end) of all trees together in a table that they share, else those of one
  // tree after the other; needs the bits of all.
  void (*rows_by_bits)(const BitAnswerArgs&, std::size_t num_trees, std::size_t num_leaves,
                       std::size_t begin, std::size_t end);
  void (*convert)(const ConvertArgs&, void* arena);
  void (*hint_gen)(const HintArgs&, void* arena);
  void (*counter_blocks)(const CounterArgs&);
  // Hashes about `num_blocks` blocks of a buffer that stays in the first-level cache.
  void (*hash_blocks)(const KeySchedule&, std::size_t num_blocks, void* arena);
  CheckPath checks;
  // Columns [begin, end) of the product.
  void (*field_multiply)(const FieldArgs&, std::size_t begin, std::size_t end);
  // Columns [begin, end) of the product, added to `args.out`.
  void (*ring_multiply32)(const RingArgs<std::uint32_t>&, std::size_t begin, std::size_t end);
  void (*ring_multiply64)(const RingArgs<std::uint64_t>&, std::size_t begin, std::size_t end);
};

extern const Path kPortablePath;
#if defined(__x86_64__)
extern const Path kAesNiPath;
extern const Path kVaes256Path;
extern const Path kVaes512Path;
#elif defined(__aarch64__)
extern const Path kArmPath;
#endif

}  // namespace fsl
