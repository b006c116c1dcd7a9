// Replay of tests/vectors, in the plain form that scripts/generate/native_vectors.py gives them:
// one case a line, `kind name=value ...`, where a value is hexadecimal bytes or decimal numbers
// with commas.
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "check_kernels.h"
#include "kernels.h"
#include "selftest_support.h"

namespace fsl::selftest {
namespace {

class Case {
 public:
  explicit Case(const std::string& line) : line_(line) {
    std::istringstream words(line);
    words >> kind_;
    for (std::string word; words >> word;) {
      const std::size_t sign = word.find('=');
      require(sign != std::string::npos, "a field without a value: " + word);
      fields_[word.substr(0, sign)] = word.substr(sign + 1);
    }
  }

  const std::string& kind() const { return kind_; }

  std::vector<std::uint64_t> numbers(const std::string& name) const {
    std::vector<std::uint64_t> values;
    std::istringstream text(field(name));
    for (std::string part; std::getline(text, part, ',');) values.push_back(std::stoull(part));
    return values;
  }
  std::uint64_t number(const std::string& name) const {
    const std::vector<std::uint64_t> values = numbers(name);
    require(values.size() == 1, "not one number: " + name);
    return values[0];
  }
  Bytes bytes(const std::string& name) const {
    const std::string& text = field(name);
    require(text.size() % 2 == 0, "half a byte: " + name);
    Bytes out(text.size() / 2);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
    }
    return out;
  }
  // Bytes whose number the case fixes.
  Bytes bytes(const std::string& name, std::size_t size) const {
    const Bytes out = bytes(name);
    require(out.size() == size, "a wrong number of bytes: " + name);
    return out;
  }
  KeySchedule key() const { return expand_key(bytes("key", 16).data()); }
  void expect(const Bytes& got, const std::string& name) const {
    require(got == bytes(name), name + " differs in: " + line_);
  }

 private:
  const std::string& field(const std::string& name) const {
    const auto found = fields_.find(name);
    require(found != fields_.end(), "no " + name + " in: " + line_);
    return found->second;
  }

