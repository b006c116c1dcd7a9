#include "support.h"

#include <unistd.h>
#if defined(__APPLE__) || defined(__EMSCRIPTEN__)
#include <sys/random.h>
#endif

#include <algorithm>

namespace fsl::client {

void Random::fill(u8* out, std::size_t size) {
#if defined(TORCHFSL_CLIENT_TAPE)
  if (tape) {
    if (left < size) fail(TFSL_RANDOM, "parameter", "the tape has ended");
    std::memcpy(out, tape, size);
    tape += size;
    left -= size;
    return;
  }
#endif
  constexpr std::size_t kMost = 256;  // that getentropy gives at once
  for (std::size_t done = 0; done < size; done += kMost) {
    if (getentropy(out + done, std::min(kMost, size - done)) != 0) {
      fail(TFSL_RANDOM, "error", "the system gives no random bytes");
    }
  }
}

Vector<u64> Random::below(u64 bound, u64 count) {
  const std::size_t size = sized(count);
  Vector<u64> words(2 * size), out(size);
  fill(reinterpret_cast<u8*>(words.data()), 16 * size);
  const u64 radix = static_cast<u64>((u128{1} << 64) % bound);
  for (std::size_t i = 0; i < size; ++i) {
    out[i] = (words[2 * i + 1] % bound * radix + words[2 * i] % bound) % bound;
  }
  return out;
}

}  // namespace fsl::client
