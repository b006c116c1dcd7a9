// libFuzzer targets. Messages are parsed in Python, which fixes every size from the public plan;
// what a peer controls beyond that are the contents of the arrays that reach the kernels. One
// target for each kernel that reads such bytes; the build names it in FSL_FUZZ_TARGET:
//
//   trees      correction words and roots           to tree_eval and tree_path
//   hints      trees and hints                      to accumulate
//   retrieval  trees                                to answer and authenticate
//   checks     trees and check words                to verify
//   answers    a server's answers                   to row_digests and tags, the client's side
//   gathering  slots, checked by the kernel         to gather
//   matching   candidates, checked by the kernel    to match
//   products   numbers of the field                 to field_multiply
//   rings      ring elements                        to ring_multiply
//
// The input chooses sizes and contents. Buffers have exactly the promised size, so that the address
// sanitizer sees a step beyond one, and every result is compared with that of the portable path.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "check_kernels.h"
#include "dispatch.h"
#include "kernels.h"
#include "schedule.h"
#include "selftest_support.h"

namespace {

using namespace fsl;
using selftest::Bytes;
using selftest::Random;

constexpr unsigned kWidths[] = {2, 3, 4, 6, 8, 16};
constexpr std::uint32_t kLargestNumber = 0xfffffffa;  // of the field modulo 2^32 - 5

void expect(bool holds) {
  if (!holds) std::abort();
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : data_(data, size), more_(selftest::extend(selftest::kEmptyDigest, data, size)) {}

  std::size_t size(std::size_t least, std::size_t most) {
    return data_.ConsumeIntegralInRange<std::size_t>(least, most);
  }
  unsigned width() { return data_.PickValueInArray(kWidths); }
  bool flag() { return data_.ConsumeBool(); }
  // Bytes of the input while they last, then ones that follow from it.
  Bytes bytes(std::size_t count) {
    Bytes out = data_.ConsumeBytes<std::uint8_t>(count);
    const Bytes rest = more_.bytes(count - out.size());
    out.insert(out.end(), rest.begin(), rest.end());
    out.shrink_to_fit();
    return out;
  }
  KeySchedule key() { return expand_key(bytes(16).data()); }

 private:
  FuzzedDataProvider data_;
  Random more_;
};

// Trees as a peer may send them: nothing about the words is honest.
struct PeerTrees {
  explicit PeerTrees(Input& input)
      : num_trees(input.size(1, 40)),
        num_leaves(input.size(1, num_trees < 4 ? 3000 : 200)),
        depth(selftest::depth_of(num_leaves)),
        key(input.key()),
        roots(input.bytes(16 * num_trees)),
        cw(input.bytes(16 * num_trees * depth)),
        cw_right(input.bytes(num_trees * depth)) {
    for (std::uint8_t& bit : cw_right) bit &= 1;
  }
  Trees view() const {
    return {&key,      roots.data(), cw.data(),  16 * num_trees, cw_right.data(),
            num_trees, num_trees,    num_leaves, depth};
  }

