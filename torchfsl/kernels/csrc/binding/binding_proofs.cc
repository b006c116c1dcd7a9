#include "binding_proofs.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "arguments.h"
#include "proofs.h"

using namespace fsl::arguments;
using nb::literals::operator""_a;

namespace {

fsl::LeafArgs leaves_of(const fsl::KeySchedule& key, const In& states, const In& hints,
                        std::int64_t party) {
  fsl::LeafArgs args = {};
  args.key = &key;
  args.states = data_of<std::uint8_t>(states, "states", 3);
  args.num_trees = states.shape(0);
  args.num_leaves = states.shape(1);
  if (states.shape(2) != 16) refuse("a state has 16 bytes");
  if (args.num_leaves < 1 || args.num_leaves >> 30) refuse("trees have 1 to 2**30 - 1 leaves");
  args.hints = data_of<std::uint8_t>(hints, "hints", 2);
  if (hints.shape(0) != args.num_trees) refuse("hints must have a row for each tree");
  args.payload = checked_payload(hints.shape(1));
  if (party != 0 && party != 1) refuse("party must be 0 or 1");
  args.party = static_cast<unsigned>(party);
  return args;
}

Out<std::int64_t> leaf_sums(const nb::bytes& key, const In& states, const In& hints,
                            std::int64_t width, std::int64_t party, std::int64_t num_threads) {
  const fsl::KeySchedule schedule = schedule_of(key);
  const fsl::LeafArgs args = leaves_of(schedule, states, hints, party);
  const unsigned bytes = checked_width(width, args.payload);
  if (bytes > 6) refuse("width must be 2, 3, 4 or 6 bytes");
  const unsigned threads = checked_threads(num_threads);
  const std::size_t num_values = args.payload / bytes;
  Buffer<std::int64_t> out({2, args.num_trees, num_values});
  {
    nb::gil_scoped_release release;
    fsl::leaf_sums(args, bytes, out.data(), out.data() + args.num_trees * num_values, threads);
  }
  return out.release();
}

nb::tuple carry_sums(const nb::bytes& key, const In& states, const In& hints, std::int64_t party) {
  const fsl::KeySchedule schedule = schedule_of(key);
  const fsl::LeafArgs args = leaves_of(schedule, states, hints, party);
  if (args.payload != 7 && args.payload % 14) {
    refuse("hints must hold one whole value of 7 bytes, or an even number of them");
  }
  const std::size_t slots = args.payload / 7;
  Buffer<std::int64_t> carried({args.num_leaves * slots});
  Buffer<std::int64_t> sums({args.num_trees, slots, 2});
  {
    nb::gil_scoped_release release;
    fsl::carry_sums(args, carried.data(), sums.data());
  }
  return nb::make_tuple(carried.release(), sums.release());
}

// Whether any element, two words each, is not below p = 2^128 - 7 * 2^66 + 1; without a branch.
void check_elements(const std::uint64_t* words, std::size_t count) {
  std::uint64_t beyond = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t low = words[2 * i], high = words[2 * i + 1];
    beyond |= static_cast<std::uint64_t>(high > 0xffffffffffffffe4ull) |
              (static_cast<std::uint64_t>(high == 0xffffffffffffffe4ull) & (low > 0));
  }
  if (beyond) refuse("a field element must be below the modulus");
}

std::size_t checked_order(std::int64_t order) {
  if (order < 1 || (order & (order - 1)) || order >> 24) {
    refuse("the number of points must be a power of two up to 2**23");
  }
  return static_cast<std::size_t>(order);
}

Out<std::uint64_t> square_sums(const In& values, const In& root, std::int64_t num_threads) {
  fsl::SquareArgs args = {};
  args.values = data_of<std::uint64_t>(values, "values", 3);
  args.order = values.shape(0);
  args.num_wires = values.shape(1);
  if (values.shape(2) != 2) refuse("a field element has two words");
  if (args.order < 2 || (args.order & (args.order - 1)) || args.order >> 24) {
    refuse("the number of points must be a power of two from 2 to 2**23");
  }
  const std::uint64_t* words = data_of<std::uint64_t>(root, "root", {2});
  check_elements(words, 1);
  check_elements(args.values, args.order * args.num_wires);
  args.root[0] = words[0];
  args.root[1] = words[1];
  const unsigned threads = checked_threads(num_threads);
  Buffer<std::uint64_t> out({2 * args.order, 2});
  args.out = out.data();
  {
    nb::gil_scoped_release release;
    fsl::square_sums(args, threads);
  }
  return out.release();
}

