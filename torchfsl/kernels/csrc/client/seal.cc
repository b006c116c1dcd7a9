#include "seal.h"

#include <algorithm>

#include "dispatch.h"
#include "gf128.h"
#include "hash.h"

namespace fsl::client {
namespace {

// --- GHASH ---------------------------------------------------------------------------------------

// A block as GCM reads it: the first bit is the coefficient of x^0, here the highest one.
u128 block_of(const u8* from, std::size_t size = 16) {
  u8 padded[16] = {};
  std::memcpy(padded, from, size);
  u64 high, low;
  std::memcpy(&high, padded, 8);
  std::memcpy(&low, padded + 8, 8);
  return (u128{__builtin_bswap64(high)} << 64) | __builtin_bswap64(low);
}

u128 product(u128 a, u128 b) {
  const u64 a0 = static_cast<u64>(a), a1 = static_cast<u64>(a >> 64);
  const u64 b0 = static_cast<u64>(b), b1 = static_cast<u64>(b >> 64);
  const u128 low = gf128::multiply(a0, b0), high = gf128::multiply(a1, b1);
  const u128 middle = gf128::multiply(a0 ^ a1, b0 ^ b1) ^ low ^ high;
  u128 lower = low ^ (middle << 64), upper = high ^ (middle >> 64);
  upper = (upper << 1) | (lower >> 127);  // coefficients of x^0 to x^127
  lower <<= 1;                            // and of x^128 to x^255
  const u128 folded = lower ^ (lower << 127) ^ (lower << 126) ^ (lower << 121);
  return upper ^ folded ^ (folded >> 1) ^ (folded >> 2) ^ (folded >> 7);
}

void gcm_tag(const Cipher& cipher, const u8* first_block, View sealed, u8* out) {
  Key hash_key, mask;
  cipher.stream(hash_key.data(), 16);
  u64 counter;
  std::memcpy(&counter, first_block + 8, 8);
  cipher.blocks(first_block, __builtin_bswap64(counter), mask.data(), 16);
  const u128 key = block_of(hash_key.data());
  u128 sum = 0;
  for (std::size_t at = 0; at < sealed.size(); at += 16) {
    const std::size_t size = std::min<std::size_t>(16, sealed.size() - at);
    sum = product(sum ^ block_of(sealed.data() + at, size), key);
  }
  sum = product(sum ^ (u128{8} * sealed.size()), key) ^ block_of(mask.data());
  const u64 words[2] = {__builtin_bswap64(static_cast<u64>(sum >> 64)),
                        __builtin_bswap64(static_cast<u64>(sum))};
  std::memcpy(out, words, 16);
}

// `text` and the stream from the second counter on; to the same place is fine.
void gcm_text(const Cipher& cipher, const u8* first_block, View text, u8* out) {
  u64 counter;
  std::memcpy(&counter, first_block + 8, 8);
  constexpr std::size_t kPiece = 4096;
  Wiped<std::array<u8, kPiece>> mask;
  for (std::size_t at = 0; at < text.size(); at += kPiece) {
    const std::size_t size = std::min(kPiece, text.size() - at);
    cipher.blocks(first_block, __builtin_bswap64(counter) + 1 + at / 16, mask.data(), size);
    for (std::size_t i = 0; i < size; ++i) out[at + i] = text[at + i] ^ mask.value[i];
  }
}

std::array<u8, 16> first_block_of(View nonce) {
  std::array<u8, 16> block = {};
  std::copy_n(nonce.begin(), 12, block.begin());
  block[15] = 1;
  return block;
}

// --- X25519: numbers modulo 2^255 - 19 in five limbs of 51 bits
// ------------------------------------

struct Number {
  u64 limb[5];
};
constexpr u64 kLimb = (u64{1} << 51) - 1;

Number carried(u128* t) {
  Number out;
  u128 carry = 0;
  for (int i = 0; i < 5; ++i) {
    t[i] += carry;
    out.limb[i] = static_cast<u64>(t[i]) & kLimb;
    carry = t[i] >> 51;
  }
  const u128 first = out.limb[0] + carry * 19;
  out.limb[0] = static_cast<u64>(first) & kLimb;
  out.limb[1] += static_cast<u64>(first >> 51);
  return out;
}

Number multiply(const Number& a, const Number& b) {
  u128 t[5] = {};
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 5; ++j) {
      t[(i + j) % 5] += u128{a.limb[i]} * (b.limb[j] * (i + j < 5 ? 1 : 19));
    }
  }
  return carried(t);
}

