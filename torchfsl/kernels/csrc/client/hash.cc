#include "hash.h"

#include <algorithm>
#include <bit>

#include "dispatch.h"
#include "sha256_cpu.h"

namespace fsl::client {
namespace {

constexpr u32 kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

void compress(u32* state, const u8* data, std::size_t num_blocks) {
#if defined(__x86_64__) || defined(__aarch64__)
  if (has_sha256()) return compress_by_cpu(kRound, state, data, num_blocks);
#endif
  u32 w[64];
  for (; num_blocks; --num_blocks, data += 64) {
    for (int i = 0; i < 16; ++i) {
      std::memcpy(w + i, data + 4 * i, 4);
      w[i] = __builtin_bswap32(w[i]);
    }
    for (int i = 16; i < 64; ++i) {
      const u32 a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    u32 v[8];
    std::copy_n(state, 8, v);
    for (int i = 0; i < 64; ++i) {
      const u32 a = v[0], e = v[4];
      const u32 first = v[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & v[5]) ^ (~e & v[6])) + kRound[i] + w[i];
      const u32 second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                         ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
      v[7] = v[6], v[6] = v[5], v[5] = e, v[4] = v[3] + first;
      v[3] = v[2], v[2] = v[1], v[1] = a, v[0] = first + second;
    }
    for (int i = 0; i < 8; ++i) state[i] += v[i];
  }
  wipe(w, sizeof w);
}

}  // namespace

Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

Sha256& Sha256::add(View data) {
  const std::size_t held = size_ % 64;
  size_ += data.size();
  if (held) {
    const std::size_t taken = std::min(64 - held, data.size());
    if (taken) std::memcpy(block_ + held, data.data(), taken);
    data = data.subspan(taken);
    if (held + taken < 64) return *this;
    compress(state_, block_, 1);
  }
  compress(state_, data.data(), data.size() / 64);
  data = data.subspan(data.size() / 64 * 64);
  if (!data.empty()) std::memcpy(block_, data.data(), data.size());
  return *this;
}

Digest Sha256::end() {
  const u64 bits = __builtin_bswap64(8 * size_);
  const u8 padding[64] = {0x80};
  u8 length[8];
  std::memcpy(length, &bits, 8);
  add({padding, static_cast<std::size_t>(1 + (119 - size_ % 64) % 64)}).add(length);
  Digest out;
  for (int i = 0; i < 8; ++i) {
    const u32 word = __builtin_bswap32(state_[i]);
    std::memcpy(out.data() + 4 * i, &word, 4);
  }
  return out;
}

Digest sha256(View data) { return Sha256().add(data).end(); }

Digest hmac(View key, std::initializer_list<View> parts) {
  Wiped<std::array<u8, 64>> pad;
  if (key.size() > 64) {
    const Digest hashed = sha256(key);
    std::copy(hashed.begin(), hashed.end(), pad.value.begin());
  } else {
    std::copy(key.begin(), key.end(), pad.value.begin());
  }
  for (u8& byte : pad.value) byte ^= 0x36;
  Sha256 inner, outer;
  inner.add(pad);
  for (const View part : parts) inner.add(part);
  for (u8& byte : pad.value) byte ^= 0x36 ^ 0x5c;
  return outer.add(pad).add(inner.end()).end();
}

Digest hkdf_extract(View salt, View secret) { return hmac(salt, {secret}); }

void hkdf_expand(View prk, View info, u8* out, std::size_t size) {
  const u8 one[1] = {1};
  const Wiped<Digest> block(hmac(prk, {info, one}));
  std::memcpy(out, block.data(), std::min(size, sizeof block.value));
}

Bytes frame(std::initializer_list<View> parts) {
  std::size_t size = 0;
  for (const View part : parts) size += 8 + part.size();
  Bytes out;
  out.reserve(size);
  for (const View part : parts) {
    const std::array<u8, 8> length = le64(part.size());
    out.insert(out.end(), length.begin(), length.end());
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

Key derive(View secret, View label, View context) {
  const Wiped<Digest> prk(hkdf_extract({}, secret));
  Key key;
  hkdf_expand(prk, frame({label, context}), key.data(), 16);
  return key;
}

Digest digest(std::initializer_list<View> parts) {
  Sha256 total;
  for (const View part : parts) total.add_framed(part);
  return total.end();
}

Digest digest_with(std::initializer_list<View> parts, View piece) {
  Sha256 total;
  for (const View part : parts) total.add_framed(part);
  if (piece.size() <= kChunkBytes) return total.add_framed(piece).end();
  total.add(le64(piece.size()));
  for (std::size_t start = 0; start < piece.size(); start += kChunkBytes) {
    const View chunk = piece.subspan(start, std::min(kChunkBytes, piece.size() - start));
    total.add(Sha256().add_framed(text(label::kChunk)).add_framed(chunk).end());
  }
  return total.end();
}

}  // namespace fsl::client
