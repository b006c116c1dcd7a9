// SHA-256's blocks where `has_sha256()`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsl::client {

// Takes blocks of 64 bytes into the eight words of the state; `constants` are the 64 of FIPS 180-4.
void compress_by_cpu(const std::uint32_t* constants, std::uint32_t* words, const std::uint8_t* data,
                     std::size_t num_blocks);

}  // namespace fsl::client
