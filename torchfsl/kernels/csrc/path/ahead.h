// Bringing into the cache what an accumulation needs next.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "path.h"

namespace fsl {
namespace {

// Brings the stretches of `args.ahead` a few lines at a time: memory answers while AES goes on, and
// its queue does not fill up.
class Ahead {
 public:
  Ahead() = default;
  // `own_blocks`: AES blocks that are converted meanwhile.
  Ahead(const AccumulateArgs& args, std::size_t own_blocks)
      : stretch_(args.ahead), end_(args.ahead + args.num_ahead) {
    std::size_t lines = 0;
    for (const Stretch* s = stretch_; s != end_; ++s) lines += lines_of(*s);
    lines_a_block_ = (lines << kShift) / (own_blocks ? own_blocks : 1) + 1;
  }

  // Whether there is a line to bring for every 16 blocks or fewer, so that lines had better be
  // brought with each batch of AES. If not, once a register of lanes costs less than asking so
  // often.
  bool often() const { return lines_a_block_ >= (std::size_t{1} << kShift) / 16; }

  // Brings what goes with `num_blocks` being converted.
  FSL_INLINE void bring_beside(std::size_t num_blocks) {
    due_ += num_blocks * lines_a_block_;
    std::size_t lines = due_ >> kShift;
    due_ -= lines << kShift;
    while (lines && stretch_ != end_) {
      const std::size_t left = lines_of(*stretch_) - line_, now = lines < left ? lines : left;
      const std::uint8_t* from = stretch_->from + line_ * kLine;
      for (std::size_t i = 0; i < now; ++i) __builtin_prefetch(from + i * kLine, 1, 2);
      lines -= now;
      line_ = now == left ? 0 : line_ + now;
      stretch_ += now == left;
    }
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr unsigned kShift = 20;  // of the fixed point that `due_` and the rate are in

  static std::size_t lines_of(const Stretch& stretch) { return stretch.num_bytes / kLine + 1; }

  const Stretch* stretch_ = nullptr;
  const Stretch* end_ = nullptr;
  std::size_t line_ = 0;  // of the stretch
  std::size_t lines_a_block_ = 0;
  std::size_t due_ = 0;
};

}  // namespace
}  // namespace fsl
