// The primitives by themselves, for tests: part of builds with TORCHFSL_CLIENT_TAPE alone.
#include <algorithm>

#include "hash.h"
#include "prove.h"
#include "seal.h"

using namespace fsl::client;

extern "C" {

TFSL_API void tfsl_test_hkdf(const u8* salt, size_t salt_size, const u8* secret, size_t secret_size,
                             const u8* info, size_t info_size, u8* out, size_t size) {
  const Digest prk = hkdf_extract({salt, salt_size}, {secret, secret_size});
  hkdf_expand(prk, {info, info_size}, out, size);
}

TFSL_API void tfsl_test_digest(const u8* part, size_t part_size, const u8* piece, size_t size,
                               u8* out) {
  const Digest digest = digest_with({{part, part_size}}, {piece, size});
  std::copy(digest.begin(), digest.end(), out);
}

TFSL_API int tfsl_test_x25519(const u8* scalar, const u8* point, u8* out) {
  return x25519({scalar, 32}, {point, 32}, out);
}

TFSL_API int tfsl_test_hpke(const u8* secret, const u8* key, const u8* info, size_t info_size,
                            const u8* text, size_t text_size, u8* out) {
  Bytes sealed;
  if (!hpke_seal({secret, 32}, {key, 32}, {info, info_size}, {text, text_size}, sealed)) return 0;
  std::copy(sealed.begin(), sealed.end(), out);
  return 1;
}

TFSL_API int tfsl_test_gcm_open(const u8* key, const u8* nonce, const u8* sealed, size_t size,
                                u8* out) {
  return gcm_open({key, 16}, {nonce, 12}, {sealed, size}, out);
}

TFSL_API void tfsl_test_four_squares(u64 low, u64 high, u64* out) {
  const std::array<u64, 4> roots = four_squares((u128{high} << 64) | low);
  std::copy(roots.begin(), roots.end(), out);
}
}
