// SHA-256 (FIPS 180-4), HMAC, HKDF (RFC 5869), and what torchfsl.crypto.kdf makes of them.
#pragma once

#include <initializer_list>

#include "support.h"

namespace fsl::client {

class Sha256 {
 public:
  Sha256();
  ~Sha256() { wipe(this, sizeof *this); }
  Sha256& add(View data);
  // The length as eight bytes, then the data.
  Sha256& add_framed(View data) { return add(le64(data.size())).add(data); }
  Digest end();

 private:
  u32 state_[8];
  u64 size_ = 0;
  u8 block_[64];
};

Digest sha256(View data);
Digest hmac(View key, std::initializer_list<View> parts);

// The two halves of HKDF; `expand` for up to 32 bytes.
Digest hkdf_extract(View salt, View secret);
void hkdf_expand(View prk, View info, u8* out, std::size_t size);

namespace label {
inline constexpr char kTree[] = "torchfsl tree", kConvert[] = "torchfsl convert",
                      kCheck[] = "torchfsl check", kAuthenticate[] = "torchfsl authenticate",
                      kRoots[] = "torchfsl roots", kDense[] = "torchfsl dense",
                      kPermutation[] = "torchfsl permutation", kRounding[] = "torchfsl rounding",
                      kCommitment[] = "torchfsl commitment", kChunk[] = "torchfsl chunk",
                      kModel[] = "torchfsl model", kRowDigest[] = "torchfsl row digest",
                      kSeed[] = "torchfsl seed", kAnswer[] = "torchfsl answer",
                      kUpload[] = "torchfsl upload", kProof[] = "torchfsl proof";
}

// Text without its final zero.
template <std::size_t n>
View text(const char (&characters)[n]) {
  return {reinterpret_cast<const u8*>(characters), n - 1};
}

// The parts, each behind its length.
Bytes frame(std::initializer_list<View> parts);

// kdf.derive: a key from a secret, for a use in a context.
Key derive(View secret, View label, View context);

// kdf.digest over framed parts; with `piece`, a last part that is hashed in chunks if it is long.
Digest digest(std::initializer_list<View> parts);
Digest digest_with(std::initializer_list<View> parts, View piece);

}  // namespace fsl::client
