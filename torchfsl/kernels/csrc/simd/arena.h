// Common to the code of all paths. Bump allocation in a thread's scratch memory; arena_bytes() in
// path.h covers every use.
#pragma once

#include <cstddef>
#include <cstdint>

// Inner loops live in registers only if everything in them is one function.
#define FSL_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define FSL_UNROLL _Pragma("unroll")
#else
#define FSL_UNROLL _Pragma("GCC unroll 16")
#endif
#define FSL_INLINE_LAMBDA __attribute__((always_inline))

#if defined(__SANITIZE_ADDRESS__)
#define FSL_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FSL_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(FSL_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(from, size)
#define ASAN_UNPOISON_MEMORY_REGION(from, size)
#endif

namespace fsl {
namespace {

// Bytes behind every piece of an arena that nothing may touch, where a sanitizer watches.
#if defined(FSL_ADDRESS_SANITIZER)
inline constexpr std::size_t kArenaGap = 64;
#else
inline constexpr std::size_t kArenaGap = 0;
#endif

class Arena {
 public:
  explicit Arena(void* memory) : next_(static_cast<std::uint8_t*>(memory)) {}

  // `count` uninitialised objects on a 64-byte boundary.
  template <class T>
  T* take(std::size_t count) {
    std::uint8_t* taken = next_;
    next_ += ((count * sizeof(T) + 63) & ~std::size_t{63}) + kArenaGap;
    ASAN_UNPOISON_MEMORY_REGION(taken, count * sizeof(T));
    ASAN_POISON_MEMORY_REGION(taken + count * sizeof(T), next_ - taken - count * sizeof(T));
    return reinterpret_cast<T*>(taken);
  }

 private:
  std::uint8_t* next_;
};

}  // namespace
}  // namespace fsl
