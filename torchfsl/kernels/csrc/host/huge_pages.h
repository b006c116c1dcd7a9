// Large pages for large arrays: a page that is new to a process costs a call to the system, and a
// scattered access to many of them a walk through their table. Systems give them where asked.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fsl {

// Asks for large pages where an array that was not written yet holds some whole ones. What the
// system answers changes nothing but time.
inline void ask_for_huge_pages([[maybe_unused]] void* array,
                               [[maybe_unused]] std::size_t num_bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::size_t kLeast = std::size_t{1} << 22, kPage = 4096;  // as NumPy has it
  if (num_bytes < kLeast) return;
  const auto from = reinterpret_cast<std::uintptr_t>(array);
  const std::uintptr_t first = (from + kPage - 1) / kPage * kPage;
  const std::uintptr_t end = (from + num_bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

}  // namespace fsl