Number scaled(const Number& a, u64 factor) {
  u128 t[5];
  for (int i = 0; i < 5; ++i) t[i] = u128{a.limb[i]} * factor;
  return carried(t);
}

Number add(const Number& a, const Number& b) {
  Number out;
  for (int i = 0; i < 5; ++i) out.limb[i] = a.limb[i] + b.limb[i];
  return out;
}

// a - b, with four times the modulus added so that no limb is negative.
Number subtract(const Number& a, const Number& b) {
  u128 t[5];
  for (int i = 0; i < 5; ++i) {
    t[i] = u128{a.limb[i]} + 4 * (kLimb - (i ? 0 : 18)) - b.limb[i];
  }
  return carried(t);
}

Number powered(Number a, int squarings) {
  for (int i = 0; i < squarings; ++i) a = multiply(a, a);
  return a;
}

// a^(p - 2).
Number inverse(const Number& a) {
  const Number a2 = powered(a, 1), a9 = multiply(powered(a2, 2), a), a11 = multiply(a9, a2);
  const Number e5 = multiply(powered(a11, 1), a9);  // a^(2^5 - 1), and so on
  const Number e10 = multiply(powered(e5, 5), e5), e20 = multiply(powered(e10, 10), e10);
  const Number e40 = multiply(powered(e20, 20), e20), e50 = multiply(powered(e40, 10), e10);
  const Number e100 = multiply(powered(e50, 50), e50), e200 = multiply(powered(e100, 100), e100);
  return multiply(powered(multiply(powered(e200, 50), e50), 5), a11);
}

Number number_of(const u8* bytes) {
  u64 w[4];
  std::memcpy(w, bytes, 32);
  return {{w[0] & kLimb, (w[0] >> 51 | w[1] << 13) & kLimb, (w[1] >> 38 | w[2] << 26) & kLimb,
           (w[2] >> 25 | w[3] << 39) & kLimb, w[3] >> 12 & kLimb}};
}

void store(Number a, u8* out) {
  for (int round = 0; round < 2; ++round) {
    u128 t[5];
    for (int i = 0; i < 5; ++i) t[i] = a.limb[i];
    a = carried(t);
  }
  // Now below 2^255 + 2^51 or so: subtract p where a + 19 reaches 2^255.
  u64 carry = 19;
  for (int i = 0; i < 5; ++i) carry = (a.limb[i] + carry) >> 51;
  a.limb[0] += 19 * carry;
  for (int i = 0; i < 4; ++i) {
    a.limb[i + 1] += a.limb[i] >> 51;
    a.limb[i] &= kLimb;
  }
  a.limb[4] &= kLimb;
  const u64 w[4] = {a.limb[0] | a.limb[1] << 51, a.limb[1] >> 13 | a.limb[2] << 38,
                    a.limb[2] >> 26 | a.limb[3] << 25, a.limb[3] >> 39 | a.limb[4] << 12};
  std::memcpy(out, w, 32);
}

void exchange(Number& a, Number& b, u64 whether) {
  u64 mask = u64{0} - whether;
  __asm__("" : "+r"(mask));  // no compiler turns this into a branch
  for (int i = 0; i < 5; ++i) {
    const u64 moved = (a.limb[i] ^ b.limb[i]) & mask;
    a.limb[i] ^= moved;
    b.limb[i] ^= moved;
  }
}

struct Ladder {
  Number x2 = {{1}}, z2 = {}, x3, z3 = {{1}};
};

// --- HPKE ----------------------------------------------------------------------------------------

constexpr u8 kKemSuite[] = {'K', 'E', 'M', 0, 0x20};
constexpr u8 kSuite[] = {'H', 'P', 'K', 'E', 0, 0x20, 0, 1, 0, 1};
constexpr char kVersion[] = "HPKE-v1";

Wiped<Digest> labeled_extract(View suite, View salt, View label, View secret) {
  return Wiped<Digest>(hmac(salt, {text(kVersion), suite, label, secret}));
}

void labeled_expand(View suite, View prk, View label, View info, u8* out, u8 size) {
  const u8 length[2] = {0, size}, one[1] = {1};
  const Wiped<Digest> block(hmac(prk, {length, text(kVersion), suite, label, info, one}));
  std::memcpy(out, block.data(), size);
}

}  // namespace

void Cipher::blocks(const u8* prefix, u64 first, u8* out, std::size_t size) const {
  const auto run = active_path().counter_blocks;
  run({&schedule_.value, prefix, first, size / 16, out});
  if (size % 16) {
    Key last;
    run({&schedule_.value, prefix, first + size / 16, 1, last.data()});
    std::memcpy(out + size / 16 * 16, last.data(), size % 16);
  }
}

