// Streams, AES-128-GCM (NIST SP 800-38D), X25519 (RFC 7748) and HPKE's base mode (RFC 9180).
// No branch and no address depends on a key, a scalar or a text.
#pragma once

#include "aes_key.h"
#include "support.h"

namespace fsl::client {

// A key's schedule, wiped.
class Cipher {
 public:
  explicit Cipher(View key) : schedule_(expand_key(key.data())) {}
  // kdf.stream: `size` bytes of counter mode.
  void stream(u8* out, std::size_t size) const { blocks(kNoPrefix, 0, out, size); }
  // AES of (prefix, first), (prefix, first + 1), ..; a last block may be cut.
  void blocks(const u8* prefix, u64 first, u8* out, std::size_t size) const;

 private:
  static constexpr u8 kNoPrefix[8] = {};
  Wiped<KeySchedule> schedule_;
};
Bytes stream(View key, std::size_t size);

inline constexpr std::size_t kTagBytes = 16, kSealedSeedBytes = 64;

// Ciphertext and tag, under a nonce of 12 bytes and without further data.
Bytes gcm_seal(View key, View nonce, View text);
// False if the tag does not fit; `out` has 16 bytes less than `sealed`.
bool gcm_open(View key, View nonce, View sealed, u8* out);

// scalar * point; false for a point of small order.
bool x25519(View scalar, View point, u8* out);

// hpke.seal: encapsulated key of `secret` (32 random bytes), then the text under `info`; false if
// the public key is none.
bool hpke_seal(View secret, View public_key, View info, View text, Bytes& out);

}  // namespace fsl::client
