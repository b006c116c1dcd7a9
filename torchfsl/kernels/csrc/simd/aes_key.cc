#include "aes_key.h"

#include <cstring>

#include "aes_bitsliced.h"

namespace fsl {
namespace {

// Rotates the last word of the previous round key by one byte and substitutes it.
void rotate_and_substitute(const std::uint8_t* word, std::uint8_t* out) {
  bitsliced::Planes planes = {};
  for (int bit = 0; bit < 8; ++bit) {
    for (int i = 0; i < 4; ++i) {
      planes.plane[bit] |= static_cast<std::uint64_t>((word[(i + 1) % 4] >> bit) & 1) << i;
    }
  }
  bitsliced::sub_bytes(planes);
  std::memset(out, 0, 4);
  for (int bit = 0; bit < 8; ++bit) {
    for (int i = 0; i < 4; ++i) {
      out[i] |= static_cast<std::uint8_t>(((planes.plane[bit] >> i) & 1) << bit);
    }
  }
}

}  // namespace

KeySchedule expand_key(const std::uint8_t* key) {
  static constexpr std::uint8_t kRoundConstant[10] = {0x01, 0x02, 0x04, 0x08, 0x10,
                                                      0x20, 0x40, 0x80, 0x1b, 0x36};
  KeySchedule schedule;
  std::memcpy(schedule.round[0], key, 16);
  for (int r = 1; r < 11; ++r) {
    const std::uint8_t* previous = schedule.round[r - 1];
    std::uint8_t* current = schedule.round[r];
    std::uint8_t word[4];
    rotate_and_substitute(previous + 12, word);
    word[0] ^= kRoundConstant[r - 1];
    for (int i = 0; i < 16; ++i) {
      current[i] = previous[i] ^ (i < 4 ? word[i] : current[i - 4]);
    }
  }
  return schedule;
}

}  // namespace fsl
