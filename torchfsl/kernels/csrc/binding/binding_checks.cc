#include "binding_checks.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "check_kernels.h"

using namespace fsl::arguments;
using nb::literals::operator""_a;

namespace {

fsl::LeafKeys leaf_keys_of(const nb::bytes& key) {
  if (key.size() != 16) refuse("a key has 16 bytes");
  return fsl::expand_leaf_keys(reinterpret_cast<const std::uint8_t*>(key.c_str()));
}

// Number of the first tree; the last one's must fit the tweak's four bytes too.
std::uint64_t checked_first_tree(std::int64_t first_tree, std::size_t num_trees) {
  constexpr std::int64_t kTrees = std::int64_t{1} << 32;
  const bool fits = first_tree >= 0 && first_tree <= kTrees &&
                    num_trees <= static_cast<std::size_t>(kTrees - first_tree);
  if (!fits) refuse("tree numbers must be in [0, 2**32)");
  return static_cast<std::uint64_t>(first_tree);
}

Bytes check_gen(const nb::bytes& key, const In& leaf0, const In& leaf1, const In& leaf,
                std::int64_t first_tree, std::int64_t num_threads) {
  const fsl::LeafKeys keys = leaf_keys_of(key);
  fsl::CheckGenArgs args = {};
  args.keys = &keys;
  take_leaves(args, leaf0, leaf1);
  args.alpha = data_of<std::uint64_t>(leaf, "leaf", {args.num_trees});
  args.first_tree = checked_first_tree(first_tree, args.num_trees);
  const unsigned threads = checked_threads(num_threads);
  ByteBuffer out({args.num_trees, fsl::kHashBytes});
  args.out = out.data();
  {
    nb::gil_scoped_release release;
    fsl::check_gen(args, threads);
  }
  return out.release();
}

nb::bytes verify(const nb::bytes& key_tree, const nb::bytes& key_check, const In& roots,
                 const In& cw, const In& cw_right, std::int64_t num_leaves, const In& check_words,
                 std::int64_t first_tree, const nb::bytes& key_fold, const In& delta_trees,
                 const In& delta_low, const In& delta_high, std::int64_t num_threads) {
  const TreeArguments arguments(key_tree, roots, cw, cw_right, num_leaves);
  const fsl::Trees& trees = arguments.trees;
  const fsl::LeafKeys keys = leaf_keys_of(key_check);
  const fsl::KeySchedule fold_key = schedule_of(key_fold);
  fsl::VerifyArgs args = {};
  args.keys = &keys;
  args.key_fold = &fold_key;
  args.check_words =
      data_of<std::uint8_t>(check_words, "check_words", {trees.num_trees, fsl::kHashBytes});
  args.first_tree = checked_first_tree(first_tree, trees.num_trees);
  args.delta_trees = data_of<std::uint8_t>(delta_trees, "delta_trees", {trees.num_trees, 16});
  const std::uint8_t* low = data_of<std::uint8_t>(delta_low, "delta_low", {fsl::kLowLeaves, 2, 16});
  args.delta_high = data_of<std::uint8_t>(delta_high, "delta_high", 2);
  const std::size_t num_high = (trees.num_leaves - 1) / fsl::kLowLeaves + 1;
  if (delta_high.shape(0) < num_high || delta_high.shape(1) != 16) {
    refuse("delta_high must have at least " + std::to_string(num_high) + " rows of 16 bytes");
  }
  const unsigned threads = checked_threads(num_threads);
  std::uint8_t fold[16];
  {
    nb::gil_scoped_release release;
    fsl::verify(trees, args, low, fold, threads);
  }
  return nb::bytes(fold, sizeof fold);
}

// One client's retrieval, checked, and room for its results.
struct Retrieval {
  Retrieval(const nb::bytes& key_tree, const nb::bytes& key_mac, const In& roots, const In& cw,
            const In& cw_right, std::int64_t num_leaves, const In& table, const In& digests)
      : arguments(key_tree, roots, cw, cw_right, num_leaves),
        key(schedule_of(key_mac)),
        answers({arguments.trees.num_trees, checked_row(table)}),
        tags({arguments.trees.num_trees, 16}) {
    const fsl::Trees& trees = arguments.trees;
    fsl::AuthenticateArgs args = {};
    args.key = &key;
    take_table(args, table, trees);
    args.digests =
        data_of<std::uint8_t>(digests, "digests", {table.shape(0), trees.num_leaves, 16});
    job = {trees, args, answers.data(), tags.data()};
  }

  nb::tuple release() { return nb::make_tuple(answers.release(), tags.release()); }

  static std::size_t checked_row(const In& table) {
    data_of<std::uint8_t>(table, "table", 3);
    return checked_payload(table.shape(2));
  }