  std::string line_;
  std::string kind_;
  std::map<std::string, std::string> fields_;
};

std::string of_party(const char* name, int party) { return name + std::to_string(party); }

// The tree of a case, with correction words and leaves made here and compared with the case's.
TreeSet made_tree(const Case& known) {
  TreeSet tree(1, known.number("num_leaves"));
  tree.key = known.key();
  tree.alpha[0] = known.number("alpha");
  for (int party = 0; party < 2; ++party) {
    tree.roots[party] = known.bytes(of_party("root", party), 16);
  }
  tree.generate();
  known.expect(tree.cw, "cw");
  known.expect(tree.cw_right, "right");
  return tree;
}

void replay_tree(const Case& known) {
  const TreeSet tree = made_tree(known);
  for (int party = 0; party < 2; ++party) {
    Bytes states(16 * tree.num_leaves);
    tree_eval(tree.view(party), states.data());
    known.expect(states, of_party("states", party));
    const auto at_alpha = states.begin() + static_cast<std::ptrdiff_t>(16 * tree.alpha[0]);
    require(tree.leaf[party] == Bytes(at_alpha, at_alpha + 16), "a leaf differs from its state");
  }
}

void replay_hint(const Case& known) {
  const KeySchedule key = known.key();
  const Bytes leaf[2] = {known.bytes("leaf0", 16), known.bytes("leaf1", 16)};
  const Bytes values = known.bytes("values");
  const std::uint64_t slot = known.number("slot");
  HintArgs args = {};
  args.key = &key;
  args.leaf[0] = leaf[0].data();
  args.leaf[1] = leaf[1].data();
  args.values = values.data();
  args.slots = &slot;
  args.num_trees = 1;
  args.nu = static_cast<unsigned>(known.number("nu"));
  args.payload = values.size() << args.nu;
  args.width = static_cast<unsigned>(known.number("width"));
  Bytes hint(args.payload);
  args.out = hint.data();
  hint_gen(args);
  known.expect(hint, "hint");
  // A tree without levels has its root for a leaf, so that its accumulator is the output share.
  for (int party = 0; party < 2; ++party) {
    Trees trees = {};
    trees.key = &key;
    trees.roots = leaf[party].data();
    trees.num_trees = trees.num_leaves = 1;
    AccumulateArgs sum = {};
    Bytes acc(args.payload);
    sum.key = &key;
    sum.hints = hint.data();
    sum.payload = args.payload;
    sum.party = static_cast<unsigned>(party);
    sum.width = args.width;
    sum.acc = acc.data();
    accumulate(trees, sum, 1);
    known.expect(acc, of_party("share", party));
  }
}

void replay_check(const Case& known) {
  const TreeSet tree = made_tree(known);
  for (int party = 0; party < 2; ++party) {
    known.expect(tree.leaf[party], of_party("leaf", party));
  }
  const LeafKeys keys = expand_leaf_keys(known.bytes("key", 16).data());
  CheckGenArgs check = {};
  Bytes word(kHashBytes);
  check.keys = &keys;
  check.leaf[0] = tree.leaf[0].data();
  check.leaf[1] = tree.leaf[1].data();
  check.alpha = tree.alpha.data();
  check.num_trees = 1;
  check.first_tree = known.number("tree");
  check.out = word.data();
  check_gen(check);
  known.expect(word, "check_word");

  const Bytes table = known.bytes("table");
  AuthenticateArgs args = {};
  Bytes digests(16 * tree.num_leaves);
  row_digests(known.bytes("row_key", 16).data(), tree.num_leaves,
              {nullptr, table.data(), table.size() / tree.num_leaves, digests.data()});
  known.expect(digests, "digests");
  args.digests = digests.data();
  args.key = &tree.key;
  args.table = table.data();
  args.row_bytes = table.size() / tree.num_leaves;
  Bytes answer[2] = {Bytes(args.row_bytes), Bytes(args.row_bytes)};
  for (int party = 0; party < 2; ++party) {
    Bytes tag(16);
    authenticate(tree.view(party), args, answer[party].data(), tag.data(), 1);
    known.expect(tag, of_party("tag", party));
  }
  const std::uint8_t* row = table.data() + tree.alpha[0] * args.row_bytes;
  for (std::size_t i = 0; i < args.row_bytes; ++i) {
    require((answer[0][i] ^ answer[1][i]) == row[i], "answers do not XOR to the row");
  }
}

void replay_bits(const Case& known) {
  const TreeSet tree = made_tree(known);
  const KeySchedule key = expand_key(known.bytes("key_bits", 16).data());
  const Bytes word = known.bytes("word", 16), table = known.bytes("table");
  BitAnswerArgs args = {};
  args.key = &key;
  args.words = word.data();
  args.table = table.data();
  args.num_rows = known.number("num_rows");
  args.row_bytes = table.size() / args.num_rows;
  for (int party = 0; party < 2; ++party) {
    Bytes answer(args.row_bytes);
    answer_bits(tree.view(party), args, answer.data(), 1);
    known.expect(answer, of_party("answer", party));
  }
}

void replay_matching(const Case& known) {
  const std::vector<std::uint64_t> wide = known.numbers("candidates");
  const std::vector<std::uint32_t> candidates(wide.begin(), wide.end());
  std::vector<std::int64_t> bins(candidates.size() / 3);
  match(candidates.data(), bins.size(), known.number("num_bins"), bins.data());
  std::vector<std::uint64_t> shifted;  // bin + 1, so that an item without a bin is 0
  for (const std::int64_t bin : bins) shifted.push_back(static_cast<std::uint64_t>(bin + 1));
  require(shifted == known.numbers("bins_plus_one"), "a matching differs");
}

std::vector<std::uint32_t> words_of(const Bytes& bytes) {
  std::vector<std::uint32_t> words(bytes.size() / 4);
  for (std::size_t i = 0; i < 4 * words.size(); ++i) {
    words[i / 4] |= std::uint32_t{bytes[i]} << (8 * (i % 4));
  }
  return words;
}

void replay_product(const Case& known) {
  const std::size_t rows = known.number("rows"), terms = known.number("terms");
  const std::size_t columns = known.number("columns");
  const std::vector<std::uint32_t> left = words_of(known.bytes("left", 4 * rows * terms));
  const std::vector<std::uint32_t> right = words_of(known.bytes("right", 4 * terms * columns));
  std::vector<std::uint32_t> out(rows * columns);
  field_multiply({left.data(), right.data(), rows, terms, columns, out.data()}, 1);
  require(out == words_of(known.bytes("product", 4 * out.size())), "a product differs");
}

}  // namespace

std::size_t replay_vectors(const std::string& file) {
  const std::map<std::string, void (*)(const Case&)> kinds = {
      {"tree", replay_tree}, {"hint", replay_hint},         {"check", replay_check},
      {"bits", replay_bits}, {"matching", replay_matching}, {"product", replay_product}};
  std::ifstream lines(file);
  require(lines.is_open(), "cannot read " + file);
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Case known(line);
    const auto kind = kinds.find(known.kind());
    require(kind != kinds.end(), "no such kind of vector: " + known.kind());
    kind->second(known);
  }
  require(count > 0, "no vectors in " + file);
  return count;
}

}  // namespace fsl::selftest