Bytes stream(View key, std::size_t size) {
  Bytes out(size);
  Cipher(key).stream(out.data(), size);
  return out;
}

Bytes gcm_seal(View key, View nonce, View text) {
  const Cipher cipher(key);
  const std::array<u8, 16> first = first_block_of(nonce);
  Bytes out(text.size() + kTagBytes);
  gcm_text(cipher, first.data(), text, out.data());
  gcm_tag(cipher, first.data(), View(out).first(text.size()), out.data() + text.size());
  return out;
}

bool gcm_open(View key, View nonce, View sealed, u8* out) {
  if (sealed.size() < kTagBytes) return false;
  const Cipher cipher(key);
  const std::array<u8, 16> first = first_block_of(nonce);
  const View text = sealed.first(sealed.size() - kTagBytes);
  Key tag;
  gcm_tag(cipher, first.data(), text, tag.data());
  if (!equal(tag, sealed.last(kTagBytes))) return false;
  gcm_text(cipher, first.data(), text, out);
  return true;
}

bool x25519(View scalar, View point, u8* out) {
  Wiped<std::array<u8, 32>> k;
  std::copy_n(scalar.begin(), 32, k.value.begin());
  k.value[0] &= 248;
  k.value[31] = (k.value[31] & 127) | 64;
  const Number x1 = number_of(point.data());
  Wiped<Ladder> ladder;
  auto& [x2, z2, x3, z3] = ladder.value;
  x3 = x1;
  u64 swapped = 0;
  for (int t = 254; t >= 0; --t) {
    const u64 bit = (k.value[t / 8] >> (t % 8)) & 1;
    exchange(x2, x3, swapped ^ bit);
    exchange(z2, z3, swapped ^ bit);
    swapped = bit;
    const Number a = add(x2, z2), aa = multiply(a, a), b = subtract(x2, z2), bb = multiply(b, b);
    const Number e = subtract(aa, bb);
    const Number da = multiply(subtract(x3, z3), a), cb = multiply(add(x3, z3), b);
    const Number sum = add(da, cb), difference = subtract(da, cb);
    x3 = multiply(sum, sum);
    z3 = multiply(x1, multiply(difference, difference));
    x2 = multiply(aa, bb);
    z2 = multiply(e, add(aa, scaled(e, 121665)));
  }
  exchange(x2, x3, swapped);
  exchange(z2, z3, swapped);
  store(multiply(x2, inverse(z2)), out);
  u8 any = 0;
  for (int i = 0; i < 32; ++i) any |= out[i];
  return any != 0;
}

bool hpke_seal(View secret, View public_key, View info, View text_bytes, Bytes& out) {
  u8 base[32] = {9};
  Digest encapsulated;
  Wiped<Digest> shared, key_secret;
  x25519(secret, base, encapsulated.data());
  Wiped<Digest> both;
  if (!x25519(secret, public_key, both.data())) return false;
  Bytes context(encapsulated.begin(), encapsulated.end());
  context.insert(context.end(), public_key.begin(), public_key.end());
  const Wiped<Digest> prk = labeled_extract(kKemSuite, {}, text("eae_prk"), both);
  labeled_expand(kKemSuite, prk, text("shared_secret"), context, shared.data(), 32);
  const Wiped<Digest> psk_hash = labeled_extract(kSuite, {}, text("psk_id_hash"), {});
  const Wiped<Digest> info_hash = labeled_extract(kSuite, {}, text("info_hash"), info);
  Bytes schedule;
  schedule.reserve(1 + 2 * sizeof(Digest));
  schedule.push_back(0);  // base mode
  schedule.insert(schedule.end(), psk_hash.value.begin(), psk_hash.value.end());
  schedule.insert(schedule.end(), info_hash.value.begin(), info_hash.value.end());
  key_secret = labeled_extract(kSuite, shared, text("secret"), {});
  Key key;
  Wiped<std::array<u8, 12>> nonce;
  labeled_expand(kSuite, key_secret, text("key"), schedule, key.data(), 16);
  labeled_expand(kSuite, key_secret, text("base_nonce"), schedule, nonce.data(), 12);
  const Bytes sealed = gcm_seal(key, nonce, text_bytes);
  out.assign(encapsulated.begin(), encapsulated.end());
  out.insert(out.end(), sealed.begin(), sealed.end());
  return true;
}

}  // namespace fsl::client
