// AES-128 key schedule, shared by every CPU path.
#pragma once

#include <cstdint>

namespace fsl {

struct KeySchedule {
  alignas(16) std::uint8_t round[11][16];
};

// FIPS 197 key expansion of the 16 bytes at `key`. No table, no branch on the key.
KeySchedule expand_key(const std::uint8_t* key);

}  // namespace fsl
