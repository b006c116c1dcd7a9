// Products modulo 2^32 or 2^64, strip by strip of the columns.
#include <algorithm>
#include <cstdint>

#include "dispatch.h"
#include "kernels.h"
#include "parallel.h"

namespace fsl {
namespace {

template <class T>
void by_strips(const RingArgs<T>& args,
               void (*multiply)(const RingArgs<T>&, std::size_t, std::size_t),
               unsigned num_threads) {
  constexpr std::size_t kStrip = 64;  // columns, a whole number of any path's panels
  const std::size_t num_strips = (args.num_columns + kStrip - 1) / kStrip;
  const std::size_t work = args.num_rows * args.num_terms * args.num_columns / 8;
  std::fill_n(args.out, args.num_rows * args.num_columns, T{0});
  run_parallel(num_strips, usable_threads(num_threads, num_strips, work), [&](Ranges& ranges) {
    for (std::size_t begin, end; ranges.next(begin, end);) {
      multiply(args, begin * kStrip, std::min(args.num_columns, end * kStrip));
    }
  });
}

}  // namespace

void ring_multiply(const RingArgs<std::uint32_t>& args, unsigned num_threads) {
  by_strips(args, active_path().ring_multiply32, num_threads);
}

void ring_multiply(const RingArgs<std::uint64_t>& args, unsigned num_threads) {
  by_strips(args, active_path().ring_multiply64, num_threads);
}

}  // namespace fsl
