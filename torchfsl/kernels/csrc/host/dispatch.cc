#include "dispatch.h"

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace fsl {
namespace {

struct Candidate {
  const Path* path;
  bool available;
};

#if defined(__x86_64__)

// Register state that the operating system saves, bit by bit as XCR0 has it.
std::uint32_t saved_state() {
  std::uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

struct CpuFeatures {
  bool aesni = false;
  bool vaes256 = false;
  bool vaes512 = false;
  bool pclmul = false;
  bool vpclmul = false;
  bool sha256 = false;
};

CpuFeatures detect() {
  constexpr std::uint32_t kAvx512 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  CpuFeatures found;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  found.aesni = (c & bit_AES) && (c & bit_SSSE3) && (c & bit_SSE4_2) && (c & bit_POPCNT);
  found.pclmul = c & bit_PCLMUL;
  if (!found.aesni || !(c & bit_OSXSAVE) || (saved_state() & 0x06) != 0x06) return found;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  found.vpclmul = c & bit_VPCLMULQDQ;
  found.sha256 = b & bit_SHA;
  found.vaes256 = (b & bit_AVX2) && (c & bit_VAES);
  found.vaes512 = found.vaes256 && (b & kAvx512) == kAvx512 && (saved_state() & 0xe6) == 0xe6;
  return found;
}

#elif defined(__aarch64__)

struct CpuFeatures {
  bool aes = false;
  bool pmull = false;
  bool sha256 = false;
};

// User programs may not read the feature registers of Arm; the system tells.
CpuFeatures detect() {
#if defined(__linux__)
  constexpr unsigned long kAes = 1 << 3, kPmull = 1 << 4, kSha2 = 1 << 6;  // HWCAP_..
  const unsigned long found = getauxval(AT_HWCAP);
  return {(found & kAes) != 0, (found & kPmull) != 0, (found & kSha2) != 0};
#elif defined(__APPLE__)
  return {true, true, true};  // all of them have these
#else
  return {};
#endif
}

#endif

const Path& choose_path() {
#if defined(__x86_64__)
  const CpuFeatures cpu = detect();
  const Candidate candidates[] = {{&kVaes512Path, cpu.vaes512},
                                  {&kVaes256Path, cpu.vaes256},
                                  {&kAesNiPath, cpu.aesni},
                                  {&kPortablePath, true}};
#elif defined(__aarch64__)
  const Candidate candidates[] = {{&kArmPath, detect().aes}, {&kPortablePath, true}};
#else
  const Candidate candidates[] = {{&kPortablePath, true}};
#endif
  const char* variable = std::getenv("TORCHFSL_CPU_PATH");
  const std::string wanted = variable ? variable : "";
  std::string offered;
  for (const Candidate& candidate : candidates) {
    if (!candidate.available) continue;
    if (wanted.empty() || wanted == candidate.path->name) return *candidate.path;
    offered += offered.empty() ? "" : ", ";
    offered += candidate.path->name;
  }
  throw std::invalid_argument("TORCHFSL_CPU_PATH is '" + wanted + "'; this machine offers " +
                              offered);
}

bool find_carryless_multiply() {
#if defined(__x86_64__)
  const CpuFeatures cpu = detect();
  const Path* path = &active_path();
  return path == &kAesNiPath ? cpu.pclmul : path != &kPortablePath && cpu.vpclmul;
#elif defined(__aarch64__)
  return &active_path() == &kArmPath && detect().pmull;
#else
  return false;
#endif
}

}  // namespace

const Path& active_path() {
  static const Path& path = choose_path();
  return path;
}

bool has_carryless_multiply() {
  static const bool found = find_carryless_multiply();
  return found;
}

bool has_sha256() {
#if defined(__x86_64__) || defined(__aarch64__)
  static const bool found = &active_path() != &kPortablePath && detect().sha256;
  return found;
#else
  return false;
#endif
}

}  // namespace fsl
