// Bump allocation in a thread's scratch memory; arena_bytes() in path.h covers every use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsl {
namespace {

class Arena {
 public:
  explicit Arena(void* memory) : next_(static_cast<std::uint8_t*>(memory)) {}

  // `count` uninitialised objects on a 64-byte boundary.
  template <class T>
  T* take(std::size_t count) {
    std::uint8_t* taken = next_;
    next_ += (count * sizeof(T) + 63) & ~std::size_t{63};
    return reinterpret_cast<T*>(taken);
  }

 private:
  std::uint8_t* next_;
};

}  // namespace
}  // namespace fsl
