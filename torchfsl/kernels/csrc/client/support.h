// What all of the client core uses: errors, memory that is wiped, bytes, random bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "torchfsl_client.h"

namespace fsl::client {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i64 = std::int64_t;
using u128 = unsigned __int128;
using View = std::span<const u8>;

// Thrown inside, caught where the C interface begins. `code` is one of torchfsl.errors.CODES.
struct Failure {
  tfsl_status status;
  const char* code;
  std::string text;
};

[[noreturn]] inline void fail(tfsl_status status, const char* code, std::string text) {
  throw Failure{status, code, std::move(text)};
}

inline void wipe(void* memory, std::size_t size) {
  if (!size) return;
  std::memset(memory, 0, size);
  __asm__ __volatile__("" : : "r"(memory) : "memory");
}

// Memory is wiped before it is given back.
template <class T>
struct Wiping {
  using value_type = T;
  Wiping() = default;
  template <class U>
  Wiping(const Wiping<U>&) {}
  T* allocate(std::size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* memory, std::size_t count) {
    wipe(memory, count * sizeof(T));
    std::allocator<T>().deallocate(memory, count);
  }
  template <class U>
  bool operator==(const Wiping<U>&) const {
    return true;
  }
};
template <class T>
using Vector = std::vector<T, Wiping<T>>;
using Bytes = Vector<u8>;

// Something of a fixed size that is wiped: keys, seeds, key schedules.
template <class T>
struct Wiped {
  T value = {};
  Wiped() = default;
  explicit Wiped(const T& given) : value(given) {}
  Wiped(const Wiped&) = default;
  Wiped& operator=(const Wiped&) = default;
  ~Wiped() { wipe(&value, sizeof value); }
  u8* data() { return reinterpret_cast<u8*>(&value); }
  const u8* data() const { return reinterpret_cast<const u8*>(&value); }
  operator View() const { return {data(), sizeof value}; }
};
using Key = Wiped<std::array<u8, 16>>;
using Digest = std::array<u8, 32>;

inline View view_of(const std::string& text) {
  return {reinterpret_cast<const u8*>(text.data()), text.size()};
}

// A number of values of up to 16 bytes, of which there may be more than an address tells apart.
inline std::size_t sized(u64 count) {
  if (count > SIZE_MAX / 16) throw std::bad_alloc();
  return static_cast<std::size_t>(count);
}

inline std::array<u8, 8> le64(u64 number) {
  std::array<u8, 8> out;
  std::memcpy(out.data(), &number, 8);  // the kernels are for little-endian machines, too
  return out;
}

// Whether two strings of bytes are equal, in time that does not depend on their contents.
inline bool equal(View a, View b) {
  if (a.size() != b.size()) return false;
  u8 different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different |= a[i] ^ b[i];
  return different == 0;
}

// Bytes from the system; in builds for tests from a tape, if there is one.
class Random {
 public:
  void fill(u8* out, std::size_t size);
  Key key() {
    Key drawn;
    fill(drawn.data(), 16);
    return drawn;
  }
  // Uniform numbers below `bound` <= 2^32, up to a bias of bound / 2^128.
  Vector<u64> below(u64 bound, u64 count);

  const u8* tape = nullptr;
  std::size_t left = 0;
};

}  // namespace fsl::client
