// Every kernel on trees of many shapes: no level, ragged groups and domains, trees that are cut
// into subtrees, several stages of expansion, several threads. The laws hold for any correct path;
// the digests tell whether two paths agree byte for byte.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "check_kernels.h"
#include "dispatch.h"
#include "kernels.h"
#include "parallel.h"
#include "proofs.h"
#include "schedule.h"
#include "selftest_support.h"

namespace fsl::selftest {
namespace {

constexpr unsigned kWidths[] = {2, 3, 4, 6, 8, 16};

class Digests {
 public:
  void note(const std::string& kernel, const Bytes& bytes) {
    if (digests_.empty() || digests_.back().kernel != kernel) {
      digests_.push_back({kernel, kEmptyDigest});
    }
    std::uint64_t& value = digests_.back().value;
    value = extend(value, bytes.data(), bytes.size());
  }
  const std::vector<Digest>& all() const { return digests_; }

 private:
  std::vector<Digest> digests_;
};

struct Shape {
  std::size_t num_trees, num_leaves;
};
constexpr Shape kShapes[] = {{1, 1},    {5, 1},    {3, 2},   {7, 3},   {9, 9},
                             {16, 60},  {17, 61},  {35, 33}, {2, 130}, {20, 600},
                             {3, 1025}, {1, 3000}, {1, 9001}};

std::string named(const char* kernel, const Shape& shape) {
  return std::string(kernel) + " " + std::to_string(shape.num_trees) + "x" +
         std::to_string(shape.num_leaves);
}

// Trees, and the states of all their leaves: equal everywhere but at alpha.
void run_trees(Digests& digests, Random& random) {
  for (const Shape& shape : kShapes) {
    const std::string name = named("tree", shape);
    const TreeSet trees(shape.num_trees, shape.num_leaves, random);
    digests.note(name, trees.cw);
    digests.note(name, trees.cw_right);
    Bytes states[2];
    for (int party = 0; party < 2; ++party) {
      states[party].resize(16 * shape.num_trees * shape.num_leaves);
      tree_eval(trees.view(party), states[party].data());
      digests.note(name, states[party]);
    }
    for (std::size_t i = 0; i < shape.num_trees * shape.num_leaves; ++i) {
      const std::size_t tree = i / shape.num_leaves, leaf = i % shape.num_leaves;
      const bool equal = std::memcmp(&states[0][16 * i], &states[1][16 * i], 16) == 0;
      require(equal == (leaf != trees.alpha[tree]), name + ": states differ at the wrong leaves");
      if (equal) continue;
      require((states[0][16 * i] ^ states[1][16 * i]) & 1, name + ": control bits agree at alpha");
      for (int party = 0; party < 2; ++party) {
        require(!std::memcmp(&states[party][16 * i], &trees.leaf[party][16 * tree], 16),
                name + ": the generated leaf is not the evaluated one");
      }
    }
  }
}

// One leaf of each tree: as in the whole tree, and the parties' bits compare it with alpha.
void run_paths(Digests& digests, Random& random) {
  for (const Shape& shape : kShapes) {
    const std::string name = named("path", shape);
    const TreeSet trees(shape.num_trees, shape.num_leaves, random);
    std::vector<std::uint64_t> x(shape.num_trees);
    for (std::uint64_t& leaf : x) leaf = random.below(shape.num_leaves);
    Bytes smaller[2];
    for (int party = 0; party < 2; ++party) {
      Bytes every(16 * shape.num_trees * shape.num_leaves), states(16 * shape.num_trees);
      smaller[party].resize(shape.num_trees);
      tree_eval(trees.view(party), every.data());
      tree_path({trees.view(party), x.data(), states.data(), smaller[party].data()});
      digests.note(name, states);
      digests.note(name, smaller[party]);
      for (std::size_t i = 0; i < shape.num_trees; ++i) {
        require(!std::memcmp(&states[16 * i], &every[16 * (i * shape.num_leaves + x[i])], 16),
                name + ": a path does not end in its leaf");
      }
    }
    for (std::size_t i = 0; i < shape.num_trees; ++i) {
      require((smaller[0][i] ^ smaller[1][i]) == (x[i] < trees.alpha[i]),
              name + ": the bits do not compare");
    }
  }
}

Bytes make_hints(const TreeSet& trees, const Bytes& values, const std::vector<std::uint64_t>& slots,
                 unsigned nu, unsigned width) {
  HintArgs args = {};
  args.key = &trees.key;
  args.leaf[0] = trees.leaf[0].data();
  args.leaf[1] = trees.leaf[1].data();
  args.values = values.data();
  args.slots = slots.data();
  args.num_trees = trees.num_trees;
  args.nu = nu;
  args.payload = (values.size() / trees.num_trees) << nu;
  args.width = width;
  Bytes hints(trees.num_trees * args.payload);
  args.out = hints.data();
  hint_gen(args);
  return hints;
}

void add_shares(const TreeSet& trees, const Bytes& hints, int party, unsigned width, Bytes& acc,
                unsigned num_threads) {
  AccumulateArgs args = {};
  args.key = &trees.key;
  args.hints = hints.data();
  args.payload = hints.size() / trees.num_trees;
  args.party = static_cast<unsigned>(party);
  args.width = width;
  args.acc = acc.data();
  accumulate(trees.view(party), args, num_threads);
}

// Both parties' shares add up to the values at alpha and the slot, and to zero elsewhere.
void run_shares(Digests& digests, Random& random, const Shape& shape, unsigned width, unsigned nu,
                std::size_t row_values) {
  const std::string name = named("shares", shape) + " width " + std::to_string(width);
  const TreeSet trees(shape.num_trees, shape.num_leaves, random);
  const std::size_t row_bytes = row_values * width;
  const Bytes values = random.bytes(shape.num_trees * row_bytes);
  std::vector<std::uint64_t> slots(shape.num_trees);
  for (std::uint64_t& slot : slots) slot = random.below(std::uint64_t{1} << nu);
  const Bytes hints = make_hints(trees, values, slots, nu, width);
  digests.note(name, hints);
  Bytes acc((shape.num_trees * shape.num_leaves * row_bytes) << nu), expected(acc.size());
  add_shares(trees, hints, 0, width, acc, 1);
  digests.note(name, acc);
  add_shares(trees, hints, 1, width, acc, 1);
  for (std::size_t tree = 0; tree < shape.num_trees; ++tree) {
    const std::size_t leaf = tree * shape.num_leaves + trees.alpha[tree];
    const std::size_t row = (leaf << nu) + slots[tree];
    std::memcpy(&expected[row * row_bytes], &values[tree * row_bytes], row_bytes);
  }
  require(acc == expected, name + ": shares do not add up to the values");
}

// Folds of the two parties agree exactly if every check word fits.
void run_checks(Digests& digests, Random& random) {
  for (const Shape& shape : kShapes) {
    const std::string name = named("check", shape);
    TreeSet trees(shape.num_trees, shape.num_leaves, random);
    const LeafKeys keys = expand_leaf_keys(random.bytes(16).data());
    const KeySchedule fold_key = expand_key(random.bytes(16).data());
    Bytes words(kHashBytes * shape.num_trees);
    CheckGenArgs args = {&keys,
                         {trees.leaf[0].data(), trees.leaf[1].data()},
                         trees.alpha.data(),
                         shape.num_trees,
                         0xfffffff0 - shape.num_trees,
                         words.data()};
    check_gen(args);
    digests.note(name, words);
    const Bytes delta_trees = random.bytes(16 * shape.num_trees);
    const Bytes delta_low = random.bytes(32 * kLowLeaves);
    const Bytes delta_high = random.bytes(16 * ((shape.num_leaves - 1) / kLowLeaves + 1));
    VerifyArgs verification = {};
    verification.keys = &keys;
    verification.key_fold = &fold_key;
    verification.check_words = words.data();
    verification.first_tree = args.first_tree;
    verification.delta_trees = delta_trees.data();
    verification.delta_high = delta_high.data();
    for (const bool honest : {true, false}) {
      words[kHashBytes * (shape.num_trees / 2) + 20] ^= honest ? 0 : 0x10;
      Bytes fold[2] = {Bytes(16), Bytes(16)};
      for (int party = 0; party < 2; ++party) {
        verify(trees.view(party), verification, delta_low.data(), fold[party].data(), 1);
        digests.note(name, fold[party]);
      }
      require((fold[0] == fold[1]) == honest, name + ": a wrong verdict");
    }
  }
}

Bytes digests_of(const Bytes& rows, std::size_t row_bytes) {
  const std::size_t num_rows = rows.size() / row_bytes;
  Bytes out(16 * num_rows);
  row_digests(Bytes(16, 7).data(), num_rows, {nullptr, rows.data(), row_bytes, out.data()}, 1);
  return out;
}

// Tags as the client expects them, by one of the two multiplications.
Bytes expected_tags(const TreeSet& trees, const Bytes& digests, bool carryless) {
  TagsArgs args = {};
  args.key = &trees.key;
  args.leaf[0] = trees.leaf[0].data();
  args.leaf[1] = trees.leaf[1].data();
  args.digests = digests.data();
  args.num_trees = trees.num_trees;
  Bytes out(16 * trees.num_trees);
  args.out = out.data();
  active_path().checks.tags[carryless](args);
  return out;
}

// Answers XOR to the chosen rows, and tags to what the client expects.
void run_answers(Digests& digests, Random& random, const Shape& shape, std::size_t row_bytes,
                 bool shared) {
  const std::string name = named("answer", shape);
  const TreeSet trees(shape.num_trees, shape.num_leaves, random);
  const Bytes table = random.bytes((shared ? 1 : shape.num_trees) * shape.num_leaves * row_bytes);
  const Bytes digests_of_table = digests_of(table, row_bytes);
  digests.note(name, digests_of_table);
  Bytes rows(shape.num_trees * row_bytes), tags(16 * shape.num_trees), chosen(rows.size());
  for (int party = 0; party < 2; ++party) {
    Bytes plain(rows.size()), answers(rows.size()), own_tags(tags.size());
    AnswerArgs args = {table.data(), shared, row_bytes, nullptr, 0};
    answer(trees.view(party), args, plain.data(), 1);
    AuthenticateArgs checked = {
        &trees.key, table.data(), digests_of_table.data(), shared, row_bytes, nullptr, nullptr, 0};
    authenticate(trees.view(party), checked, answers.data(), own_tags.data(), 1);
    require(plain == answers, name + ": the two answers differ");
    digests.note(name, answers);
    digests.note(name, own_tags);
    xor_into(rows.data(), answers.data(), rows.size());
    xor_into(tags.data(), own_tags.data(), tags.size());
  }
  for (std::size_t tree = 0; tree < shape.num_trees; ++tree) {
    const std::size_t row = (shared ? 0 : tree * shape.num_leaves) + trees.alpha[tree];
    std::memcpy(&chosen[tree * row_bytes], &table[row * row_bytes], row_bytes);
  }
  require(rows == chosen, name + ": answers do not XOR to the chosen rows");
  const Bytes own = digests_of(rows, row_bytes);
  require(expected_tags(trees, own, false) == tags, name + ": a tag does not fit");
  if (has_carryless_multiply()) {
    require(expected_tags(trees, own, true) == tags, name + ": the two multiplications differ");
  }
}

// The words that make both parties' bits differ at `alpha`, and there alone.
Bytes words_for(const TreeSet& trees, const KeySchedule& key,
                const std::vector<std::uint64_t>& alpha) {
  Bytes words(16 * trees.num_trees), other(words.size());
  convert({&key, trees.leaf[0].data(), trees.num_trees, 16, words.data()});
  convert({&key, trees.leaf[1].data(), trees.num_trees, 16, other.data()});
  xor_into(words.data(), other.data(), words.size());
  for (std::size_t tree = 0; tree < trees.num_trees; ++tree) {
    const std::size_t bit = alpha[tree] % kBitRows;
    words[16 * tree + bit / 8] ^= static_cast<std::uint8_t>(1 << (bit % 8));
  }
  return words;
}

// Answers by bits XOR to the chosen rows, whatever the number of threads.
void run_bit_answers(Digests& digests, Random& random, std::size_t num_trees, std::size_t num_rows,
                     std::size_t row_bytes, bool shared) {
  const std::size_t num_leaves = (num_rows - 1) / kBitRows + 1;
  const std::string name = named("answer_bits", {num_trees, num_rows});
  TreeSet trees(num_trees, num_leaves, random);
  std::vector<std::uint64_t> alpha(num_trees);
  for (std::size_t tree = 0; tree < num_trees; ++tree) {
    alpha[tree] = random.below(num_rows);
    trees.alpha[tree] = alpha[tree] / kBitRows;
  }
  trees.generate();
  const KeySchedule key = expand_key(random.bytes(16).data());
  const Bytes words = words_for(trees, key, alpha);
  const Bytes table = random.bytes((shared ? 1 : num_trees) * num_rows * row_bytes);
  Bytes rows(num_trees * row_bytes);
  for (int party = 0; party < 2; ++party) {
    Bytes answers(rows.size()), same(rows.size());
    const BitAnswerArgs args = {&key,      words.data(), table.data(), shared, num_rows,
                                row_bytes, nullptr,      nullptr,      0};
    answer_bits(trees.view(party), args, answers.data(), 1);
    answer_bits(trees.view(party), args, same.data(), 3);
    require(answers == same, name + ": the number of threads changes a result");
    digests.note(name, answers);
    xor_into(rows.data(), answers.data(), rows.size());
  }
  for (std::size_t tree = 0; tree < num_trees; ++tree) {
    const std::uint8_t* row =
        table.data() + ((shared ? 0 : tree * num_rows) + alpha[tree]) * row_bytes;
    require(std::equal(row, row + row_bytes, rows.data() + tree * row_bytes),
            name + ": answers do not XOR to the chosen rows");
  }
}

// Several reports at once add up to what they do one by one.
void run_batch(Random& random, const Shape& shape, unsigned width, std::size_t payload,
               unsigned num_threads) {
  Bytes acc((shape.num_trees * shape.num_leaves) * payload), expected = acc;
  std::vector<TreeSet> reports;
  std::vector<Bytes> hints;
  std::vector<AccumulateJob> jobs;
  for (int i = 0; i < 3; ++i) {
    reports.emplace_back(shape.num_trees, shape.num_leaves, random);
    hints.push_back(random.bytes(shape.num_trees * payload));
    add_shares(reports[i], hints[i], 1, width, expected, 1);
  }
  for (std::size_t i = 0; i < reports.size(); ++i) {
    AccumulateArgs args = {};
    args.key = &reports[i].key;
    args.hints = hints[i].data();
    args.payload = payload;
    args.party = 1;
    args.width = width;
    args.acc = acc.data();
    jobs.push_back({reports[i].view(1), args});
  }
  accumulate(jobs, num_threads);
  require(acc == expected, named("batch", shape) + ": several reports at once differ");
}

Bytes gathered(const Bytes& acc, const std::vector<std::uint32_t>& slots, std::size_t num_rows,
               std::size_t row_bytes, unsigned width, unsigned num_threads) {
  Bytes out(num_rows * row_bytes, 0xff);
  gather(GatherArgs<std::uint32_t>{acc.data(), acc.size() / row_bytes, slots.data(),
                                   slots.size() / num_rows, num_rows, row_bytes, width, out.data()},
         num_threads);
  return out;
}

// Products modulo p against sums in wide integers, in buffers of exactly the size promised.
void run_field(Digests& digests, Random& random) {
  constexpr std::uint64_t kModulus = 0xfffffffb;
  struct Sizes {
    std::size_t rows, terms, columns;
  };
  for (const Sizes& s :
       {Sizes{1, 1, 1}, {6, 54, 255}, {7, 66, 259}, {13, 3, 1000}, {2, 4000, 18}}) {
    std::vector<std::uint32_t> left(s.rows * s.terms), right(s.terms * s.columns);
    for (auto* words : {&left, &right}) {
      for (std::uint32_t& word : *words) {
        const bool edge = random.below(4) == 0;
        word = static_cast<std::uint32_t>(edge ? kModulus - 1 : random.below(kModulus));
      }
    }
    Bytes results[2];
    for (const unsigned num_threads : {1u, 3u}) {
      std::vector<std::uint32_t> out(s.rows * s.columns);
      field_multiply({left.data(), right.data(), s.rows, s.terms, s.columns, out.data()},
                     num_threads);
      for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint64_t sum = 0;
        for (std::size_t c = 0; c < s.terms; ++c) {
          const std::uint64_t factor = left[i / s.columns * s.terms + c];
          sum = (sum + factor * right[c * s.columns + i % s.columns] % kModulus) % kModulus;
        }
        require(out[i] == sum, "field: a wrong product");
      }
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(out.data());
      results[num_threads > 1].assign(bytes, bytes + out.size() * sizeof out[0]);
    }
    require(results[0] == results[1], "field: the number of threads changes a result");
    digests.note("field " + std::to_string(s.terms), results[0]);
  }
}

// Both parties' lifted shares of states that agree cancel, whatever the hints and the threads.
void run_proofs(Digests& digests, Random& random) {
  const KeySchedule key = expand_key(random.bytes(16).data());
  for (const std::size_t num_leaves : {1u, 127u, 129u, 500u}) {
    constexpr std::size_t kTrees = 5, kPayload = 84;
    const Bytes states = random.bytes(16 * kTrees * num_leaves),
                hints = random.bytes(kTrees * kPayload);
    LeafArgs args = {&key, states.data(), kTrees, num_leaves, hints.data(), kPayload, 0};
    for (const unsigned width : {2u, 3u, 4u, 6u}) {
      const std::size_t count = kTrees * kPayload / width;
      std::vector<std::int64_t> sums[2], highs[2];
      for (const unsigned party : {0u, 1u}) {
        args.party = party;
        sums[party].resize(count);
        highs[party].resize(count);
        leaf_sums(args, width, sums[party].data(), highs[party].data(), 1 + 2 * party);
      }
      for (std::size_t i = 0; i < count; ++i) {
        require(sums[0][i] == -sums[1][i] && highs[0][i] == -highs[1][i],
                "proofs: shares do not cancel");
      }
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(sums[0].data());
      digests.note("leaf_sums " + std::to_string(width), Bytes(bytes, bytes + 8 * count));
    }
    std::vector<std::int64_t> carried(num_leaves * 12), sums(kTrees * 24);
    carry_sums(args, carried.data(), sums.data());
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(carried.data());
    digests.note("carry_sums", Bytes(bytes, bytes + 8 * carried.size()));
  }
  std::vector<std::uint64_t> values(2 * 8 * 3), one(32), many(32);
  for (std::uint64_t& word : values) word = random.next() >> 1;
  square_sums({values.data(), 8, 3, {3, 4}, one.data()}, 1);
  square_sums({values.data(), 8, 3, {3, 4}, many.data()}, 3);
  require(one == many, "proofs: the number of threads changes a result");
  std::vector<std::int64_t> integers(5 * 3);
  for (std::int64_t& number : integers) number = static_cast<std::int64_t>(random.next());
  std::vector<std::uint64_t> opened(2 * 4);
  query_proof({values.data(),
               3,
               15,
               8,
               {3, 4},
               {5, 6},
               {integers.data(), integers.data()},
               5,
               values.data() + 3,
               values.data() + 8,
               2,
               opened.data(),
               one.data()});
  field_transform({values.data(), 8, {3, 4}, one.data()});
}

// Sums over leaves beside accumulation are those of the leaves, and what is added does not change.
// Returns what is added.
Bytes check_lifted(const TreeSet& trees, std::size_t num_trees, std::size_t num_leaves,
                   unsigned width, std::size_t values, std::size_t lifted, Random& random) {
  const std::size_t payload = values * width;
  const Bytes hints = random.bytes(num_trees * payload);
  Bytes plain = random.bytes(num_trees * num_leaves * payload), acc = plain;
  AccumulateArgs args = {&trees.key, hints.data(), payload, 1, width, plain.data()};
  accumulate(trees.view(0), args, 1);
  Bytes states(16 * num_trees * num_leaves);
  tree_eval(trees.view(0), states.data());
  std::vector<std::int64_t> low(num_trees * values), high(low.size());
  leaf_sums({&trees.key, states.data(), num_trees, num_leaves, hints.data(), payload, 0}, width,
            low.data(), high.data(), 1);
  for (const unsigned num_threads : {1u, 3u}) {
    Bytes own = acc;
    std::vector<std::int64_t> lower(num_trees * lifted), upper(lower.size());
    args.acc = own.data();
    accumulate_lifted({{trees.view(0), args}},
                      {lifted, lower.data(), width > 4 ? upper.data() : nullptr}, num_threads);
    require(own == plain, "lifted: another accumulator");
    for (std::size_t i = 0; i < lower.size(); ++i) {
      const std::size_t at = i / lifted * values + i % lifted;
      require(lower[i] == low[at] && upper[i] == high[at], "lifted: another sum");
    }
  }
  return plain;
}

void run_lifted(Digests& digests, Random& random) {
  Random more(7);  // of its own, as others' numbers follow
  for (const std::size_t num_leaves : {1u, 65u, 700u, 9000u}) {
    const std::size_t num_trees = num_leaves > 1000 ? 1 : 11;
    const TreeSet trees(num_trees, num_leaves, random);
    for (const unsigned width : {2u, 3u, 4u, 6u}) {
      digests.note("lifted " + std::to_string(width),
                   check_lifted(trees, num_trees, num_leaves, width, 19, 18, random));
      // Every kind of column: halves, one block, two, four and their ends.
      for (const std::size_t values : {1u, 2u, 4u, 8u, 17u, 18u, 33u, 38u}) {
        check_lifted(trees, num_trees, num_leaves, width, values, (values + 1) / 2, more);
        check_lifted(trees, num_trees, num_leaves, width, values, values, more);
      }
    }
  }
}

template <class T>
std::vector<T> ring_words(Random& random, std::size_t count) {
  std::vector<T> words(count);
  for (T& word : words) {
    word = random.below(4) == 0 ? static_cast<T>(-1) : static_cast<T>(random.below(1ull << 63) * 3);
  }
  return words;
}

// Products modulo 2^32 or 2^64 against plain sums, in buffers of exactly the size promised.
template <class T>
void run_ring(Digests& digests, Random& random) {
  struct Sizes {
    std::size_t rows, terms, columns;
  };
  for (const Sizes& s : {Sizes{1, 1, 1}, {3, 0, 5}, {6, 54, 255}, {7, 300, 67}, {13, 3, 1000}}) {
    const std::vector<T> left = ring_words<T>(random, s.rows * s.terms);
    const std::vector<T> right = ring_words<T>(random, s.terms * s.columns);
    Bytes results[2];
    for (const unsigned num_threads : {1u, 3u}) {
      std::vector<T> out(s.rows * s.columns, T{7});
      ring_multiply(RingArgs<T>{left.data(), right.data(), s.rows, s.terms, s.columns, out.data()},
                    num_threads);
      for (std::size_t i = 0; i < out.size(); ++i) {
        T sum = 0;
        for (std::size_t c = 0; c < s.terms; ++c) {
          sum += left[i / s.columns * s.terms + c] * right[c * s.columns + i % s.columns];
        }
        require(out[i] == sum, "ring: a wrong product");
      }
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(out.data());
      results[num_threads > 1].assign(bytes, bytes + out.size() * sizeof out[0]);
    }
    require(results[0] == results[1], "ring: the number of threads changes a result");
    digests.note("ring " + std::to_string(8 * sizeof(T)) + " " + std::to_string(s.terms),
                 results[0]);
  }
}

// So many narrow rows that sums are taken one after the other.
template <class Value>
void run_gather(Random& random) {
  constexpr std::size_t kRows = (std::size_t{1} << 20) + 3, kSlots = 5000, kBytes = sizeof(Value);
  const Bytes acc = random.bytes(kBytes * kSlots);
  std::vector<std::uint32_t> slots(3 * kRows);
  for (std::uint32_t& slot : slots) slot = static_cast<std::uint32_t>(random.below(kSlots));
  Bytes expected(kBytes * kRows);
  for (std::size_t x = 0; x < kRows; ++x) {
    auto sum = static_cast<Value>(-1);
    for (std::size_t i = 0; i < 3; ++i) {
      Value value;
      std::memcpy(&value, &acc[kBytes * slots[i * kRows + x]], kBytes);
      sum = static_cast<Value>(sum + value);
    }
    std::memcpy(&expected[kBytes * x], &sum, kBytes);
  }
  require(gathered(acc, slots, kRows, kBytes, kBytes, 3) == expected,
          "gather: a wrong sum of narrow rows");
}

// The order of keys that are all different, and of keys of which many are equal or agree in all
// bits that are looked at first.
void run_order(Random& random) {
  for (const std::size_t count : {0u, 1u, 2u, 40000u, 100000u}) {
    for (const std::uint64_t kept : {~std::uint64_t{0}, std::uint64_t{0x8000000000000007},
                                     ~(std::uint64_t{0xffffffff} << 14)}) {
      std::vector<std::uint64_t> keys(count);
      for (std::uint64_t& key : keys) {
        key = (random.below(std::uint64_t{1} << 32) << 32 | random.below(std::uint64_t{1} << 32)) &
              kept;
      }
      for (const unsigned num_threads : {1u, 3u}) {
        std::vector<std::uint32_t> order(count);
        stable_order(keys.data(), count, order.data(), num_threads);
        for (std::size_t i = 1; i < count; ++i) {
          const auto a = order[i - 1], b = order[i];
          require(keys[a] < keys[b] || (keys[a] == keys[b] && a < b), "order: a wrong order");
        }
      }
    }
  }
}

// Every unit of work is handed out once, for any number of threads.
void run_ranges() {
  for (const std::size_t units : {0u, 1u, 2u, 7u, 64u, 1000u, 100003u}) {
    for (const unsigned threads : {1u, 2u, 3u, 8u}) {
      std::vector<std::atomic<unsigned>> taken(units);
      run_parallel(units, threads, [&](Ranges& ranges) {
        for (std::size_t begin, end; ranges.next(begin, end);) {
          require(begin < end && end <= units, "ranges: one is empty or leads beyond the end");
          for (std::size_t i = begin; i < end; ++i) taken[i].fetch_add(1);
        }
      });
      for (const auto& count : taken) require(count == 1, "ranges: a unit is not taken once");
    }
  }
}

// Results that need several threads to have enough work, equal for any number of them.
void run_threads(Digests& digests, Random& random) {
  for (const Shape& shape : {Shape{150, 240}, Shape{1, 40000}}) {
    const TreeSet trees(shape.num_trees, shape.num_leaves, random);
    const Bytes hints = random.bytes(8 * shape.num_trees);
    const Bytes table = random.bytes(shape.num_leaves * 16);
    std::vector<std::uint32_t> slots(3 * 20000);
    for (std::uint32_t& slot : slots) {
      slot = static_cast<std::uint32_t>(random.below(shape.num_leaves));
    }
    Bytes results[2];
    for (const unsigned num_threads : {1u, 3u}) {
      Bytes& all = results[num_threads > 1];
      Bytes acc(shape.num_trees * shape.num_leaves * 8), answers(16 * shape.num_trees);
      Bytes rows(answers.size()), tags(answers.size()), fold(16);
      add_shares(trees, hints, 1, 4, acc, num_threads);
      const Trees view = trees.view(0);
      answer(view, {table.data(), true, 16, nullptr, 0}, answers.data(), num_threads);
      authenticate(view, {&trees.key, table.data(), table.data(), true, 16, nullptr, nullptr, 0},
                   rows.data(), tags.data(), num_threads);
      require(answers == rows, "threads: the two answers differ");
      Bytes again(rows.size()), again_tags(tags.size()), peers(rows.size()), peer_tags(tags.size());
      const AuthenticateArgs asked = {&trees.key, table.data(), table.data(), true,
                                      16,         nullptr,      nullptr,      0};
      authenticate({{trees.view(1), asked, peers.data(), peer_tags.data()},
                    {view, asked, again.data(), again_tags.data()}},
                   num_threads);
      require(again == rows && again_tags == tags, "threads: an answer changes in a batch");
      const LeafKeys keys = {{trees.key, trees.key, trees.key}};
      const Bytes words(kHashBytes * shape.num_trees), delta(32 * kLowLeaves);
      const VerifyArgs verification = {&keys,        &trees.key, words.data(), 0,
                                       delta.data(), nullptr,    delta.data(), nullptr};
      verify(view, verification, delta.data(), fold.data(), num_threads);
      const Bytes sums = gathered(acc, slots, 20000, 8, 4, num_threads);
      for (const Bytes& part : {acc, answers, tags, fold, sums}) {
        all.insert(all.end(), part.begin(), part.end());
      }
    }
    require(results[0] == results[1], "the number of threads changes a result");
    digests.note(named("threads", shape), results[0]);
  }
}

}  // namespace

