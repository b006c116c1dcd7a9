// Answers by one bit a row: the bits of all rows first, then one pass over the rows, for all trees
// at once where these share a table.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "dispatch.h"
#include "kernels.h"
#include "parallel.h"
#include "schedule.h"

namespace fsl {
namespace {

// Trees that pass over a shared table together: their sums and bits stay in a core's cache.
constexpr std::size_t kTreesOfPass = 32;

void make_bits(const Trees& trees, const BitAnswerArgs& args, unsigned num_threads) {
  const Path& path = active_path();
  const Schedule plan = schedule(path, trees, 3, num_threads);
  run_parallel(plan.partition.num_units, plan.num_threads, [&](Ranges& ranges) {
    const Scratch scratch(arena_bytes(trees.depth, 16));
    for (std::size_t begin, end; ranges.next(begin, end);) {
      path.leaf_bits(trees, plan.partition, begin, end, args, scratch.get());
    }
  });
}

// XORs the chosen rows into `args.out`. Several threads may hold leaves of one tree: each XORs its
// part into `args.out` under the lock.
void add_rows(const Trees& trees, const BitAnswerArgs& args, unsigned num_threads) {
  const Path& path = active_path();
  const std::size_t num_leaves = trees.num_leaves;
  const std::size_t units = args.shared_table ? num_leaves : trees.num_trees * num_leaves;
  const std::size_t work = trees.num_trees * num_leaves * kBitRows * (1 + args.row_bytes / 64);
  std::mutex mutex;
  run_parallel(units, usable_threads(num_threads, units, work), [&](Ranges& ranges) {
    BitAnswerArgs own = args;
    for (std::size_t begin, end; ranges.next(begin, end);) {
      own.first_tree = args.shared_table ? 0 : begin / num_leaves;
      const std::size_t last = args.shared_table ? trees.num_trees - 1 : (end - 1) / num_leaves;
      std::vector<std::uint8_t> part((last - own.first_tree + 1) * args.row_bytes);
      own.out = part.data();
      path.rows_by_bits(own, trees.num_trees, num_leaves, begin, end);
      const std::lock_guard<std::mutex> lock(mutex);
      xor_into(args.out + own.first_tree * args.row_bytes, part.data(), part.size());
    }
  });
}

}  // namespace

void answer_bits(const Trees& trees, const BitAnswerArgs& args, std::uint8_t* out,
                 unsigned num_threads) {
  std::memset(out, 0, trees.num_trees * args.row_bytes);
  const std::size_t most = args.shared_table ? kTreesOfPass : trees.num_trees;
  std::vector<std::uint8_t> bits(16 * std::min(most, trees.num_trees) * trees.num_leaves);
  for (std::size_t first = 0; first < trees.num_trees; first += most) {
    Trees part = trees;
    part.num_trees = std::min(most, trees.num_trees - first);
    part.roots += 16 * first;
    part.cw += 16 * first;
    part.cw_right += first;
    BitAnswerArgs own = args;
    own.words += 16 * first;
    own.bits = bits.data();
    own.out = out + first * args.row_bytes;
    make_bits(part, own, num_threads);
    add_rows(part, own, num_threads);
  }
}

}  // namespace fsl
