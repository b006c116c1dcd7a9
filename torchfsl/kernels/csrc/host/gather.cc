// Sum of scattered accumulator rows: bin layout back to the index space.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

#include "kernels.h"
#include "parallel.h"

namespace fsl {
namespace {

constexpr std::size_t kPrefetchBytes = 1024;  // at most kPrefetchRows rows of this size
constexpr std::size_t kPrefetchRows = 32;
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kManyRows = std::size_t{1} << 20;  // more than caches near a core hold

template <class Lane>
void add_row(std::uint8_t* to, const std::uint8_t* from, std::size_t num_bytes) {
  for (std::size_t i = 0; i < num_bytes; i += sizeof(Lane)) {
    Lane a, b;
    std::memcpy(&a, to + i, sizeof a);
    std::memcpy(&b, from + i, sizeof b);
    a = static_cast<Lane>(a + b);
    std::memcpy(to + i, &a, sizeof a);
  }
}

// One value of 3 or 6 bytes, put together in registers.
template <unsigned width>
std::uint64_t load_packed(const std::uint8_t* from) {
  std::uint32_t low = 0;
  std::uint16_t high = 0;
  if (width == 3) return from[0] | from[1] << 8 | static_cast<std::uint32_t>(from[2]) << 16;
  std::memcpy(&low, from, 4);
  std::memcpy(&high, from + 4, 2);
  return low | static_cast<std::uint64_t>(high) << 32;
}

template <unsigned width>
void add_packed_row(std::uint8_t* to, const std::uint8_t* from, std::size_t num_bytes) {
  for (std::size_t i = 0; i < num_bytes; i += width) {
    const std::uint64_t sum = load_packed<width>(to + i) + load_packed<width>(from + i);
    for (unsigned b = 0; b < width; ++b) to[i + b] = static_cast<std::uint8_t>(sum >> (8 * b));
  }
}

using AddRow = void (*)(std::uint8_t*, const std::uint8_t*, std::size_t);

template <class Slot, AddRow add>
void gather_range(const GatherArgs<Slot>& args, std::size_t sum, std::size_t begin,
                  std::size_t end) {
  const std::size_t row_bytes = args.row_bytes;
  const Slot* slots = args.slots + sum * args.num_rows;
  const std::size_t distance =
      std::min(kPrefetchRows, 1 + kPrefetchBytes / std::max<std::size_t>(1, row_bytes));
  for (std::size_t x = begin; x < end; ++x) {
    const std::size_t ahead = std::min(x + distance, args.num_rows - 1);
    __builtin_prefetch(args.acc + slots[ahead] * row_bytes);
    add(args.out + x * row_bytes, args.acc + slots[x] * row_bytes, row_bytes);
  }
}

// The same for rows of one value, whose addresses and loops would take longer than their sums.
template <class Slot, class Lane>
void gather_values(const GatherArgs<Slot>& args, std::size_t sum, std::size_t begin,
                   std::size_t end) {
  const Slot* slots = args.slots + sum * args.num_rows;
  const std::size_t known = args.num_rows - std::min(args.num_rows, kPrefetchRows);
  const auto add = [&](std::size_t x) {
    add_row<Lane>(args.out + x * sizeof(Lane), args.acc + slots[x] * sizeof(Lane), sizeof(Lane));
  };
  std::size_t x = begin;
  for (; x < std::min(end, known); ++x) {
    __builtin_prefetch(args.acc + slots[x + kPrefetchRows] * sizeof(Lane));
    add(x);
  }
  for (; x < end; ++x) add(x);
}

template <class Slot>
using GatherRange = void (*)(const GatherArgs<Slot>&, std::size_t, std::size_t, std::size_t);

template <class Slot>
GatherRange<Slot> choose_gather(unsigned width, bool one_value) {
  switch (width) {
    case 2:
      return gather_range<Slot, add_row<std::uint16_t>>;
    case 3:
      return gather_range<Slot, add_packed_row<3>>;
    case 4:
      if (one_value) return gather_values<Slot, std::uint32_t>;
      return gather_range<Slot, add_row<std::uint32_t>>;
    case 6:
      return gather_range<Slot, add_packed_row<6>>;
    case 8:
      if (one_value) return gather_values<Slot, std::uint64_t>;
      return gather_range<Slot, add_row<std::uint64_t>>;
    default:
      return gather_range<Slot, add_row<unsigned __int128>>;
  }
}

template <class Slot>
void gather_all(const GatherArgs<Slot>& args, unsigned num_threads) {
  const std::size_t total = args.num_sums * args.num_rows;
  Slot largest = 0;
  for (std::size_t i = 0; i < total; ++i) largest = std::max(largest, args.slots[i]);
  if (total > 0 && largest >= args.num_slots) {
    throw std::invalid_argument("gather: a slot lies outside the accumulator");
  }
  const std::size_t tile =
      std::max<std::size_t>(64, 8192 / std::max<std::size_t>(1, args.row_bytes));
  const std::size_t num_tiles = (args.num_rows + tile - 1) / tile;
  const unsigned threads = usable_threads(num_threads, num_tiles, total * 4);
  const GatherRange<Slot> range = choose_gather<Slot>(args.width, args.row_bytes == args.width);
  const auto pass = [&](std::size_t first, std::size_t last) {
    run_parallel(num_tiles, threads, [&](Ranges& ranges) {
      for (std::size_t begin, end; ranges.next(begin, end);) {
        for (std::size_t i = begin; i < end; ++i) {
          for (std::size_t sum = first; sum < last; ++sum) {
            range(args, sum, i * tile, std::min(args.num_rows, (i + 1) * tile));
          }
        }
      }
    });
  };
  // Tiles of the output stay in cache over the sums. Where rows share lines, it pays more that one
  // sum's accumulator does, which is read in random order.
  if (args.row_bytes < kLineBytes && args.num_rows >= kManyRows) {
    for (std::size_t sum = 0; sum < args.num_sums; ++sum) pass(sum, sum + 1);
  } else {
    pass(0, args.num_sums);
  }
}

}  // namespace

void gather(const GatherArgs<std::uint32_t>& args, unsigned num_threads) {
  gather_all(args, num_threads);
}
void gather(const GatherArgs<std::uint64_t>& args, unsigned num_threads) {
  gather_all(args, num_threads);
}

}  // namespace fsl