  std::size_t num_trees, num_leaves;
  unsigned depth;
  KeySchedule key;
  Bytes roots, cw, cw_right;
};

// Calls `kernel(trees, partition, all units, arena)` of the portable path.
template <class F>
void run_portable(const Trees& trees, std::size_t payload, F kernel) {
  const Scratch scratch(arena_bytes(trees.depth, payload));
  const Partition partition =
      kPortablePath.partition(trees.num_trees, trees.num_leaves, trees.depth, 1);
  kernel(trees, partition, partition.num_units, scratch.get());
}

[[maybe_unused]] void fuzz_trees(Input& input) {
  const PeerTrees trees(input);
  Bytes states(16 * trees.num_trees * trees.num_leaves), expected(states.size());
  tree_eval(trees.view(), states.data());
  run_portable(trees.view(), 16, [&](auto& view, auto& partition, auto end, void* arena) {
    kPortablePath.tree_eval(view, partition, 0, end, expected.data(), arena);
  });
  expect(states == expected);
  std::vector<std::uint64_t> x(trees.num_trees);
  for (std::uint64_t& leaf : x) leaf = input.size(0, (std::size_t{1} << trees.view().depth) - 1);
  Bytes ends(16 * x.size()), smaller(x.size()), same_ends = ends, same_smaller = smaller;
  tree_path({trees.view(), x.data(), ends.data(), smaller.data()});
  kPortablePath.tree_path({trees.view(), x.data(), same_ends.data(), same_smaller.data()});
  expect(ends == same_ends && smaller == same_smaller);
}

[[maybe_unused]] void fuzz_hints(Input& input) {
  const PeerTrees trees(input);
  const unsigned width = input.width();
  const std::size_t payload = width * input.size(1, 40);
  const KeySchedule key = input.key();
  const Bytes hints = input.bytes(payload * trees.num_trees);
  Bytes acc(payload * trees.num_trees * trees.num_leaves, 0xa5), expected = acc;
  AccumulateArgs args = {&key, hints.data(), payload, input.flag(), width, acc.data()};
  accumulate(trees.view(), args, 2);
  args.acc = expected.data();
  run_portable(trees.view(), payload, [&](auto& view, auto& partition, auto end, void* arena) {
    kPortablePath.accumulate(view, partition, 0, end, args, arena);
  });
  expect(acc == expected);
}

// Answers by one bit a row, of as many rows as the trees have bits for, or some fewer.
void answer_by_bits(Input& input, const PeerTrees& trees) {
  const std::size_t num_rows = kBitRows * trees.num_leaves - input.size(0, kBitRows - 1);
  const std::size_t row_bytes = input.size(1, 40);
  const bool shared = input.flag();
  const KeySchedule key = input.key();
  const Bytes words = input.bytes(16 * trees.num_trees);
  const Bytes table = input.bytes((shared ? 1 : trees.num_trees) * num_rows * row_bytes);
  Bytes out(trees.num_trees * row_bytes), expected(out.size());
  Bytes bits(16 * trees.num_trees * trees.num_leaves);
  BitAnswerArgs args = {&key,      words.data(), table.data(),    shared, num_rows,
                        row_bytes, bits.data(),  expected.data(), 0};
  answer_bits(trees.view(), args, out.data(), 2);
  run_portable(trees.view(), 16, [&](auto& view, auto& partition, auto end, void* arena) {
    kPortablePath.leaf_bits(view, partition, 0, end, args, arena);
  });
  const std::size_t units = (shared ? 1 : trees.num_trees) * trees.num_leaves;
  kPortablePath.rows_by_bits(args, trees.num_trees, trees.num_leaves, 0, units);
  expect(out == expected);
}

[[maybe_unused]] void fuzz_retrieval(Input& input) {
  const PeerTrees trees(input);
  if (trees.num_leaves <= 40) answer_by_bits(input, trees);
  const std::size_t row_bytes = input.size(1, 300);
  const bool shared = input.flag();
  const KeySchedule key = input.key();
  const Bytes table = input.bytes((shared ? 1 : trees.num_trees) * trees.num_leaves * row_bytes);
  const Bytes digests = input.bytes((shared ? 1 : trees.num_trees) * trees.num_leaves * 16);
  Bytes plain(trees.num_trees * row_bytes), answers(plain.size()), tags(16 * trees.num_trees);
  Bytes expected(plain.size()), expected_tags(tags.size());
  answer(trees.view(), {table.data(), shared, row_bytes, nullptr, 0}, plain.data(), 2);
  AuthenticateArgs args = {&key,      table.data(), digests.data(), shared,
                           row_bytes, nullptr,      nullptr,        0};
  authenticate(trees.view(), args, answers.data(), tags.data(), 2);
  Bytes again(answers.size()), again_tags(tags.size());
  authenticate({{trees.view(), args, expected.data(), expected_tags.data()},
                {trees.view(), args, again.data(), again_tags.data()}},
               2);
  expect(again == answers && again_tags == tags);
  std::fill(expected.begin(), expected.end(), 0);
  std::fill(expected_tags.begin(), expected_tags.end(), 0);
  args.answers = expected.data();
  args.tags = expected_tags.data();
  run_portable(trees.view(), row_bytes, [&](auto& view, auto& partition, auto end, void* arena) {
    kPortablePath.checks.authenticate[0](view, partition, 0, end, args, arena);
  });
  expect(plain == answers && answers == expected && tags == expected_tags);
}

[[maybe_unused]] void fuzz_checks(Input& input) {
  const PeerTrees trees(input);
  const LeafKeys keys = expand_leaf_keys(input.bytes(16).data());
  const KeySchedule fold_key = input.key();
  const Bytes words = input.bytes(kHashBytes * trees.num_trees);
  const Bytes delta_trees = input.bytes(16 * trees.num_trees);
  const Bytes delta_high = input.bytes(16 * ((trees.num_leaves - 1) / kLowLeaves + 1));
  // One half of the low masks after the other, as the path wants them, with room behind.
  const Bytes low = input.bytes(2 * kLowStride);
  Bytes delta_low(32 * kLowLeaves), fold(16), expected(16);
  for (std::size_t i = 0; i < kLowLeaves; ++i) {
    for (std::size_t half = 0; half < 2; ++half) {
      std::copy_n(&low[half * kLowStride + 16 * i], 16, &delta_low[32 * i + 16 * half]);
    }
  }
  VerifyArgs args = {
      &keys,   &fold_key,         words.data(), input.size(0, 0xffffff00), delta_trees.data(),
      nullptr, delta_high.data(), nullptr};
  verify(trees.view(), args, delta_low.data(), fold.data(), 2);
  args.delta_low = low.data();
  args.fold = expected.data();
  run_portable(trees.view(), 16, [&](auto& view, auto& partition, auto end, void* arena) {
    kPortablePath.checks.verify(view, partition, 0, end, args, arena);
  });
  expect(fold == expected);
}

[[maybe_unused]] void fuzz_answers(Input& input) {
  const std::size_t num_trees = input.size(1, 80), row_bytes = input.size(1, 600);
  const KeySchedule key = input.key();
  const Bytes leaf[2] = {input.bytes(16 * num_trees), input.bytes(16 * num_trees)};
  const Bytes rows = input.bytes(num_trees * row_bytes), row_key = input.bytes(16);
  Bytes out(16 * num_trees), expected(out.size()), digests(out.size()), same(out.size());
  row_digests(row_key.data(), num_trees, {nullptr, rows.data(), row_bytes, digests.data()}, 2);
  const Bytes state = input.bytes(32);
  std::uint32_t words[8];
  std::memcpy(words, state.data(), sizeof words);
  RowDigestArgs rows_of = {words, rows.data(), row_bytes, out.data()};
  active_path().checks.row_digests(rows_of, 0, num_trees);
  rows_of.out = same.data();
  kPortablePath.checks.row_digests(rows_of, 0, num_trees);
  expect(out == same);
  TagsArgs args = {&key, {leaf[0].data(), leaf[1].data()}, digests.data(), num_trees, out.data()};
  tags(args);
  args.out = expected.data();
  kPortablePath.checks.tags[0](args);
  expect(out == expected);
}

template <class Slot>
void gather_slots(Input& input) {
  const unsigned width = input.width();
  const std::size_t row_bytes = width * input.size(0, 20), num_slots = input.size(0, 50);
  const std::size_t num_rows = input.size(0, 50), num_sums = input.size(0, 4);
  const Bytes acc = input.bytes(num_slots * row_bytes);
  std::vector<Slot> slots(num_sums * num_rows);
  const bool honest = input.flag();
  for (Slot& slot : slots) slot = static_cast<Slot>(input.size(0, honest ? 49 : ~Slot{0}));
  const bool valid =
      std::all_of(slots.begin(), slots.end(), [=](Slot slot) { return slot < num_slots; });
  Bytes out(num_rows * row_bytes);
  try {
    gather(GatherArgs<Slot>{acc.data(), num_slots, slots.data(), num_sums, num_rows, row_bytes,
                            width, out.data()},
           2);
    expect(valid);
  } catch (const std::invalid_argument&) {
    expect(!valid);
  }
}

[[maybe_unused]] void fuzz_gathering(Input& input) {
  input.flag() ? gather_slots<std::uint32_t>(input) : gather_slots<std::uint64_t>(input);
}

[[maybe_unused]] void fuzz_matching(Input& input) {
  const std::size_t num_items = input.size(0, 60), num_bins = input.size(0, 80);
  const std::size_t most = input.flag() ? num_bins : 0xffffffff;
  std::vector<std::uint32_t> candidates(3 * num_items);
  for (std::uint32_t& bin : candidates) bin = static_cast<std::uint32_t>(input.size(0, most));
  const bool valid = std::all_of(candidates.begin(), candidates.end(),
                                 [=](std::uint32_t bin) { return bin < num_bins; });
  std::vector<std::int64_t> bins(num_items);
  try {
    match(candidates.data(), num_items, num_bins, bins.data());
    expect(valid);
  } catch (const std::invalid_argument&) {
    expect(!valid);
    return;
  }
  std::vector<bool> taken(num_bins);
  for (std::size_t item = 0; item < num_items; ++item) {
    if (bins[item] < 0) continue;
    const auto bin = static_cast<std::size_t>(bins[item]);
    expect(bin < num_bins && !taken[bin]);
    taken[bin] = true;
    expect(candidates[item] == bin || candidates[num_items + item] == bin ||
           candidates[2 * num_items + item] == bin);
  }
}

std::vector<std::uint32_t> numbers(Input& input, std::size_t count) {
  const Bytes bytes = input.bytes(4 * count);
  std::vector<std::uint32_t> words(count);
  if (count) std::memcpy(words.data(), bytes.data(), 4 * count);
  for (std::uint32_t& word : words) word = std::min(word, kLargestNumber);
  return words;
}

[[maybe_unused]] void fuzz_products(Input& input) {
  const std::size_t rows = input.size(0, 14), columns = input.size(0, 600);
  const std::size_t terms = input.size(0, rows * columns < 800 ? 300 : 40);
  const std::vector<std::uint32_t> left = numbers(input, rows * terms);
  const std::vector<std::uint32_t> right = numbers(input, terms * columns);
  std::vector<std::uint32_t> out(rows * columns), expected(out.size());
  FieldArgs args = {left.data(), right.data(), rows, terms, columns, out.data()};
  field_multiply(args, 2);
  args.out = expected.data();
  kPortablePath.field_multiply(args, 0, columns);
  expect(out == expected);
  for (std::size_t i = 0; i < out.size(); ++i) {
    unsigned __int128 sum = 0;
    for (std::size_t c = 0; c < terms; ++c) {
      sum += std::uint64_t{left[i / columns * terms + c]} * right[c * columns + i % columns];
    }
    expect(out[i] == static_cast<std::uint64_t>(sum % (kLargestNumber + 1ull)));
  }
}

template <class T>
std::vector<T> elements(Input& input, std::size_t count) {
  const Bytes bytes = input.bytes(sizeof(T) * count);
  std::vector<T> words(count);
  if (count) std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

template <class T>
void multiply_and_compare(Input& input) {
  const std::size_t rows = input.size(0, 14), columns = input.size(0, 300);
  const std::size_t terms = input.size(0, rows * columns < 800 ? 600 : 40);
  const std::vector<T> left = elements<T>(input, rows * terms);
  const std::vector<T> right = elements<T>(input, terms * columns);
  std::vector<T> out(rows * columns);
  ring_multiply(RingArgs<T>{left.data(), right.data(), rows, terms, columns, out.data()}, 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    T sum = 0;
    for (std::size_t c = 0; c < terms; ++c) {
      sum += left[i / columns * terms + c] * right[c * columns + i % columns];
    }
    expect(out[i] == sum);
  }
}

[[maybe_unused]] void fuzz_rings(Input& input) {
  if (input.flag()) {
    multiply_and_compare<std::uint32_t>(input);
  } else {
    multiply_and_compare<std::uint64_t>(input);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  FSL_FUZZ_TARGET(input);
  return 0;
}
