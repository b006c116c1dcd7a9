// Kernels on secrets, for valgrind. From one draw to the next the secrets change and the public
// parameters do not. Under callgrind a kernel's instructions are counted, and every draw must give
// the same count. Under memcheck secrets count as undefined memory, and so does all that is
// computed from them: a branch or an address that depends on them is an error.
// scripts/checks/constant_time.py does both.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "check_kernels.h"
#include "kernels.h"
#include "proofs.h"
#include "selftest_support.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#include <valgrind/memcheck.h>
#define FSL_HAVE_VALGRIND 1
#else
#define FSL_HAVE_VALGRIND 0
#define CALLGRIND_TOGGLE_COLLECT
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(name) static_cast<void>(name)
#define VALGRIND_MAKE_MEM_UNDEFINED(at, size) (static_cast<void>(at), static_cast<void>(size))
#define VALGRIND_MAKE_MEM_DEFINED(at, size) (static_cast<void>(at), static_cast<void>(size))
#endif

namespace fsl::selftest {
namespace {

template <class T>
void hide(const std::vector<T>& secret) {
  VALGRIND_MAKE_MEM_UNDEFINED(secret.data(), secret.size() * sizeof(T));
}
template <class T>
void reveal(const std::vector<T>& result) {
  VALGRIND_MAKE_MEM_DEFINED(result.data(), result.size() * sizeof(T));
}

template <class F>
void measured(F kernel) {
  CALLGRIND_TOGGLE_COLLECT;
  kernel();
  CALLGRIND_TOGGLE_COLLECT;
}

// Secrets of one draw: the first two draws are all zeros and all ones, where a shortcut would show.
class Secrets {
 public:
  explicit Secrets(unsigned draw) : draw_(draw), random_(1000 + draw) {}

  Bytes bytes(std::size_t count) {
    if (draw_ < 2) return Bytes(count, draw_ ? 0xff : 0);
    return random_.bytes(count);
  }
  // Numbers of the field, below 2^32 - 5.
  std::vector<std::uint32_t> words(std::size_t count) {
    std::vector<std::uint32_t> out(count);
    for (std::uint32_t& word : out) {
      word =
          draw_ < 2 ? draw_ * 0xfffffffau : static_cast<std::uint32_t>(random_.below(0xfffffffb));
    }
    hide(out);
    return out;
  }
  Bytes hidden(std::size_t count) {
    const Bytes out = bytes(count);
    hide(out);
    return out;
  }
  std::vector<std::uint64_t> numbers(std::size_t count, std::uint64_t bound) {
    std::vector<std::uint64_t> out(count, draw_ ? bound - 1 : 0);
    if (draw_ >= 2) {
      for (std::uint64_t& number : out) number = random_.below(bound);
    }
    hide(out);
    return out;
  }
  // Root states with the control bit that a party's roots have.
  Bytes roots(std::size_t count, int party) {
    Bytes out = bytes(16 * count);
    for (std::size_t i = 0; i < out.size(); i += 16) {
      out[i] = static_cast<std::uint8_t>((out[i] & 0xfe) | party);
    }
    hide(out);
    return out;
  }