nb::tuple query_proof(const In& proof, std::int64_t num_wires, std::int64_t order, const In& root,
                      const In& point, const std::vector<In>& parts, const In& scales,
                      const In& tail) {
  fsl::QueryArgs args = {};
  args.proof = data_of<std::uint64_t>(proof, "proof", 2);
  if (proof.shape(1) != 2) refuse("a field element has two words");
  if (num_wires < 1 || static_cast<std::size_t>(num_wires) >= proof.shape(0)) {
    refuse("a proof must have shape [n, 2]: a seed per wire, then coefficients");
  }
  args.num_wires = static_cast<std::size_t>(num_wires);
  args.num_coefficients = proof.shape(0) - args.num_wires;
  args.order = checked_order(order);
  args.tail = data_of<std::uint64_t>(tail, "tail", 3);
  args.num_tail = tail.shape(0);
  data_of<std::uint64_t>(tail, "tail", {args.num_tail, args.num_wires, 2});
  for (const In& part : parts) {
    args.parts.push_back(data_of<std::int64_t>(part, "part", 2));
    if (args.parts.size() == 1) args.num_rows = part.shape(0);
    data_of<std::int64_t>(part, "part", {args.num_rows, args.num_wires});
  }
  if (args.num_tail >= args.order || args.num_rows >= args.order - args.num_tail) {
    refuse("parts and tail together must have fewer rows than the order");
  }
  args.scales = data_of<std::uint64_t>(scales, "scales", {parts.size(), 2});
  const std::uint64_t* const own = data_of<std::uint64_t>(root, "root", {2});
  const std::uint64_t* const at = data_of<std::uint64_t>(point, "point", {2});
  check_elements(own, 1);
  check_elements(at, 1);
  check_elements(args.scales, parts.size());
  check_elements(args.proof, proof.shape(0));
  check_elements(args.tail, args.num_tail * args.num_wires);
  std::copy_n(own, 2, args.root);
  std::copy_n(at, 2, args.point);
  Buffer<std::uint64_t> opened({args.num_wires + 1, 2});
  Buffer<std::uint64_t> values({args.order, 2});
  args.opened = opened.data();
  args.values = values.data();
  {
    nb::gil_scoped_release release;
    fsl::query_proof(args);
  }
  return nb::make_tuple(opened.release(), values.release());
}

Out<std::uint64_t> field_transform(const In& values, const In& root) {
  fsl::TransformArgs args = {};
  args.values = data_of<std::uint64_t>(values, "values", 2);
  args.order = values.shape(0);
  if (values.shape(1) != 2) refuse("a field element has two words");
  checked_order(static_cast<std::int64_t>(args.order));
  const std::uint64_t* words = data_of<std::uint64_t>(root, "root", {2});
  check_elements(words, 1);
  check_elements(args.values, args.order);
  args.root[0] = words[0];
  args.root[1] = words[1];
  Buffer<std::uint64_t> out({args.order, 2});
  args.out = out.data();
  {
    nb::gil_scoped_release release;
    fsl::field_transform(args);
  }
  return out.release();
}

}  // namespace

void define_proofs(nb::module_& m) {
  m.def("leaf_sums", leaf_sums, "key"_a, "states"_a, "hints"_a, "width"_a, "party"_a,
        "num_threads"_a = 1);
  m.def("carry_sums", carry_sums, "key"_a, "states"_a, "hints"_a, "party"_a);
  m.def("square_sums", square_sums, "values"_a, "root"_a, "num_threads"_a = 1);
  m.def("query_proof", query_proof, "proof"_a, "num_wires"_a, "order"_a, "root"_a, "point"_a,
        "parts"_a, "scales"_a, "tail"_a);
  m.def("field_transform", field_transform, "values"_a, "root"_a);
}
