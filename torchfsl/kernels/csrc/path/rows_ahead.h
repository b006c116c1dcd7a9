// Bringing the rows that answers read into the cache while AES goes on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "path.h"

namespace fsl {
namespace {

// The leaves that a group of lanes hands over together read a piece of the table for each lane and
// kChunkLeaves of its leaves, and lanes take turns. The first pieces are brought while these leaves
// are made, the others as many pieces before they are read. So memory goes on through both, which
// take about as long.
class RowsAhead {
 public:
  // Rows of `stride` bytes a leaf at `rows`, and 16 bytes a leaf at `digests` or null.
  RowsAhead(const std::uint8_t* rows, std::size_t stride, const std::uint8_t* digests)
      : rows_(reinterpret_cast<std::uintptr_t>(rows)),
        stride_(stride),
        digests_(reinterpret_cast<std::uintptr_t>(digests)) {}

  // The lanes [0, lanes) have the `width` leaves from `leaf` on, counted through the table, each
  // `lane_leaves` further than the one before, and `per_turn` lanes take turns. Making them is
  // `steps` calls of `bring`.
  void begin(std::size_t leaf, std::size_t width, std::size_t lanes, std::size_t lane_leaves,
             std::size_t per_turn, std::size_t steps) {
    leaf_ = leaf;
    width_ = width;
    lanes_ = lane_leaves ? lanes : 1;  // else all read the same
    lane_leaves_ = lane_leaves;
    per_turn_ = lane_leaves ? per_turn : 1;
    const std::size_t chunks = (width + kChunkLeaves - 1) / kChunkLeaves;
    num_pieces_ = lanes_ * chunks;
    const std::size_t lines = lines_of(width < kChunkLeaves ? width : kChunkLeaves);
    ahead_ = lanes * width / 2 / lines;  // a line for four AES blocks
    if (ahead_ > num_pieces_) ahead_ = num_pieces_;
    lines_a_step_ = (ahead_ * lines << kShift) / (steps ? steps : 1) + 1;
    due_ = 0;
    piece_ = line_ = 0;
  }

  // Brings what goes with one step of making leaves.
  FSL_INLINE void bring() {
    due_ += lines_a_step_;
    std::size_t lines = due_ >> kShift;
    due_ -= lines << kShift;
    while (lines && piece_ < ahead_) lines = bring_lines(lines);
  }

  // Where the piece is read that is brought beside the one being handed over: its distance in
  // leaves, if there is one.
  struct Next {
    std::ptrdiff_t leaves;
    bool any;
  };
  const Next& next() const { return next_; }

  // The piece of `lane` and `chunk` is handed over now.
  void at(std::size_t lane, std::size_t chunk) {
    const std::size_t own = (lane / per_turn_ * chunks() + chunk) * per_turn_ + lane % per_turn_;
    next_ = {0, ahead_ && lane < lanes_ && own + ahead_ < num_pieces_};
    if (next_.any) {
      next_.leaves = static_cast<std::ptrdiff_t>(leaf_of(own + ahead_) - leaf_of(own));
    }
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr unsigned kShift = 16;

  std::size_t lines_of(std::size_t leaves) const {
    return (leaves * (stride_ + (digests_ ? 16 : 0))) / kLine + 1;
  }
  std::size_t chunks() const { return (width_ + kChunkLeaves - 1) / kChunkLeaves; }
  std::size_t leaf_of(std::size_t piece) const {
    const std::size_t turn = piece / per_turn_, chunk = turn % chunks();
    const std::size_t lane = turn / chunks() * per_turn_ + piece % per_turn_;
    return leaf_ + lane * lane_leaves_ + chunk * kChunkLeaves;
  }

  std::size_t bring_lines(std::size_t lines) {
    const std::size_t chunk = piece_ / per_turn_ % chunks() * kChunkLeaves;
    const std::size_t leaves = width_ - chunk < kChunkLeaves ? width_ - chunk : kChunkLeaves;
    const std::size_t own = leaves * stride_, from = leaf_of(piece_);
    const std::size_t total = own + (digests_ ? 16 * leaves : 0);
    for (; lines && line_ < total; --lines, line_ += kLine) {
      const std::uintptr_t at =
          line_ < own ? rows_ + from * stride_ + line_ : digests_ + 16 * from + (line_ - own);
      __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 2);
    }
    if (line_ >= total) {
      ++piece_;
      line_ = 0;
    }
    return lines;
  }

  const std::uintptr_t rows_;
  const std::size_t stride_;
  const std::uintptr_t digests_;
  std::size_t leaf_ = 0, width_ = 0, lanes_ = 0, lane_leaves_ = 0, per_turn_ = 1;
  std::size_t num_pieces_ = 0;
  std::size_t ahead_ = 0;  // pieces that are brought while leaves are made
  std::size_t lines_a_step_ = 0, due_ = 0;
  std::size_t piece_ = 0, line_ = 0;  // to be brought next
  Next next_ = {0, false};
};

}  // namespace
}  // namespace fsl
