// Cuckoo placement: exact greedy bipartite matching in item order.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels.h"

namespace fsl {
namespace {

constexpr std::size_t kNumHashes = 3;
constexpr std::uint32_t kNobody = 0xffffffff;
constexpr std::uint32_t kExhausted = 0xffffffff;

class Matcher {
 public:
  Matcher(const std::uint32_t* candidates, std::size_t num_items, std::size_t num_bins,
          std::int64_t* bin_of)
      : candidates_(candidates),
        num_items_(num_items),
        bin_of_(bin_of),
        owner_(num_bins, kNobody),
        parent_(num_bins),
        visited_by_(num_bins, 0) {}

  // Breadth-first search for a free bin. Stops at the first, in queue order and hash order.
  void place(std::uint32_t item) {
    const std::uint32_t search = item + 1;
    queue_.assign(1, item);
    visited_.clear();
    for (std::size_t head = 0; head < queue_.size(); ++head) {
      const std::uint32_t current = queue_[head];
      for (std::size_t hash = 0; hash < kNumHashes; ++hash) {
        const std::uint32_t bin = candidates_[hash * num_items_ + current];
        if (visited_by_[bin] == search || visited_by_[bin] == kExhausted) continue;
        visited_by_[bin] = search;
        visited_.push_back(bin);
        parent_[bin] = current;
        if (owner_[bin] == kNobody) return flip(bin, item);
        queue_.push_back(owner_[bin]);
      }
    }
    // Every candidate of every owner of a visited bin is visited: no later search can leave these
    // bins either, so skipping them for good changes no result.
    for (const std::uint32_t bin : visited_) visited_by_[bin] = kExhausted;
  }

 private:
  // Moves every item on the path from `item` to the free bin one bin on.
  void flip(std::uint32_t bin, std::uint32_t item) {
    for (;;) {
      const std::uint32_t mover = parent_[bin];
      const std::int64_t before = bin_of_[mover];
      bin_of_[mover] = bin;
      owner_[bin] = mover;
      if (mover == item) return;
      bin = static_cast<std::uint32_t>(before);
    }
  }

  const std::uint32_t* const candidates_;
  const std::size_t num_items_;
  std::int64_t* const bin_of_;
  std::vector<std::uint32_t> owner_;
  std::vector<std::uint32_t> parent_;
  std::vector<std::uint32_t> visited_by_;  // search that visited a bin last, or kExhausted
  std::vector<std::uint32_t> visited_;
  std::vector<std::uint32_t> queue_;
};

}  // namespace

void match(const std::uint32_t* candidates, std::size_t num_items, std::size_t num_bins,
           std::int64_t* bin_of) {
  if (num_items >= kExhausted - 1) throw std::invalid_argument("match: too many items");
  std::fill(bin_of, bin_of + num_items, -1);
  if (num_items == 0) return;
  const std::size_t largest = *std::max_element(candidates, candidates + kNumHashes * num_items);
  if (largest >= num_bins) throw std::invalid_argument("match: a candidate is not below num_bins");
  Matcher matcher(candidates, num_items, largest + 1, bin_of);
  for (std::size_t item = 0; item < num_items; ++item) {
    matcher.place(static_cast<std::uint32_t>(item));
  }
}

}  // namespace fsl
