// Python binding: checks every buffer, releases the GIL, calls the kernels. Shapes and meanings are
// documented in _native.pyi.
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "arguments.h"
#include "binding_checks.h"
#include "binding_products.h"
#include "binding_proofs.h"
#include "dispatch.h"
#include "kernels.h"

using namespace fsl::arguments;
using nb::literals::operator""_a;

namespace {

nb::tuple tree_gen(const nb::bytes& key_bytes, const In& roots0, const In& roots1, const In& alpha,
                   std::int64_t depth, std::int64_t num_threads) {
  if (depth < 0 || depth > fsl::kMaxDepth) refuse("depth must be in [0, 56]");
  const fsl::KeySchedule key = schedule_of(key_bytes);
  const std::size_t count = roots0.ndim() ? roots0.shape(0) : 0;
  const std::size_t levels = static_cast<std::size_t>(depth);
  fsl::TreeGenArgs args = {};
  args.key = &key;
  args.roots[0] = data_of<std::uint8_t>(roots0, "roots0", {count, 16});
  args.roots[1] = data_of<std::uint8_t>(roots1, "roots1", {count, 16});
  args.alpha = data_of<std::uint64_t>(alpha, "alpha", {count});
  args.num_trees = count;
  args.depth = static_cast<unsigned>(depth);
  std::uint64_t seen = 0;
  std::uint8_t set0 = 0, set1 = 1;
  for (std::size_t i = 0; i < count; ++i) {
    seen |= args.alpha[i];
    set0 |= args.roots[0][16 * i] & 1;
    set1 &= args.roots[1][16 * i];
  }
  if (seen >> depth) refuse("alpha must be below 2**depth");
  if (set0 != 0 || set1 != 1) refuse("the control bit must be 0 in roots0 and 1 in roots1");
  const unsigned threads = checked_threads(num_threads);
  ByteBuffer cw({levels, count, 16}), cw_right({levels, count}), leaf0({count, 16}),
      leaf1({count, 16});
  args.cw = cw.data();
  args.cw_right = cw_right.data();
  args.leaf[0] = leaf0.data();
  args.leaf[1] = leaf1.data();
  {
    nb::gil_scoped_release release;
    fsl::tree_gen(args, threads);
  }
  return nb::make_tuple(cw.release(), cw_right.release(), leaf0.release(), leaf1.release());
}

Bytes tree_eval(const nb::bytes& key, const In& roots, const In& cw, const In& cw_right,
                std::int64_t num_leaves, std::int64_t num_threads) {
  const TreeArguments arguments(key, roots, cw, cw_right, num_leaves);
  const unsigned threads = checked_threads(num_threads);
  ByteBuffer out({arguments.trees.num_trees, arguments.trees.num_leaves, 16});
  {
    nb::gil_scoped_release release;
    fsl::tree_eval(arguments.trees, out.data(), threads);
  }
  return out.release();
}

nb::tuple tree_path(const nb::bytes& key, const In& roots, const In& cw, const In& cw_right,
                    const In& x, std::int64_t num_threads) {
  const std::size_t depth = cw.ndim() ? cw.shape(0) : 0;
  if (depth > fsl::kMaxDepth) refuse("depth must be in [0, 56]");
  const TreeArguments arguments(key, roots, cw, cw_right, std::int64_t{1} << depth, fsl::kMaxDepth);
  const std::size_t count = arguments.trees.num_trees;
  fsl::TreePathArgs args = {};
  args.trees = arguments.trees;
  args.x = data_of<std::uint64_t>(x, "x", {count});
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < count; ++i) seen |= args.x[i];
  if (seen >> depth) refuse("x must be below 2**depth");
  const unsigned threads = checked_threads(num_threads);
  ByteBuffer states({count, 16}), smaller({count});
  args.states = states.data();
  args.smaller = smaller.data();
  {
    nb::gil_scoped_release release;
    fsl::tree_path(args, threads);
  }
  return nb::make_tuple(states.release(), smaller.release());
}

Bytes convert(const nb::bytes& key_bytes, const In& states, std::int64_t num_bytes) {
  const fsl::KeySchedule key = schedule_of(key_bytes);
  fsl::ConvertArgs args = {};
  args.key = &key;
  args.count = states.ndim() ? states.shape(0) : 0;
  args.states = data_of<std::uint8_t>(states, "states", {args.count, 16});
  args.payload = checked_payload(num_bytes < 0 ? 0 : static_cast<std::size_t>(num_bytes));
  ByteBuffer out({args.count, args.payload});
  args.out = out.data();
  {
    nb::gil_scoped_release release;
    fsl::convert(args);
  }
  return out.release();
}

