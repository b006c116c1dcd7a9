// Threads over ranges of work units.
#pragma once

#include <cstddef>
#include <functional>

namespace fsl {

// Threads to use: `wanted`, or all of the machine if 0; never more than `num_units`, and one when
// the whole work (in AES blocks or words, roughly) is too small to pay for a thread.
unsigned usable_threads(unsigned wanted, std::size_t num_units, std::size_t work);

// Hands out the ranges of [0, num_units) that are left.
class Ranges {
 public:
  virtual bool next(std::size_t& begin, std::size_t& end) = 0;

 protected:
  ~Ranges() = default;
};

// Calls `worker` once on each thread; it takes ranges until there are none. Rethrows the first
// exception of a worker after all threads have ended.
void run_parallel(std::size_t num_units, unsigned num_threads,
                  const std::function<void(Ranges&)>& worker);

// Calls `work(first, count)` for parts of `num_trees` trees that do not depend on each other, on as
// many threads as `usable_threads` allows for the work of a tree.
void for_trees(std::size_t num_trees, std::size_t work_of_tree, unsigned wanted_threads,
               const std::function<void(std::size_t, std::size_t)>& work);

}  // namespace fsl
