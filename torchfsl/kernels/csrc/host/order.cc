// The stable order of 64-bit keys: cut by their first bits into parts that stay in a core's cache,
// each of which is sorted there. Keys are public.
#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels.h"
#include "parallel.h"

namespace fsl {
namespace {

constexpr unsigned kMostPartBits = 11;  // as many parts as are written at once without waiting
constexpr unsigned kPartKeys = 15;      // log2 of the keys of a part
constexpr unsigned kDigitBits = 11;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;

// 32 bits of the key, behind those that all keys of the part share, above the key's index.
using Entry = std::uint64_t;

class Ordering {
 public:
  Ordering(const std::uint64_t* keys, std::size_t num_keys, std::uint32_t* out)
      : keys_(keys),
        num_keys_(num_keys),
        out_(out),
        part_bits_(std::min<unsigned>(
            kMostPartBits, std::max<unsigned>(std::bit_width(num_keys), kPartKeys) - kPartKeys)),
        num_parts_(std::size_t{1} << part_bits_),
        entries_(num_keys) {}

  void run(unsigned num_threads) {
    const unsigned threads = usable_threads(num_threads, num_parts_, 8 * num_keys_);
    cut(threads);
    run_parallel(num_parts_, threads, [&](Ranges& ranges) {
      std::vector<Entry> other;
      for (std::size_t begin, end; ranges.next(begin, end);) {
        for (std::size_t part = begin; part < end; ++part) sort_part(part, other);
      }
    });
  }

 private:
  std::size_t part_of(std::uint64_t key) const { return part_bits_ ? key >> (64 - part_bits_) : 0; }

  // Entries part by part, those of a part in the order of their indices: each slice of the keys has
  // its own place in every part.
  void cut(std::size_t num_slices) {
    std::vector<std::vector<std::size_t>> next(num_slices, std::vector<std::size_t>(num_parts_));
    const auto slice = [&](std::size_t i) { return num_keys_ * i / num_slices; };
    const auto each = [&](const auto& work) {
      run_parallel(num_slices, static_cast<unsigned>(num_slices), [&](Ranges& ranges) {
        for (std::size_t begin, end; ranges.next(begin, end);) {
          for (std::size_t i = begin; i < end; ++i) work(next[i], slice(i), slice(i + 1));
        }
      });
    };
    each([&](std::vector<std::size_t>& count, std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) ++count[part_of(keys_[i])];
    });
    starts_.resize(num_parts_ + 1);
    std::size_t total = 0;
    for (std::size_t part = 0; part < num_parts_; ++part) {
      starts_[part] = total;
      for (std::vector<std::size_t>& count : next) total += std::exchange(count[part], total);
    }
    starts_[num_parts_] = total;
    each([&](std::vector<std::size_t>& place, std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        const std::uint64_t shown = keys_[i] << part_bits_ >> 32;
        entries_[place[part_of(keys_[i])]++] = shown << 32 | i;
      }
    });
  }

  // By the bits in the entries digit by digit, then by whole keys where these agree.
  void sort_part(std::size_t part, std::vector<Entry>& other) {
    const std::size_t first = starts_[part], count = starts_[part + 1] - first;
    if (other.size() < count) other.resize(count);
    Entry *from = entries_.data() + first, *to = other.data();
    for (unsigned shift = 32; shift < 64; shift += kDigitBits) {
      std::size_t next[kDigits] = {}, total = 0;
      for (std::size_t i = 0; i < count; ++i) ++next[digit(from[i], shift)];
      for (std::size_t& place : next) total += std::exchange(place, total);
      for (std::size_t i = 0; i < count; ++i) to[next[digit(from[i], shift)]++] = from[i];
      std::swap(from, to);
    }
    for (std::size_t i = 0; i < count;) {
      std::size_t end = i + 1;
      while (end < count && from[end] >> 32 == from[i] >> 32) ++end;
      if (end - i > 1)
        std::sort(from + i, from + end, [this](Entry a, Entry b) { return before(a, b); });
      for (; i < end; ++i) out_[first + i] = static_cast<std::uint32_t>(from[i]);
    }
  }

  static std::size_t digit(Entry entry, unsigned shift) { return entry >> shift & (kDigits - 1); }

  bool before(Entry a, Entry b) const {
    const auto i = static_cast<std::uint32_t>(a), j = static_cast<std::uint32_t>(b);
    return std::pair(keys_[i], i) < std::pair(keys_[j], j);
  }

  const std::uint64_t* const keys_;
  const std::size_t num_keys_;
  std::uint32_t* const out_;
  const unsigned part_bits_;
  const std::size_t num_parts_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> starts_;
};

}  // namespace

void stable_order(const std::uint64_t* keys, std::size_t num_keys, std::uint32_t* out,
                  unsigned num_threads) {
  if (std::uint64_t{num_keys} > std::uint64_t{1} << 32)
    throw std::invalid_argument("stable_order: over 2**32 keys");
  Ordering(keys, num_keys, out).run(num_threads);
}

}  // namespace fsl