Bytes hint_gen(const nb::bytes& key_bytes, const In& leaf0, const In& leaf1, const In& values,
               const In& slots, std::int64_t nu, std::int64_t width, std::int64_t num_threads) {
  const fsl::KeySchedule key = schedule_of(key_bytes);
  if (nu < 0 || nu > 24) refuse("nu must be in [0, 24]");
  fsl::HintArgs args = {};
  args.key = &key;
  take_leaves(args, leaf0, leaf1);
  args.values = data_of<std::uint8_t>(values, "values", 2);
  args.slots = data_of<std::uint64_t>(slots, "slots", {args.num_trees});
  if (values.shape(0) != args.num_trees) refuse("values must have one row a tree");
  args.width = checked_width(width, values.shape(1));
  args.nu = static_cast<unsigned>(nu);
  args.payload = checked_payload(product({values.shape(1), std::size_t{1} << nu}));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < args.num_trees; ++i) seen |= args.slots[i];
  if (seen >> nu) refuse("slots must be below 2**nu");
  const unsigned threads = checked_threads(num_threads);
  ByteBuffer out({args.num_trees, args.payload});
  args.out = out.data();
  {
    nb::gil_scoped_release release;
    fsl::hint_gen(args, threads);
  }
  return out.release();
}

// One report's checked arguments, with the key schedules that they point to.
struct Report {
  Report(const nb::bytes& key_tree, const nb::bytes& key_convert, const In& roots, const In& cw,
         const In& cw_right, std::int64_t num_leaves, const In& hints, std::int64_t party,
         std::int64_t width)
      : trees(key_tree, roots, cw, cw_right, num_leaves), key(schedule_of(key_convert)) {
    if (party != 0 && party != 1) refuse("party must be 0 or 1");
    args.key = &key;
    args.hints = data_of<std::uint8_t>(hints, "hints", 2);
    if (hints.shape(0) != trees.trees.num_trees) refuse("hints must have one row a tree");
    args.payload = checked_payload(hints.shape(1));
    args.party = static_cast<unsigned>(party);
    args.width = checked_width(width, args.payload);
  }

  fsl::AccumulateJob job_into(const InOut& acc) {
    args.acc = data_of<std::uint8_t>(acc, "acc",
                                     {trees.trees.num_trees, trees.trees.num_leaves, args.payload});
    return {trees.trees, args};
  }

  const TreeArguments trees;
  const fsl::KeySchedule key;
  fsl::AccumulateArgs args = {};
};

void accumulate(const nb::bytes& key_tree, const nb::bytes& key_convert, const In& roots,
                const In& cw, const In& cw_right, std::int64_t num_leaves, const In& hints,
                std::int64_t party, std::int64_t width, const InOut& acc,
                std::int64_t num_threads) {
  Report report(key_tree, key_convert, roots, cw, cw_right, num_leaves, hints, party, width);
  const fsl::AccumulateJob job = report.job_into(acc);
  const unsigned threads = checked_threads(num_threads);
  nb::gil_scoped_release release;
  fsl::accumulate({job}, threads);
}

// Several reports' checked arguments for one accumulator.
class Batch {
 public:
  Batch(const nb::list& reports, std::int64_t num_leaves, std::int64_t party, std::int64_t width,
        const InOut& acc) {
    for (const nb::handle item : reports) {
      const nb::tuple report = nb::cast<nb::tuple>(item);
      if (report.size() != 6) {
        refuse("a report is (key_tree, key_convert, roots, cw, cw_right, hints)");
      }
      const nb::bytes keys[2] = {nb::cast<nb::bytes>(report[0]), nb::cast<nb::bytes>(report[1])};
      const In arrays[4] = {nb::cast<In>(report[2]), nb::cast<In>(report[3]),
                            nb::cast<In>(report[4]), nb::cast<In>(report[5])};
      held_.insert(held_.end(), std::begin(arrays), std::end(arrays));
      checked_.push_back(std::make_unique<Report>(keys[0], keys[1], arrays[0], arrays[1], arrays[2],
                                                  num_leaves, arrays[3], party, width));
      jobs.push_back(checked_.back()->job_into(acc));
    }
  }

  std::vector<fsl::AccumulateJob> jobs;

 private:
  std::vector<std::unique_ptr<Report>> checked_;
  std::vector<In> held_;
};

