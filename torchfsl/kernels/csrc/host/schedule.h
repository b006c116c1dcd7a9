// How a kernel over trees is spread over threads, and the scratch memory of each.
#pragma once

#include <cstddef>
#include <new>

#include "parallel.h"
#include "path.h"

namespace fsl {

// Scratch memory of one thread.
class Scratch {
 public:
  explicit Scratch(std::size_t num_bytes)
      : memory_(::operator new(num_bytes, std::align_val_t{64})) {}
  ~Scratch() { ::operator delete(memory_, std::align_val_t{64}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_;
};

struct Schedule {
  Partition partition;
  unsigned num_threads;
};

inline Schedule schedule(const Path& path, const Trees& trees, std::size_t work_per_leaf,
                         unsigned wanted_threads) {
  const std::size_t work = trees.num_trees * trees.num_leaves * work_per_leaf;
  const unsigned most = usable_threads(wanted_threads, work, work);
  const Partition partition = path.partition(trees.num_trees, trees.num_leaves, trees.depth, most);
  return {partition, usable_threads(most, partition.num_units, work)};
}

inline void xor_into(std::uint8_t* to, const std::uint8_t* from, std::size_t num_bytes) {
  for (std::size_t i = 0; i < num_bytes; ++i) to[i] ^= from[i];
}

}  // namespace fsl
