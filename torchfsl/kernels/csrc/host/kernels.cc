#include "kernels.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "parallel.h"
#include "schedule.h"

namespace fsl {
namespace {

// Runs `answers(args, begin, end, arena)` over all units, where `args.out` is to be XORed into.
// Several threads may hold subtrees of one tree: each XORs its part into `out` under the lock.
template <class Args, class F>
void answer_units(const Schedule& plan, const Trees& trees, const Args& args, std::uint8_t* out,
                  F answers) {
  std::memset(out, 0, trees.num_trees * args.row_bytes);
  std::mutex mutex;
  const std::size_t units_per_tree = plan.partition.units_per_tree;
  run_parallel(plan.partition.num_units, plan.num_threads, [&](Ranges& ranges) {
    const Scratch scratch(arena_bytes(trees.depth, 16));
    Args own = args;
    own.out = out;
    own.first_tree = 0;
    for (std::size_t begin, end; ranges.next(begin, end);) {
      if (!units_per_tree) {
        answers(own, begin, end, scratch.get());
        continue;
      }
      own.first_tree = begin / units_per_tree;
      const std::size_t last_tree = (end - 1) / units_per_tree;
      std::vector<std::uint8_t> part((last_tree - own.first_tree + 1) * args.row_bytes);
      own.out = part.data();
      answers(own, begin, end, scratch.get());
      const std::lock_guard<std::mutex> lock(mutex);
      xor_into(out + own.first_tree * args.row_bytes, part.data(), part.size());
    }
  });
}

// What a report has for the trees [first, last): some kilobytes in each of its arrays.
void add_keys(const AccumulateJob& job, std::size_t first, std::size_t last,
              std::vector<Stretch>& to) {
  const Trees& trees = job.trees;
  const auto add = [&](const std::uint8_t* rows, std::size_t row_bytes) {
    to.push_back({rows + first * row_bytes, (last - first) * row_bytes});
  };
  add(trees.roots, 16);
  for (unsigned level = 0; level < trees.depth; ++level) {
    add(trees.cw + level * trees.cw_stride, 16);
    add(trees.cw_right + level * trees.right_stride, 1);
  }
  add(job.args.hints, job.args.payload);
}

// Calls `add(job, partition, begin, end, args, arena)` for all units of all jobs, part by part of
// the accumulator, which passes through the cache once.
template <class F>
void for_jobs(const std::vector<AccumulateJob>& jobs, unsigned num_threads, F add) {
  if (jobs.empty()) return;
  const Path& path = active_path();
  const Trees& trees = jobs.front().trees;
  const std::size_t payload = jobs.front().args.payload, num_jobs = jobs.size();
  const std::size_t total = trees.num_trees * trees.num_leaves * payload;
  const Schedule plan = schedule(path, trees, num_jobs * (2 + payload / 16), num_threads);
  const std::size_t units = plan.partition.num_units, unit_trees = plan.partition.trees_per_unit;
  const std::size_t unit_bytes = std::max<std::size_t>(1, total / std::max<std::size_t>(1, units));
  // Two tiles and the keys lie in the second-level cache; few reports do less with a tile, and are
  // the faster for small ones.
  const std::size_t tile_bytes = std::size_t{1} << (num_jobs < 8 ? 17 : 18);
  const std::size_t tree_keys = 16 + 17 * trees.depth + payload;  // bytes that a job has for a tree
  // Subtrees of one report go on without a stop: after one, the top of their tree would be expanded
  // anew.
  const bool whole_trees = plan.partition.units_per_tree == 0,
             nonstop = num_jobs == 1 && !whole_trees;
  const std::size_t tile = nonstop ? 1 : 1 + tile_bytes / (unit_bytes + unit_trees * tree_keys);
  run_parallel((units + tile - 1) / tile, plan.num_threads, [&](Ranges& ranges) {
    const Scratch scratch(arena_bytes(trees.depth, payload));
    std::vector<Stretch> ahead;
    for (std::size_t begin, end; ranges.next(begin, end);) {
      // What lies beyond the range is another thread's, which may be adding there.
      const std::size_t own_trees = std::min(trees.num_trees, end * tile * unit_trees);
      const std::size_t own_bytes = std::min(total, end * tile * unit_bytes);
      const std::size_t step = nonstop ? end - begin : 1;
      for (std::size_t i = begin; i < end; i += step) {
        const std::size_t last = std::min(units, (i + step) * tile);
        const std::size_t next = (nonstop ? i + 1 : last) * unit_bytes;
        const std::size_t part = (last - i * tile) * unit_bytes / num_jobs;
        for (std::size_t j = 0; j < num_jobs; ++j) {
          // Meanwhile come the keys of the next report, and a part of the next tile.
          ahead.clear();
          const bool wraps = j + 1 == num_jobs;
          const std::size_t first = (i + wraps) * tile * unit_trees;
          if (whole_trees && first < own_trees) {
            const std::size_t beyond = std::min(own_trees, first + tile * unit_trees);
            add_keys(jobs[wraps ? 0 : j + 1], first, beyond, ahead);
          }
          const std::size_t from = std::min(own_bytes, next + j * part);
          AccumulateArgs args = jobs[j].args;
          ahead.push_back({args.acc + from, std::min(part, own_bytes - from)});
          args.ahead = ahead.data();
          args.num_ahead = ahead.size();
          add(j, plan.partition, i * tile, last, args, scratch.get());
        }
      }
    }
  });
}

}  // namespace

void tree_gen(const TreeGenArgs& args, unsigned num_threads) {
  const Path& path = active_path();
  for_trees(args.num_trees, 4 * args.depth, num_threads, [&](std::size_t first, std::size_t count) {
    TreeGenArgs part = args;
    part.level_trees = args.num_trees;
    part.num_trees = count;
    part.alpha += first;
    part.cw += 16 * first;
    part.cw_right += first;
    for (int b = 0; b < 2; ++b) {
      part.roots[b] += 16 * first;
      part.leaf[b] += 16 * first;
    }
    path.tree_gen(part);
  });
}

void tree_path(const TreePathArgs& args, unsigned num_threads) {
  const Path& path = active_path();
  const std::size_t work = args.trees.depth ? args.trees.depth : 1;
  for_trees(args.trees.num_trees, work, num_threads, [&](std::size_t first, std::size_t count) {
    TreePathArgs part = trees_from(args, first);
    part.trees.num_trees = count;
    path.tree_path(part);
  });
}

void tree_eval(const Trees& trees, std::uint8_t* out, unsigned num_threads) {
  const Path& path = active_path();
  const Schedule plan = schedule(path, trees, 2, num_threads);
  run_parallel(plan.partition.num_units, plan.num_threads, [&](Ranges& ranges) {
    const Scratch scratch(arena_bytes(trees.depth, 16));
    for (std::size_t begin, end; ranges.next(begin, end);) {
      path.tree_eval(trees, plan.partition, begin, end, out, scratch.get());
    }
  });
}

void convert(const ConvertArgs& args) {
  const Scratch scratch(arena_bytes(0, args.payload));
  active_path().convert(args, scratch.get());
}

void hint_gen(const HintArgs& args, unsigned num_threads) {
  const Path& path = active_path();
  for_trees(args.num_trees, 2 + args.payload / 8, num_threads,
            [&](std::size_t first, std::size_t count) {
              const Scratch scratch(arena_bytes(0, args.payload));
              HintArgs part = args;
              part.num_trees = count;
              part.values += (args.payload >> args.nu) * first;
              part.slots += first;
              part.out += args.payload * first;
              for (int b = 0; b < 2; ++b) part.leaf[b] += 16 * first;
              path.hint_gen(part, scratch.get());
            });
}

void accumulate(const std::vector<AccumulateJob>& jobs, unsigned num_threads) {
  const Path& path = active_path();
  for_jobs(jobs, num_threads,
           [&](std::size_t job, const Partition& partition, std::size_t begin, std::size_t end,
               const AccumulateArgs& args, void* arena) {
             path.accumulate(jobs[job].trees, partition, begin, end, args, arena);
           });
}

void accumulate_lifted(const std::vector<AccumulateJob>& jobs, const Lifted& sums,
                       unsigned num_threads) {
  const Path& path = active_path();
  std::mutex mutex;  // several threads may hold subtrees of one tree
  for_jobs(jobs, num_threads,
           [&](std::size_t job, const Partition& partition, std::size_t begin, std::size_t end,
               const AccumulateArgs& args, void* arena) {
             const Trees& trees = jobs[job].trees;
             const std::size_t split = partition.units_per_tree, whole = partition.trees_per_unit;
             const std::size_t first = split ? begin / split : begin * whole;
             const std::size_t last =
                 std::min(trees.num_trees, split ? (end - 1) / split + 1 : end * whole);
             const std::size_t count = (last - first) * sums.lifted;
             std::vector<std::int64_t> own(2 * count);
             path.accumulate_lifted(trees, partition, begin, end,
                                    {args, sums.lifted, own.data(), own.data() + count, first},
                                    arena);
             const std::size_t at = (job * trees.num_trees + first) * sums.lifted;
             const std::lock_guard<std::mutex> lock(mutex);
             for (std::size_t i = 0; i < count; ++i) sums.low[at + i] += own[i];
             for (std::size_t i = 0; sums.high && i < count; ++i)
               sums.high[at + i] += own[count + i];
           });
}

void answer(const Trees& trees, const AnswerArgs& args, std::uint8_t* out, unsigned num_threads) {
  const Path& path = active_path();
  const Schedule plan = schedule(path, trees, 2 + args.row_bytes / 64, num_threads);
  answer_units(plan, trees, args, out,
               [&](const AnswerArgs& own, auto begin, auto end, void* arena) {
                 path.answer(trees, plan.partition, begin, end, own, arena);
               });
}

double aes_ceiling(std::size_t num_blocks, unsigned num_threads) {
  const Path& path = active_path();
  const unsigned threads = usable_threads(num_threads, ~std::size_t{0}, ~std::size_t{0});
  const std::uint8_t key_bytes[16] = {};
  const KeySchedule key = expand_key(key_bytes);
  const auto start = std::chrono::steady_clock::now();
  run_parallel(threads, threads, [&](Ranges& ranges) {
    const Scratch scratch(arena_bytes(0, 16));
    for (std::size_t begin, end; ranges.next(begin, end);) {
      path.hash_blocks(key, num_blocks, scratch.get());
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace fsl