void accumulate_batch(const nb::list& reports, std::int64_t num_leaves, std::int64_t party,
                      std::int64_t width, const InOut& acc, std::int64_t num_threads) {
  const Batch batch(reports, num_leaves, party, width, acc);
  const unsigned threads = checked_threads(num_threads);
  nb::gil_scoped_release release;
  fsl::accumulate(batch.jobs, threads);
}

Out<std::int64_t> accumulate_lifted(const nb::list& reports, std::int64_t num_leaves,
                                    std::int64_t party, std::int64_t width, const InOut& acc,
                                    std::int64_t lifted, std::int64_t num_threads) {
  const Batch batch(reports, num_leaves, party, width, acc);
  if (width != 2 && width != 3 && width != 4 && width != 6) {
    refuse("width must be 2, 3, 4 or 6 bytes");
  }
  if (num_leaves >> 30) refuse("trees have 1 to 2**30 - 1 leaves");
  const std::size_t trees = batch.jobs.empty() ? 0 : batch.jobs.front().trees.num_trees;
  const std::size_t payload = batch.jobs.empty() ? 0 : batch.jobs.front().args.payload;
  if (lifted < 0 || static_cast<std::uint64_t>(lifted) > payload / width) {
    refuse("lifted must be at most the values of a leaf");
  }
  const unsigned threads = checked_threads(num_threads);
  const std::size_t parts = width > 4 ? 2 : 1, values = static_cast<std::size_t>(lifted);
  const std::size_t count = product({batch.jobs.size(), trees, values});
  Buffer<std::int64_t> out({parts, batch.jobs.size(), trees, values});
  std::fill_n(out.data(), parts * count, 0);
  {
    nb::gil_scoped_release release;
    fsl::accumulate_lifted(batch.jobs,
                           {values, out.data(), parts > 1 ? out.data() + count : nullptr}, threads);
  }
  return out.release();
}

Bytes answer(const nb::bytes& key_tree, const In& roots, const In& cw, const In& cw_right,
             std::int64_t num_leaves, const In& table, std::int64_t num_threads) {
  const TreeArguments arguments(key_tree, roots, cw, cw_right, num_leaves);
  const fsl::Trees& trees = arguments.trees;
  fsl::AnswerArgs args = {};
  take_table(args, table, trees);
  const unsigned threads = checked_threads(num_threads);
  ByteBuffer out({trees.num_trees, args.row_bytes});
  {
    nb::gil_scoped_release release;
    fsl::answer(trees, args, out.data(), threads);
  }
  return out.release();
}

Bytes answer_bits(const nb::bytes& key_tree, const nb::bytes& key_bits, const In& roots,
                  const In& cw, const In& cw_right, const In& words, const In& table,
                  std::int64_t num_threads) {
  fsl::BitAnswerArgs args = {};
  args.table = data_of<std::uint8_t>(table, "table", 3);
  args.num_rows = table.shape(1);
  args.row_bytes = table.shape(2);
  if (args.num_rows < 1) refuse("table must have rows");
  const auto num_leaves = static_cast<std::int64_t>((args.num_rows - 1) / fsl::kBitRows + 1);
  const TreeArguments arguments(key_tree, roots, cw, cw_right, num_leaves);
  const fsl::Trees& trees = arguments.trees;
  args.shared_table = checked_shared(table, trees);
  const fsl::KeySchedule key = schedule_of(key_bits);
  args.key = &key;
  args.words = data_of<std::uint8_t>(words, "words", {trees.num_trees, 16});
  const unsigned threads = checked_threads(num_threads);
  ByteBuffer out({trees.num_trees, args.row_bytes});
  {
    nb::gil_scoped_release release;
    fsl::answer_bits(trees, args, out.data(), threads);
  }
  return out.release();
}

template <class Slot>
void gather_as(const In& acc, const In& slots, const InOut& out, std::int64_t width,
               unsigned num_threads) {
  fsl::GatherArgs<Slot> args = {};
  args.acc = data_of<std::uint8_t>(acc, "acc", 2);
  args.num_slots = acc.shape(0);
  args.row_bytes = acc.shape(1);
  args.width = checked_width(width, args.row_bytes);
  args.slots = data_of<Slot>(slots, "slots", 2);
  args.num_sums = slots.shape(0);
  args.num_rows = slots.shape(1);
  args.out = data_of<std::uint8_t>(out, "out", {args.num_rows, args.row_bytes});
  nb::gil_scoped_release release;
  fsl::gather(args, num_threads);
}

