#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace fsl {
namespace {

constexpr std::size_t kWorkPerThread = std::size_t{1} << 16;
constexpr std::size_t kPartsOfRest = 2;
constexpr std::size_t kMostParts = 32;

// Long ranges first, since each begins with a cold cache, then ever shorter ones, since threads
// wait for the last: a range is a half of a thread's part of what is left, and never below 1/32 of
// its part of everything.
class SharedRanges final : public Ranges {
 public:
  SharedRanges(std::size_t num_units, unsigned num_threads)
      : num_units_(num_units),
        parts_(num_threads == 1 ? 1 : num_threads * kPartsOfRest),
        least_(std::max<std::size_t>(1, num_units / (num_threads * kMostParts))) {}

  bool next(std::size_t& begin, std::size_t& end) override {
    begin = next_.load(std::memory_order_relaxed);
    do {
      if (begin >= num_units_) return false;
      end = begin + std::max(least_, (num_units_ - begin) / parts_);
      end = std::min(end, num_units_);
    } while (!next_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
    return true;
  }

 private:
  const std::size_t num_units_;
  const std::size_t parts_;
  const std::size_t least_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace

unsigned usable_threads(unsigned wanted, std::size_t num_units, std::size_t work) {
  if (wanted == 0) wanted = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t most = std::min(num_units, 1 + work / kWorkPerThread);
  return static_cast<unsigned>(std::max<std::size_t>(1, std::min<std::size_t>(wanted, most)));
}

void for_trees(std::size_t num_trees, std::size_t work_of_tree, unsigned wanted_threads,
               const std::function<void(std::size_t, std::size_t)>& work) {
  constexpr std::size_t kUnit = 64;  // a multiple of what every path takes at once
  const std::size_t units = (num_trees + kUnit - 1) / kUnit;
  const unsigned threads = usable_threads(wanted_threads, units, num_trees * work_of_tree);
  if (threads == 1) return work(0, num_trees);
  run_parallel(units, threads, [&](Ranges& ranges) {
    for (std::size_t begin, end; ranges.next(begin, end);) {
      work(begin * kUnit, std::min(num_trees, end * kUnit) - begin * kUnit);
    }
  });
}

void run_parallel(std::size_t num_units, unsigned num_threads,
                  const std::function<void(Ranges&)>& worker) {
  SharedRanges ranges(num_units, num_threads);
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto guarded = [&] {
    try {
      worker(ranges);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(num_threads - 1);
  try {
    while (threads.size() + 1 < num_threads) threads.emplace_back(guarded);
  } catch (const std::system_error&) {
    // The system gives no more threads: those we have do the work.
  }
  guarded();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace fsl