std::vector<Digest> run_shapes() {
  Digests digests;
  Random random(1);
  run_trees(digests, random);
  run_paths(digests, random);
  for (const unsigned width : kWidths) {
    for (const std::size_t row_values : {1u, 2u, 4u, 5u, 18u, 20u, 36u}) {
      run_shares(digests, random, {6, 61}, width, 0, row_values);
    }
    run_shares(digests, random, {17, 6}, width, 2, 1);
    run_shares(digests, random, {2, 33}, width, 3, 3);
    run_shares(digests, random, {1, 1}, width, 0, 300);
    run_shares(digests, random, {1, 1500}, width, 0, 2);
  }
  run_checks(digests, random);
  for (const std::size_t row_bytes : {1u, 7u, 16u, 24u, 72u, 100u, 300u}) {
    run_answers(digests, random, {9, 61}, row_bytes, false);
    run_answers(digests, random, {3, 700}, row_bytes, true);
  }
  run_answers(digests, random, {1, 9001}, 72, true);
  for (const std::size_t row_bytes : {1u, 7u, 16u, 24u, 72u, 100u, 300u}) {
    run_bit_answers(digests, random, 9, 300, row_bytes, false);
    run_bit_answers(digests, random, 3, 1025, row_bytes, true);
  }
  run_bit_answers(digests, random, 70, 700, 24, true);  // more than pass over a table together
  run_bit_answers(digests, random, 2, 1, 16, true);
  run_bit_answers(digests, random, 1, 100000, 20, true);
  run_bit_answers(digests, random, 1, 1100000, 4, true);
  for (const unsigned width : kWidths) run_batch(random, {37, 61}, width, 5 * width, 1);
  run_batch(random, {2, 5000}, 8, 8, 1);
  run_batch(random, {20, 600}, 4, 72, 1);
  run_batch(random, {300, 7}, 4, 4, 2);
  run_batch(random, {100, 240}, 4, 72, 3);
  run_gather<std::uint16_t>(random);
  run_gather<std::uint32_t>(random);
  run_gather<std::uint64_t>(random);
  run_field(digests, random);
  run_proofs(digests, random);
  run_lifted(digests, random);
  run_ring<std::uint32_t>(digests, random);
  run_ring<std::uint64_t>(digests, random);
  run_order(random);
  run_ranges();
  run_threads(digests, random);
  return digests.all();
}

}  // namespace fsl::selftest
