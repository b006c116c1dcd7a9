// The trees alone, by two calls of AES a node as the library has them, and by one as a half-tree
// (Guo et al. 2022, Figure 8) would. Built and run by scripts/bench/half_tree.py; no part of the
// library. Prints seconds of CPU time a leaf of both, turn by turn.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "tree_walk.h"
#if defined(__AVX512F__)
#include "vec_vaes512.h"
using V = fsl::Vaes512;
#else
#include "vec_vaes256.h"
using V = fsl::Vaes256;
#endif

namespace fsl {
namespace {

using R = V::R;
constexpr unsigned kLevels = 8;  // so that a group of trees stays in the first-level cache
constexpr std::size_t kLeaves = std::size_t{1} << kLevels;

// Children of `nodes` parents: left = H(s) + t * words[0], right = H(s) + s + t * words[1].
template <int nodes, bool settled>
FSL_INLINE void expand_half_nodes(const V::Key& key, const R* words, const R* parents,
                                  R* children) {
  R x[nodes], last[nodes], other[nodes];
  FSL_UNROLL
  for (int i = 0; i < nodes; ++i) {
    const R state = V::load(parents + i);
    R low, high;
    if constexpr (settled) {
      const auto* const parent = reinterpret_cast<const std::uint8_t*>(parents + i);
      low = V::doubled(parent);
      high = V::doubled(parent + 8);
    } else {
      low = V::low_words(state, state);
      high = V::high_words(state, state);
    }
    const auto control = V::control_from(low);
    x[i] = whiten<V>(key, V::sigma_from(low, high));  // the control bit is hashed, too
    last[i] = xor_chosen<V>(last_key<V>(key, x[i]), control, words[0]);
    other[i] = xor_chosen<V>(state, control, words[1]);  // words[1]: what right has beside left
  }
  hash_whitened<V>(key, x, last);
  FSL_UNROLL
  for (int i = 0; i < nodes; ++i) {
    V::store(children + 2 * i, x[i]);
    V::store(children + 2 * i + 1, V::bit_xor(x[i], other[i]));
  }
}

template <int step = 8>
void expand_half_level(const V::Key& key, const R* words, R* nodes, std::size_t width) {
  constexpr std::size_t kSettled = 4 * step;
  for (; width >= step + kSettled; width -= step) {
    expand_half_nodes<step, true>(key, words, nodes + width - step, nodes + 2 * (width - step));
  }
  for (; width >= step; width -= step) {
    expand_half_nodes<step, false>(key, words, nodes + width - step, nodes + 2 * (width - step));
  }
  if constexpr (step > 1) {
    if (width) expand_half_level<step / 2>(key, words, nodes, width);
  }
}

struct Tree {
  std::vector<R> words;  // two a level, repeated in all lanes
};

void leaves_of(const V::Key& key, const Tree& tree, R root, bool half, R* nodes) {
  V::store(nodes, root);
  for (unsigned level = 0; level < kLevels; ++level) {
    const R* const words = tree.words.data() + 2 * level;
    const std::size_t width = std::size_t{1} << level;
    if (half) {
      expand_half_level(key, words, nodes, width);
    } else {
      expand_level<V, 1>(key, words, nodes, width, nullptr);
    }
  }
}

R random_block() {
  alignas(64) std::uint8_t bytes[sizeof(R)];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<std::uint8_t>(std::rand());
  for (std::size_t i = 16; i < sizeof(R); ++i) bytes[i] = bytes[i - 16];
  return V::load(bytes);
}

// Correction words of a half-tree whose point is leaf `alpha`: both parties' states are equal off
// it, and differ in the control bit on it, which proves the code above.
Tree half_tree(const V::Key& key, std::size_t alpha, R roots[2]) {
  roots[0] = V::clear(random_block(), V::lsb());
  roots[1] = V::bit_or(V::clear(random_block(), V::lsb()), V::lsb());
  R own[2] = {roots[0], roots[1]};
  Tree tree;
  const R zero[2] = {V::zero(), V::zero()};
  for (unsigned level = 0; level < kLevels; ++level) {
    const bool right = alpha >> (kLevels - 1 - level) & 1;
    R children[2][2];
    for (int b = 0; b < 2; ++b) {
      expand_half_nodes<1, false>(key, zero, own + b, children[b]);
    }
    // Off the path both children's differences go: left and right differ by s0 + s1 beside it.
    const R lost = V::bit_xor(children[0][!right], children[1][!right]);
    const R one = V::lsb();
    R left = V::clear(lost, one);  // control bits of both sides are set apart
    const auto lsb_of = [&](R r) { return V::bit_and(r, one); };
    const R left_bit =
        V::bit_xor(lsb_of(V::bit_xor(children[0][0], children[1][0])), right ? V::zero() : one);
    const R right_bit =
        V::bit_xor(lsb_of(V::bit_xor(children[0][1], children[1][1])), right ? one : V::zero());
    left = V::bit_xor(left, left_bit);
    tree.words.push_back(left);
    tree.words.push_back(V::bit_xor(left_bit, right_bit));
    for (int b = 0; b < 2; ++b) {
      R both[2];
      expand_half_nodes<1, false>(key, tree.words.data() + 2 * level, own + b, both);
      own[b] = both[right];
    }
  }
  return tree;
}

bool point_of(const V::Key& key, std::size_t alpha) {
  R roots[2];
  const Tree tree = half_tree(key, alpha, roots);
  std::vector<R> nodes[2] = {std::vector<R>(2 * kLeaves), std::vector<R>(2 * kLeaves)};
  for (int b = 0; b < 2; ++b) leaves_of(key, tree, roots[b], true, nodes[b].data());
  for (std::size_t i = 0; i < kLeaves; ++i) {
    std::uint8_t states[2][sizeof(R)];
    for (int b = 0; b < 2; ++b) V::store(states[b], nodes[b][i]);
    const bool equal = std::memcmp(states[0], states[1], sizeof(R)) == 0;
    const bool differs = (states[0][0] ^ states[1][0]) & 1;
    if (i == alpha ? !differs : !equal) return false;
  }
  return true;
}

double seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace
}  // namespace fsl

int main(int, char** arguments) {
  using namespace fsl;
  const int turns = std::atoi(arguments[1]);
  const std::uint8_t secret[16] = {1, 2, 3};
  const KeySchedule schedule = expand_key(secret);
  const V::Key key = V::make_key(schedule);
  for (std::size_t alpha : {std::size_t{0}, std::size_t{37}, kLeaves - 1}) {
    if (!point_of(key, alpha)) return std::puts("the half-tree is no point function"), 1;
  }
  R roots[2];
  const Tree tree = half_tree(key, 5, roots);
  std::vector<R> nodes(2 * kLeaves);
  constexpr int kTrees = 2000;
  for (int turn = 0; turn <= turns; ++turn) {
    double spent[2];
    for (const bool half : {false, true}) {
      const double start = seconds();
      for (int i = 0; i < kTrees; ++i) leaves_of(key, tree, roots[i & 1], half, nodes.data());
      spent[half] = (seconds() - start) / kTrees / kLeaves / V::kLanes;
    }
    if (turn) std::printf("%.6e %.6e\n", spent[0], spent[1]);
  }
  return 0;
}