  const TreeArguments arguments;
  const fsl::KeySchedule key;
  ByteBuffer answers, tags;
  fsl::AuthenticateJob job;
};

nb::tuple authenticate(const nb::bytes& key_tree, const nb::bytes& key_mac, const In& roots,
                       const In& cw, const In& cw_right, std::int64_t num_leaves, const In& table,
                       const In& digests, std::int64_t num_threads) {
  Retrieval retrieval(key_tree, key_mac, roots, cw, cw_right, num_leaves, table, digests);
  const unsigned threads = checked_threads(num_threads);
  {
    nb::gil_scoped_release release;
    fsl::authenticate({retrieval.job}, threads);
  }
  return retrieval.release();
}

nb::list authenticate_batch(const nb::list& requests, std::int64_t num_leaves, const In& table,
                            const In& digests, std::int64_t num_threads) {
  std::vector<std::unique_ptr<Retrieval>> checked;
  std::vector<fsl::AuthenticateJob> jobs;
  std::vector<In> held;
  for (const nb::handle item : requests) {
    const nb::tuple request = nb::cast<nb::tuple>(item);
    if (request.size() != 5) refuse("a request is (key_tree, key_mac, roots, cw, cw_right)");
    const nb::bytes keys[2] = {nb::cast<nb::bytes>(request[0]), nb::cast<nb::bytes>(request[1])};
    const In arrays[3] = {nb::cast<In>(request[2]), nb::cast<In>(request[3]),
                          nb::cast<In>(request[4])};
    held.insert(held.end(), std::begin(arrays), std::end(arrays));
    checked.push_back(std::make_unique<Retrieval>(keys[0], keys[1], arrays[0], arrays[1], arrays[2],
                                                  num_leaves, table, digests));
    jobs.push_back(checked.back()->job);
    if (jobs.back().trees.num_trees != jobs.front().trees.num_trees) {
      refuse("all requests must have the same number of trees");
    }
  }
  const unsigned threads = checked_threads(num_threads);
  {
    nb::gil_scoped_release release;
    fsl::authenticate(jobs, threads);
  }
  nb::list results;
  for (const std::unique_ptr<Retrieval>& retrieval : checked) results.append(retrieval->release());
  return results;
}

Bytes tags(const nb::bytes& key_mac, const In& leaf0, const In& leaf1, const In& digests,
           std::int64_t num_threads) {
  const fsl::KeySchedule key = schedule_of(key_mac);
  fsl::TagsArgs args = {};
  args.key = &key;
  take_leaves(args, leaf0, leaf1);
  args.digests = data_of<std::uint8_t>(digests, "digests", {args.num_trees, 16});
  const unsigned threads = checked_threads(num_threads);
  ByteBuffer out({args.num_trees, 16});
  args.out = out.data();
  {
    nb::gil_scoped_release release;
    fsl::tags(args, threads);
  }
  return out.release();
}

Bytes row_digests(const nb::bytes& key, const In& rows, std::int64_t num_threads) {
  if (key.size() != 16) refuse("a key has 16 bytes");
  fsl::RowDigestArgs args = {};
  args.rows = data_of<std::uint8_t>(rows, "rows", 2);
  args.row_bytes = checked_payload(rows.shape(1));
  const std::size_t num_rows = rows.shape(0);
  const unsigned threads = checked_threads(num_threads);
  ByteBuffer out({num_rows, 16});
  args.out = out.data();
  {
    nb::gil_scoped_release release;
    fsl::row_digests(reinterpret_cast<const std::uint8_t*>(key.c_str()), num_rows, args, threads);
  }
  return out.release();
}

}  // namespace

void define_checks(nb::module_& m) {
  m.def("check_gen", check_gen, "key"_a, "leaf0"_a, "leaf1"_a, "leaf"_a, "first_tree"_a,
        "num_threads"_a = 1);
  m.def("verify", verify, "key_tree"_a, "key_check"_a, "roots"_a, "cw"_a, "cw_right"_a,
        "num_leaves"_a, "check_words"_a, "first_tree"_a, "key_fold"_a, "delta_trees"_a,
        "delta_low"_a, "delta_high"_a, "num_threads"_a = 1);
  m.def("authenticate", authenticate, "key_tree"_a, "key_mac"_a, "roots"_a, "cw"_a, "cw_right"_a,
        "num_leaves"_a, "table"_a, "digests"_a, "num_threads"_a = 1);
  m.def("authenticate_batch", authenticate_batch, "requests"_a, "num_leaves"_a, "table"_a,
        "digests"_a, "num_threads"_a = 1);
  m.def("tags", tags, "key_mac"_a, "leaf0"_a, "leaf1"_a, "digests"_a, "num_threads"_a = 1);
  m.def("row_digests", row_digests, "key"_a, "rows"_a, "num_threads"_a = 1);
}