 private:
  const unsigned draw_;
  Random random_;
};

// Full groups of every path, and a rest.
constexpr std::size_t kTrees = 37;
constexpr std::size_t kLeaves = 61;
constexpr unsigned kWidths[] = {2, 3, 4, 6, 8, 16};

void run_key_schedule(Secrets& secrets) {
  const Bytes key = secrets.hidden(16);
  Bytes out(sizeof(KeySchedule) + sizeof(LeafKeys));
  measured([&] {
    const KeySchedule schedule = expand_key(key.data());
    const LeafKeys keys = expand_leaf_keys(key.data());
    out[0] = static_cast<std::uint8_t>(schedule.round[10][0] ^ keys.schedule[2].round[10][0]);
  });
}

void run_tree_gen(Secrets& secrets) {
  const Bytes key = secrets.hidden(16);
  TreeSet trees(kTrees, kLeaves);
  trees.alpha = secrets.numbers(kTrees, kLeaves);
  for (int party = 0; party < 2; ++party) trees.roots[party] = secrets.roots(kTrees, party);
  hide(trees.alpha);
  for (const Bytes& roots : trees.roots) hide(roots);
  measured([&] {
    trees.key = expand_key(key.data());
    trees.generate();
  });
}

void run_tree_path(Secrets& secrets) {
  const Bytes key = secrets.hidden(16);
  TreeSet trees(kTrees, kLeaves);
  trees.roots[0] = secrets.roots(kTrees, 0);
  trees.cw = secrets.hidden(trees.cw.size());
  for (std::uint8_t& bit : trees.cw_right) bit = 1;
  const std::vector<std::uint64_t> x = secrets.numbers(kTrees, kLeaves);
  Bytes states(16 * kTrees), smaller(kTrees);
  measured([&] {
    trees.key = expand_key(key.data());
    tree_path({trees.view(0), x.data(), states.data(), smaller.data()});
  });
}

void run_hint_gen(Secrets& secrets) {
  const Bytes key = secrets.hidden(16);
  const Bytes leaf[2] = {secrets.hidden(16 * kTrees), secrets.hidden(16 * kTrees)};
  for (const unsigned width : kWidths) {
    for (const unsigned nu : {0u, 2u}) {
      const std::size_t row_bytes = (nu ? 1 : 5) * width;
      const Bytes values = secrets.hidden(row_bytes * kTrees);
      const std::vector<std::uint64_t> slots = secrets.numbers(kTrees, std::uint64_t{1} << nu);
      Bytes hints((row_bytes << nu) * kTrees);
      measured([&] {
        const KeySchedule schedule = expand_key(key.data());
        hint_gen({&schedule,
                  {leaf[0].data(), leaf[1].data()},
                  values.data(),
                  slots.data(),
                  kTrees,
                  row_bytes << nu,
                  nu,
                  width,
                  hints.data()});
      });
      reveal(hints);
    }
  }
}

void run_check_gen(Secrets& secrets) {
  const Bytes key = secrets.hidden(16);
  const Bytes leaf[2] = {secrets.hidden(16 * kTrees), secrets.hidden(16 * kTrees)};
  const std::vector<std::uint64_t> alpha = secrets.numbers(kTrees, kLeaves);
  Bytes words(kHashBytes * kTrees);
  measured([&] {
    const LeafKeys keys = expand_leaf_keys(key.data());
    check_gen({&keys, {leaf[0].data(), leaf[1].data()}, alpha.data(), kTrees, 5, words.data()});
  });
}

void run_convert(Secrets& secrets) {
  const Bytes key = secrets.hidden(16), states = secrets.hidden(16 * kTrees);
  for (const std::size_t payload : {8u, 72u, 100u}) {
    Bytes out(payload * kTrees);
    measured([&] {
      const KeySchedule schedule = expand_key(key.data());
      convert({&schedule, states.data(), kTrees, payload, out.data()});
    });
  }
}

// The tags that a client expects of the answers it has put together.
void run_tags(Secrets& secrets) {
  const Bytes key = secrets.hidden(16);
  const Bytes leaf[2] = {secrets.hidden(16 * kTrees), secrets.hidden(16 * kTrees)};
  const Bytes digests = secrets.hidden(16 * kTrees);
  Bytes out(16 * kTrees);
  measured([&] {
    const KeySchedule schedule = expand_key(key.data());
    tags({&schedule, {leaf[0].data(), leaf[1].data()}, digests.data(), kTrees, out.data()});
  });
}

// The rows that a client has put together.
void run_row_digests(Secrets& secrets) {
  const Bytes key = secrets.hidden(16);
  for (const std::size_t row_bytes : {5u, 72u, 300u}) {
    const Bytes rows = secrets.hidden(row_bytes * kTrees);
    Bytes out(16 * kTrees);
    measured(
        [&] { row_digests(key.data(), kTrees, {nullptr, rows.data(), row_bytes, out.data()}); });
  }
}

// Trees whose correction words are public and whose key and roots are not.
TreeSet with_secret_roots(Secrets& secrets, std::size_t num_trees, std::size_t num_leaves,
                          int party) {
  Random random(7);
  TreeSet trees(num_trees, num_leaves, random);
  trees.key = expand_key(secrets.hidden(16).data());
  trees.roots[party] = secrets.roots(num_trees, party);
  hide(trees.roots[party]);
  return trees;
}

void run_tree_eval(Secrets& secrets) {
  for (const std::size_t num_leaves : {kLeaves, std::size_t{9001}}) {
    const std::size_t num_trees = num_leaves == kLeaves ? kTrees : 1;
    const TreeSet trees = with_secret_roots(secrets, num_trees, num_leaves, 0);
    Bytes states(16 * num_trees * num_leaves);
    measured([&] { tree_eval(trees.view(0), states.data()); });
  }
}

void run_accumulate(Secrets& secrets) {
  const TreeSet trees = with_secret_roots(secrets, kTrees, kLeaves, 1);
  for (const unsigned width : kWidths) {
    for (const std::size_t row_values : {1u, 18u}) {
      const std::size_t payload = row_values * width;
      const Bytes hints = secrets.hidden(payload * kTrees);
      Bytes acc = secrets.hidden(payload * kTrees * kLeaves);
      const AccumulateArgs args = {&trees.key, hints.data(), payload, 1, width, acc.data()};
      std::vector<std::int64_t> sums(2 * kTrees * row_values);
      measured([&] {
        accumulate(trees.view(1), args, 1);
        accumulate({{trees.view(1), args}, {trees.view(1), args}}, 1);
        if (width == 8 || width == 16) return;
        accumulate_lifted({{trees.view(1), args}},
                          {row_values, sums.data(), sums.data() + sums.size() / 2}, 1);
      });
    }
  }
}

void run_answer(Secrets& secrets) {
  const TreeSet trees = with_secret_roots(secrets, kTrees, kLeaves, 0);
  for (const std::size_t row_bytes : {5u, 72u, 300u}) {
    Random random(9);
    const Bytes table = random.bytes(row_bytes * kLeaves), digests = random.bytes(16 * kLeaves);
    Bytes answers(row_bytes * kTrees), tags(16 * kTrees);
    measured([&] {
      answer(trees.view(0), {table.data(), true, row_bytes, nullptr, 0}, answers.data(), 1);
      authenticate(trees.view(0),
                   {&trees.key, table.data(), digests.data(), true, row_bytes, nullptr, nullptr, 0},
                   answers.data(), tags.data(), 1);
    });
  }
}

void run_answer_bits(Secrets& secrets) {
  constexpr std::size_t kRows = 1000;
  const TreeSet trees = with_secret_roots(secrets, kTrees, (kRows - 1) / kBitRows + 1, 0);
  for (const std::size_t row_bytes : {5u, 72u, 300u}) {
    Random random(9);
    const Bytes table = random.bytes(row_bytes * kRows), words = secrets.hidden(16 * kTrees);
    Bytes answers(row_bytes * kTrees);
    measured([&] {
      answer_bits(
          trees.view(0),
          {&trees.key, words.data(), table.data(), true, kRows, row_bytes, nullptr, nullptr, 0},
          answers.data(), 1);
    });
  }
}

void run_verify(Secrets& secrets) {
  const TreeSet trees = with_secret_roots(secrets, kTrees, kLeaves, 1);
  const Bytes key = secrets.hidden(16), words = secrets.hidden(kHashBytes * kTrees);
  const Bytes delta = secrets.hidden(32 * kLowLeaves);
  Bytes fold(16);
  measured([&] {
    const LeafKeys keys = expand_leaf_keys(key.data());
    const KeySchedule fold_key = expand_key(key.data());
    verify(trees.view(1),
           {&keys, &fold_key, words.data(), 3, delta.data(), nullptr, delta.data(), nullptr},
           delta.data(), fold.data(), 1);
  });
}

// Values are secret, the slots they come from are not.
void run_gather(Secrets& secrets) {
  Random random(11);
  std::vector<std::uint64_t> slots(3 * 100);
  for (std::uint64_t& slot : slots) slot = random.below(200);
  for (const unsigned width : kWidths) {
    for (const std::size_t row_values : {1u, 5u}) {
      const std::size_t row_bytes = row_values * width;
      const Bytes acc = secrets.hidden(200 * row_bytes);
      Bytes out = secrets.hidden(100 * row_bytes);
      measured([&] {
        gather(GatherArgs<std::uint64_t>{acc.data(), 200, slots.data(), 3, 100, row_bytes, width,
                                         out.data()},
               1);
      });
    }
  }
}

// Two functions that do leak, to show that the methods notice: a branch that both see, and an
// address that only memcheck sees.
volatile std::uint64_t leaked;

__attribute__((noinline)) void run_leaky_branch(Secrets& secrets) {
  const std::vector<std::uint64_t> alpha = secrets.numbers(kTrees, kLeaves);
  measured([&] {
    for (const std::uint64_t position : alpha) {
      if (position > kLeaves / 2) leaked = leaked + 1;
    }
  });
}

__attribute__((noinline)) void run_leaky_address(Secrets& secrets) {
  Random random(13);
  const Bytes table = random.bytes(kLeaves);
  const std::vector<std::uint64_t> alpha = secrets.numbers(kTrees, kLeaves);
  measured([&] {
    for (const std::uint64_t position : alpha) leaked = table[position];
  });
}

// Shares of a choice and of masks; both factors count as secret.
void run_field_multiply(Secrets& secrets) {
  constexpr std::size_t kRows = 7, kTerms = 9, kColumns = 53;
  const std::vector<std::uint32_t> left = secrets.words(kRows * kTerms);
  const std::vector<std::uint32_t> right = secrets.words(kTerms * kColumns);
  std::vector<std::uint32_t> out(kRows * kColumns);
  measured(
      [&] { field_multiply({left.data(), right.data(), kRows, kTerms, kColumns, out.data()}, 1); });
}

// Masked weights and masked activations.
void run_ring_multiply(Secrets& secrets) {
  constexpr std::size_t kRows = 7, kTerms = 300, kColumns = 53;
  const std::vector<std::uint32_t> left = secrets.words(kRows * kTerms);
  const std::vector<std::uint32_t> right = secrets.words(kTerms * kColumns);
  std::vector<std::uint32_t> out(kRows * kColumns);
  const std::vector<std::uint64_t> wide_left = secrets.numbers(kRows * kTerms, 1ull << 63);
  const std::vector<std::uint64_t> wide_right = secrets.numbers(kTerms * kColumns, 1ull << 63);
  std::vector<std::uint64_t> wide(kRows * kColumns);
  measured([&] {
    ring_multiply(
        RingArgs<std::uint32_t>{left.data(), right.data(), kRows, kTerms, kColumns, out.data()}, 1);
    ring_multiply(RingArgs<std::uint64_t>{wide_left.data(), wide_right.data(), kRows, kTerms,
                                          kColumns, wide.data()},
                  1);
  });
}

// Leaf states, hints, a proof and its values; root, scales and point are public.
void run_proofs(Secrets& secrets) {
  constexpr std::size_t kTrees = 3, kLeaves = 200, kPayload = 84, kOrder = 16, kWires = 5;
  const KeySchedule key = expand_key(Bytes(16, 7).data());
  const Bytes states = secrets.bytes(16 * kTrees * kLeaves);
  const Bytes hints = secrets.bytes(kTrees * kPayload);
  const std::vector<std::uint64_t> values = secrets.numbers(2 * kOrder * kWires, 1ull << 63);
  std::vector<std::int64_t> low(kTrees * kPayload), high(low.size()), carried(kLeaves * 12);
  std::vector<std::uint64_t> out(4 * kOrder), opened(2 * kWires + 2);
  constexpr std::uint64_t kScales[4] = {1, 0, 0, 2};
  measured([&] {
    const LeafArgs args = {&key, states.data(), kTrees, kLeaves, hints.data(), kPayload, 1};
    for (const unsigned width : {2u, 3u, 4u, 6u})
      leaf_sums(args, width, low.data(), high.data(), 1);
    carry_sums(args, carried.data(), low.data());
    square_sums({values.data(), kOrder, kWires, {5, 9}, out.data()}, 1);
    const auto* rows = reinterpret_cast<const std::int64_t*>(values.data());
    query_proof({values.data(),
                 kWires,
                 2 * kOrder - 1,
                 kOrder,
                 {5, 9},
                 {7, 3},
                 {rows, rows + 9},
                 8,
                 kScales,
                 values.data() + 20,
                 3,
                 opened.data(),
                 out.data()});
    field_transform({values.data(), kOrder, {5, 9}, out.data()});
  });
}

struct Kernel {
  const char* name;
  void (*run)(Secrets&);
};
constexpr Kernel kKernels[] = {{"key_schedule", run_key_schedule},
                               {"tree_gen", run_tree_gen},
                               {"tree_path", run_tree_path},
                               {"hint_gen", run_hint_gen},
                               {"check_gen", run_check_gen},
                               {"convert", run_convert},
                               {"tags", run_tags},
                               {"row_digests", run_row_digests},
                               {"field_multiply", run_field_multiply},
                               {"ring_multiply", run_ring_multiply},
                               {"proofs", run_proofs},
                               {"tree_eval", run_tree_eval},
                               {"accumulate", run_accumulate},
                               {"answer", run_answer},
                               {"answer_bits", run_answer_bits},
                               {"verify", run_verify},
                               {"gather", run_gather}};
constexpr Kernel kLeaky[] = {{"leaky_branch", run_leaky_branch},
                             {"leaky_address", run_leaky_address}};

void run_kernel(const Kernel& kernel, unsigned draw) {
  Secrets secrets(draw);
  CALLGRIND_ZERO_STATS;
  kernel.run(secrets);
  CALLGRIND_DUMP_STATS_AT(kernel.name);
}

}  // namespace

void run_secrets(unsigned draw, const std::vector<std::string>& kernels) {
  if (!FSL_HAVE_VALGRIND) throw std::invalid_argument("built without valgrind's headers");
  if (kernels.empty()) {
    for (const Kernel& kernel : kKernels) run_kernel(kernel, draw);
  }
  for (const std::string& wanted : kernels) {
    const Kernel* found = nullptr;
    for (const Kernel& kernel : kKernels) found = wanted == kernel.name ? &kernel : found;
    for (const Kernel& kernel : kLeaky) found = wanted == kernel.name ? &kernel : found;
    if (!found) throw std::invalid_argument("no kernel " + wanted);
    run_kernel(*found, draw);
  }
}

}  // namespace fsl::selftest
