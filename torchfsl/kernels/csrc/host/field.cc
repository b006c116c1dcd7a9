// Products modulo 2^32 - 5, strip by strip of the columns.
#include <algorithm>

#include "dispatch.h"
#include "kernels.h"
#include "parallel.h"

namespace fsl {

void field_multiply(const FieldArgs& args, unsigned num_threads) {
  constexpr std::size_t kStrip = 256;  // columns; their terms stay near the core over the rows
  const Path& path = active_path();
  const std::size_t num_strips = (args.num_columns + kStrip - 1) / kStrip;
  const std::size_t work = args.num_rows * args.num_terms * args.num_columns / 8;
  run_parallel(num_strips, usable_threads(num_threads, num_strips, work), [&](Ranges& ranges) {
    for (std::size_t begin, end; ranges.next(begin, end);) {
      for (std::size_t strip = begin; strip < end; ++strip) {
        const std::size_t last = std::min(args.num_columns, (strip + 1) * kStrip);
        path.field_multiply(args, strip * kStrip, last);
      }
    }
  });
}

}  // namespace fsl
