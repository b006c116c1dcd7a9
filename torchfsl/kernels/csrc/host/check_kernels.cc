#include "check_kernels.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "aes_bitsliced.h"
#include "dispatch.h"
#include "parallel.h"
#include "row_digests.h"
#include "schedule.h"

namespace fsl {
namespace {

// The units [begin, end) of one job. Several threads may hold subtrees of one tree: each XORs its
// part into the results under the lock.
void authenticate_units(const Path& path, const Partition& partition, const AuthenticateJob& job,
                        std::size_t begin, std::size_t end, void* arena, std::mutex& mutex) {
  const auto run = path.checks.authenticate[has_carryless_multiply()];
  AuthenticateArgs args = job.args;
  if (!partition.units_per_tree) {
    args.answers = job.answers;
    args.tags = job.tags;
    args.first_tree = 0;
    return run(job.trees, partition, begin, end, args, arena);
  }
  args.first_tree = begin / partition.units_per_tree;
  const std::size_t count = (end - 1) / partition.units_per_tree - args.first_tree + 1;
  std::vector<std::uint8_t> rows(count * args.row_bytes), own_tags(count * 16);
  args.answers = rows.data();
  args.tags = own_tags.data();
  run(job.trees, partition, begin, end, args, arena);
  const std::lock_guard<std::mutex> lock(mutex);
  xor_into(job.answers + args.first_tree * args.row_bytes, rows.data(), rows.size());
  xor_into(job.tags + args.first_tree * 16, own_tags.data(), own_tags.size());
}

// Units of work whose part of the table stays in a cache for all jobs: the second-level one, or
// where a part begins with the top of a tree, which every job then expands anew, the third.
std::size_t units_of_part(const Partition& partition, const Trees& trees, std::size_t leaf_bytes) {
  const std::size_t bytes = trees.num_trees * trees.num_leaves * leaf_bytes;
  const std::size_t most = std::size_t{1} << (partition.units_per_tree ? 21 : 19);
  const std::size_t unit_bytes = 1 + bytes / (partition.num_units ? partition.num_units : 1);
  return 1 + most / unit_bytes;
}

}  // namespace

LeafKeys expand_leaf_keys(const std::uint8_t* key) {
  const KeySchedule schedule = expand_key(key);
  bitsliced::Planes round_keys[11];
  for (int r = 0; r < 11; ++r) {
    std::uint64_t copies[8];
    for (int block = 0; block < 4; ++block) std::memcpy(copies + 2 * block, schedule.round[r], 16);
    round_keys[r] = bitsliced::slice(copies);
  }
  std::uint64_t blocks[8] = {0, 0, 1, 0, 2, 0, 3, 0};
  bitsliced::encrypt(round_keys, blocks);
  LeafKeys keys;
  for (int i = 0; i < 3; ++i) {
    keys.schedule[i] = expand_key(reinterpret_cast<const std::uint8_t*>(blocks + 2 * i));
  }
  return keys;
}

void check_gen(const CheckGenArgs& args, unsigned num_threads) {
  const Path& path = active_path();
  for_trees(args.num_trees, 6, num_threads, [&](std::size_t first, std::size_t count) {
    CheckGenArgs part = args;
    part.num_trees = count;
    part.alpha += first;
    part.first_tree += first;
    part.out += kHashBytes * first;
    for (int b = 0; b < 2; ++b) part.leaf[b] += 16 * first;
    path.checks.check_gen(part);
  });
}

void verify(const Trees& trees, const VerifyArgs& args, const std::uint8_t* delta_low,
            std::uint8_t* fold, unsigned num_threads) {
  const Path& path = active_path();
  const Schedule plan = schedule(path, trees, 7, num_threads);
  std::vector<std::uint8_t> low(2 * kLowStride);
  for (std::size_t i = 0; i < kLowLeaves; ++i) {
    for (std::size_t half = 0; half < 2; ++half) {
      std::memcpy(&low[half * kLowStride + 16 * i], delta_low + 32 * i + 16 * half, 16);
    }
  }
  std::memset(fold, 0, 16);
  std::mutex mutex;
  run_parallel(plan.partition.num_units, plan.num_threads, [&](Ranges& ranges) {
    const Scratch scratch(arena_bytes(trees.depth, 16));
    std::uint8_t part[16] = {};
    VerifyArgs own = args;
    own.delta_low = low.data();
    own.fold = part;
    for (std::size_t begin, end; ranges.next(begin, end);) {
      path.checks.verify(trees, plan.partition, begin, end, own, scratch.get());
    }
    const std::lock_guard<std::mutex> lock(mutex);
    xor_into(fold, part, 16);
  });
}

void authenticate(const std::vector<AuthenticateJob>& jobs, unsigned num_threads) {
  if (jobs.empty()) return;
  const Path& path = active_path();
  const Trees& trees = jobs.front().trees;
  const std::size_t row_bytes = jobs.front().args.row_bytes;
  const Schedule plan = schedule(path, trees, jobs.size() * (4 + row_bytes / 64), num_threads);
  for (const AuthenticateJob& job : jobs) {
    std::memset(job.answers, 0, trees.num_trees * row_bytes);
    std::memset(job.tags, 0, trees.num_trees * 16);
  }
  const std::size_t part =
      jobs.size() > 1 ? units_of_part(plan.partition, trees, row_bytes + 16) : 1;
  const std::size_t units = plan.partition.num_units;
  std::mutex mutex;
  run_parallel((units + part - 1) / part, plan.num_threads, [&](Ranges& ranges) {
    const Scratch scratch(arena_bytes(trees.depth, 16));
    for (std::size_t begin, end; ranges.next(begin, end);) {
      const std::size_t step = jobs.size() > 1 ? 1 : end - begin;
      for (std::size_t i = begin; i < end; i += step) {
        const std::size_t last = std::min(units, (i + step) * part);
        for (const AuthenticateJob& job : jobs) {
          authenticate_units(path, plan.partition, job, i * part, last, scratch.get(), mutex);
        }
      }
    }
  });
}

void tags(const TagsArgs& args, unsigned num_threads) {
  const Path& path = active_path();
  for_trees(args.num_trees, 2, num_threads, [&](std::size_t first, std::size_t count) {
    TagsArgs part = args;
    part.num_trees = count;
    part.digests += 16 * first;
    part.out += 16 * first;
    for (int b = 0; b < 2; ++b) part.leaf[b] += 16 * first;
    path.checks.tags[has_carryless_multiply()](part);
  });
}

void row_digests(const std::uint8_t* key, std::size_t num_rows, RowDigestArgs args,
                 unsigned num_threads) {
  constexpr std::uint32_t kParameters = 1 << 24 | 1 << 16 | 16 << 8 | 16;  // one node, key, digest
  std::uint32_t state[8], block[16] = {};
  std::memcpy(state, blake2s::kStart, sizeof state);
  state[0] ^= kParameters;
  std::memcpy(block, key, 16);
  blake2s::compress(state, block, blake2s::kBlock, false);
  args.state = state;
  const Path& path = active_path();
  const std::size_t blocks = 1 + args.row_bytes / blake2s::kBlock;
  for_trees(num_rows, 8 * blocks, num_threads, [&](std::size_t first, std::size_t count) {
    path.checks.row_digests(args, first, first + count);
  });
}

}  // namespace fsl