void gather(const In& acc, const In& slots, const InOut& out, std::int64_t width,
            std::int64_t num_threads) {
  const unsigned threads = checked_threads(num_threads);
  if (slots.dtype() == nb::dtype<std::uint32_t>()) {
    return gather_as<std::uint32_t>(acc, slots, out, width, threads);
  }
  if (slots.dtype() != nb::dtype<std::uint64_t>()) refuse("slots must have dtype uint32 or uint64");
  gather_as<std::uint64_t>(acc, slots, out, width, threads);
}

Out<std::uint32_t> stable_order(const In& keys, std::int64_t num_threads) {
  const std::uint64_t* values = data_of<std::uint64_t>(keys, "keys", 1);
  const std::size_t count = keys.shape(0);
  const unsigned threads = checked_threads(num_threads);
  Buffer<std::uint32_t> out({count});
  {
    nb::gil_scoped_release release;
    fsl::stable_order(values, count, out.data(), threads);
  }
  return out.release();
}

Out<std::int64_t> match(const In& candidates, std::int64_t num_bins) {
  if (num_bins < 0 || num_bins > std::int64_t{1} << 32) refuse("num_bins must be in [0, 2**32]");
  const std::size_t count = candidates.ndim() == 2 ? candidates.shape(1) : 0;
  const std::uint32_t* choices = data_of<std::uint32_t>(candidates, "candidates", {3, count});
  Buffer<std::int64_t> bins({count});
  {
    nb::gil_scoped_release release;
    fsl::match(choices, count, static_cast<std::size_t>(num_bins), bins.data());
  }
  return bins.release();
}

double aes_ceiling(std::int64_t num_blocks, std::int64_t num_threads) {
  if (num_blocks < 0) refuse("num_blocks must not be negative");
  const unsigned threads = checked_threads(num_threads);
  nb::gil_scoped_release release;
  return fsl::aes_ceiling(static_cast<std::size_t>(num_blocks), threads);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() =
      "Native kernels of torchfsl; torchfsl.kernels.portable has the same functions in NumPy.";
  m.def("tree_gen", tree_gen, "key"_a, "roots0"_a, "roots1"_a, "alpha"_a, "depth"_a,
        "num_threads"_a = 1);
  m.def("tree_eval", tree_eval, "key"_a, "roots"_a, "cw"_a, "cw_right"_a, "num_leaves"_a,
        "num_threads"_a = 1);
  m.def("tree_path", tree_path, "key"_a, "roots"_a, "cw"_a, "cw_right"_a, "x"_a,
        "num_threads"_a = 1);
  m.def("convert", convert, "key"_a, "states"_a, "num_bytes"_a);
  m.def("hint_gen", hint_gen, "key"_a, "leaf0"_a, "leaf1"_a, "values"_a, "slots"_a, "nu"_a,
        "width"_a, "num_threads"_a = 1);
  m.def("accumulate", accumulate, "key_tree"_a, "key_convert"_a, "roots"_a, "cw"_a, "cw_right"_a,
        "num_leaves"_a, "hints"_a, "party"_a, "width"_a, "acc"_a, "num_threads"_a = 1);
  m.def("accumulate_batch", accumulate_batch, "reports"_a, "num_leaves"_a, "party"_a, "width"_a,
        "acc"_a, "num_threads"_a = 1);
  m.def("accumulate_lifted", accumulate_lifted, "reports"_a, "num_leaves"_a, "party"_a, "width"_a,
        "acc"_a, "lifted"_a, "num_threads"_a = 1);
  m.def("answer", answer, "key_tree"_a, "roots"_a, "cw"_a, "cw_right"_a, "num_leaves"_a, "table"_a,
        "num_threads"_a = 1);
  define_checks(m);
  define_products(m);
  define_proofs(m);
  m.def("answer_bits", answer_bits, "key_tree"_a, "key_bits"_a, "roots"_a, "cw"_a, "cw_right"_a,
        "words"_a, "table"_a, "num_threads"_a = 1);
  m.def("gather", gather, "acc"_a, "slots"_a, "out"_a, "width"_a, "num_threads"_a = 1);
  m.def("match", match, "candidates"_a, "num_bins"_a);
  m.def("stable_order", stable_order, "keys"_a, "num_threads"_a = 1);
  m.def("aes_ceiling", aes_ceiling, "num_blocks"_a, "num_threads"_a = 1);
  m.def("cpu_path", [] { return fsl::active_path().name; });
}
