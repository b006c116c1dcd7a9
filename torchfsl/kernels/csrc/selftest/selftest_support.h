// What the selftest and the fuzz targets share: inputs that repeat, trees, and failures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "aes_key.h"
#include "path.h"

namespace fsl::selftest {

// Buffers have exactly the size that a kernel is promised, so that sanitizers see a step beyond it.
using Bytes = std::vector<std::uint8_t>;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const std::string& law) {
  if (!holds) throw Failure(law);
}

// Repeatable numbers (splitmix64); the tests' inputs, never a secret of anybody.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  Bytes bytes(std::size_t count);

 private:
  std::uint64_t state_;
};

// FNV-1a, continued from `digest`.
inline constexpr std::uint64_t kEmptyDigest = 0xcbf29ce484222325;
std::uint64_t extend(std::uint64_t digest, const void* data, std::size_t count);

// Levels of a tree with so many leaves.
unsigned depth_of(std::size_t num_leaves);

// Both parties' trees: `alpha [T]`, `roots` and `leaf` [T, 16], `cw [d, T, 16]`, `cw_right [d, T]`.
struct TreeSet {
  TreeSet(std::size_t num_trees, std::size_t num_leaves);
  // Draws the key, alpha and the roots, and generates the rest on the active path.
  TreeSet(std::size_t num_trees, std::size_t num_leaves, Random& random);

  // Fills correction words and leaves from key, alpha and roots.
  void generate();
  Trees view(int party) const;

  std::size_t num_trees;
  std::size_t num_leaves;
  unsigned depth;
  KeySchedule key = {};
  std::vector<std::uint64_t> alpha;
  Bytes roots[2];
  Bytes cw;
  Bytes cw_right;
  Bytes leaf[2];
};

// Replays the vectors in a file written by scripts/generate/native_vectors.py; returns how many
// there were. Throws Failure.
std::size_t replay_vectors(const std::string& file);

// A digest of what the active path's kernels make of fixed inputs.
struct Digest {
  std::string kernel;
  std::uint64_t value;
};

// Runs every kernel on trees of many shapes and checks the laws that tie the two parties' results
// together. Throws Failure.
std::vector<Digest> run_shapes();

// Runs kernels on one draw of secrets, for valgrind; `kernels` may be empty for all. Throws
// std::invalid_argument.
void run_secrets(unsigned draw, const std::vector<std::string>& kernels);

}  // namespace fsl::selftest
