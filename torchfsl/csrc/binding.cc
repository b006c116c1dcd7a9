// Python binding: checks every buffer, releases the GIL, calls the kernels. Shapes and meanings are
// documented in _native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "aes_key.h"
#include "dispatch.h"
#include "kernels.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using In = nb::ndarray<nb::ro>;
using InOut = nb::ndarray<>;
template <class T>
using Out = nb::ndarray<nb::numpy, T>;
using Bytes = Out<std::uint8_t>;
using Shape = std::initializer_list<std::size_t>;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::size_t product(Shape factors) {
  std::size_t result = 1;
  for (const std::size_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result) || result >> 62) {
      refuse("the arrays asked for are too large");
    }
  }
  return result;
}

std::string describe(Shape shape) {
  std::string text;
  for (const std::size_t extent : shape) {
    text += (text.empty() ? "" : ", ") + std::to_string(extent);
  }
  return "[" + text + "]";
}

// Data of a C-contiguous host array of the given element type and number of dimensions.
template <class T, class Array>
auto data_of(const Array& array, const char* name, std::size_t ndim) {
  using Pointer = std::conditional_t<std::is_same_v<Array, In>, const T*, T*>;
  const std::string label = name;
  if (array.device_type() != nb::device::cpu::value) refuse(label + " is not in host memory");
  if (array.dtype() != nb::dtype<T>()) {
    refuse(label + " must have dtype uint" + std::to_string(8 * sizeof(T)));
  }
  if (array.ndim() != ndim) refuse(label + " must have " + std::to_string(ndim) + " dimensions");
  std::int64_t stride = 1;
  for (std::size_t i = ndim; i-- > 0 && array.size() > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != stride) refuse(label + " must be C-contiguous");
    stride *= static_cast<std::int64_t>(array.shape(i));
  }
  if (reinterpret_cast<std::uintptr_t>(array.data()) % sizeof(T)) refuse(label + " is not aligned");
  return static_cast<Pointer>(array.data());
}

// The same, with a check of the whole shape.
template <class T, class Array>
auto data_of(const Array& array, const char* name, Shape shape) {
  const auto data = data_of<T>(array, name, shape.size());
  std::size_t i = 0;
  for (const std::size_t extent : shape) {
    if (array.shape(i++) != extent) refuse(std::string(name) + " must be " + describe(shape));
  }
  return data;
}

fsl::KeySchedule schedule_of(const nb::bytes& key) {
  if (key.size() != 16) refuse("a key has 16 bytes");
  return fsl::expand_key(reinterpret_cast<const std::uint8_t*>(key.c_str()));
}

unsigned checked_width(std::int64_t width, std::size_t payload) {
  for (const unsigned legal : {2u, 3u, 4u, 6u, 8u, 16u}) {
    if (width != legal) continue;
    if (payload % legal) refuse("rows must hold whole ring values of the given width");
    return legal;
  }
  refuse("width must be 2, 3, 4, 6, 8 or 16 bytes");
}

std::size_t checked_payload(std::size_t payload) {
  if (payload < 1 || payload > fsl::kMaxPayload) {
    refuse("a payload has 1 to " + std::to_string(fsl::kMaxPayload) + " bytes");
  }
  return payload;
}

unsigned checked_threads(std::int64_t num_threads) {
  if (num_threads < 0 || num_threads > 1024) refuse("num_threads must be in [0, 1024]");
  return static_cast<unsigned>(num_threads);
}

// Uninitialised elements that become a NumPy array.
template <class T>
class Buffer {
 public:
  explicit Buffer(Shape shape)
      : shape_(shape.begin(), shape.end()),
        data_(static_cast<T*>(::operator new(product(shape) * sizeof(T), kAlignment))) {}

  T* data() const { return data_.get(); }

  Out<T> release() {
    T* data = data_.release();
    const nb::capsule owner(data, [](void* p) noexcept { ::operator delete(p, kAlignment); });
    return Out<T>(data, shape_.size(), shape_.data(), owner);
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* p) const { ::operator delete(p, kAlignment); }
  };
  std::vector<std::size_t> shape_;
  std::unique_ptr<T[], Free> data_;
};
using ByteBuffer = Buffer<std::uint8_t>;

// The checked arguments that describe one party's trees.
struct TreeArguments {
  TreeArguments(const nb::bytes& key_bytes, const In& roots, const In& cw, const In& cw_right,
                std::int64_t num_leaves)
      : key(schedule_of(key_bytes)) {
    if (num_leaves < 1 || num_leaves > std::int64_t{1} << fsl::kMaxDepth) {
      refuse("num_leaves must be in [1, 2**48]");
    }
    trees.key = &key;
    trees.num_leaves = static_cast<std::size_t>(num_leaves);
    trees.depth = static_cast<unsigned>(std::bit_width(trees.num_leaves - 1));
    trees.num_trees = roots.ndim() ? roots.shape(0) : 0;
    trees.roots = data_of<std::uint8_t>(roots, "roots", {trees.num_trees, 16});
    trees.cw = data_of<std::uint8_t>(cw, "cw", {trees.depth, trees.num_trees, 16});
    trees.cw_right = data_of<std::uint8_t>(cw_right, "cw_right", {trees.depth, trees.num_trees});
    for (std::size_t i = 0; i < trees.depth * trees.num_trees; ++i) stray |= trees.cw_right[i];
    if (stray > 1) refuse("cw_right holds a value other than 0 and 1");
  }
  TreeArguments(const TreeArguments&) = delete;
  TreeArguments& operator=(const TreeArguments&) = delete;

  const fsl::KeySchedule key;
  std::uint8_t stray = 0;
  fsl::Trees trees = {};
};

nb::tuple tree_gen(const nb::bytes& key_bytes, const In& roots0, const In& roots1, const In& alpha,
                   std::int64_t depth) {
  if (depth < 0 || depth > fsl::kMaxDepth) refuse("depth must be in [0, 48]");
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
  ByteBuffer cw({levels, count, 16}), cw_right({levels, count}), leaf0({count, 16}),
      leaf1({count, 16});
  args.cw = cw.data();
  args.cw_right = cw_right.data();
  args.leaf[0] = leaf0.data();
  args.leaf[1] = leaf1.data();
  {
    nb::gil_scoped_release release;
    fsl::tree_gen(args);
  }
  return nb::make_tuple(cw.release(), cw_right.release(), leaf0.release(), leaf1.release());
}

Bytes tree_eval(const nb::bytes& key, const In& roots, const In& cw, const In& cw_right,
                std::int64_t num_leaves) {
  const TreeArguments arguments(key, roots, cw, cw_right, num_leaves);
  ByteBuffer out({arguments.trees.num_trees, arguments.trees.num_leaves, 16});
  {
    nb::gil_scoped_release release;
    fsl::tree_eval(arguments.trees, out.data());
  }
  return out.release();
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
               const In& slots, std::int64_t nu, std::int64_t width) {
  const fsl::KeySchedule key = schedule_of(key_bytes);
  if (nu < 0 || nu > 24) refuse("nu must be in [0, 24]");
  fsl::HintArgs args = {};
  args.key = &key;
  args.num_trees = leaf0.ndim() ? leaf0.shape(0) : 0;
  args.leaf[0] = data_of<std::uint8_t>(leaf0, "leaf0", {args.num_trees, 16});
  args.leaf[1] = data_of<std::uint8_t>(leaf1, "leaf1", {args.num_trees, 16});
  args.values = data_of<std::uint8_t>(values, "values", 2);
  args.slots = data_of<std::uint64_t>(slots, "slots", {args.num_trees});
  if (values.shape(0) != args.num_trees) refuse("values must have one row a tree");
  args.width = checked_width(width, values.shape(1));
  args.nu = static_cast<unsigned>(nu);
  args.payload = checked_payload(product({values.shape(1), std::size_t{1} << nu}));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < args.num_trees; ++i) seen |= args.slots[i];
  if (seen >> nu) refuse("slots must be below 2**nu");
  ByteBuffer out({args.num_trees, args.payload});
  args.out = out.data();
  {
    nb::gil_scoped_release release;
    fsl::hint_gen(args);
  }
  return out.release();
}

void accumulate(const nb::bytes& key_tree, const nb::bytes& key_convert, const In& roots,
                const In& cw, const In& cw_right, std::int64_t num_leaves, const In& hints,
                std::int64_t party, std::int64_t width, const InOut& acc,
                std::int64_t num_threads) {
  const TreeArguments arguments(key_tree, roots, cw, cw_right, num_leaves);
  const fsl::KeySchedule key = schedule_of(key_convert);
  if (party != 0 && party != 1) refuse("party must be 0 or 1");
  fsl::AccumulateArgs args = {};
  args.key = &key;
  args.hints = data_of<std::uint8_t>(hints, "hints", 2);
  if (hints.shape(0) != arguments.trees.num_trees) refuse("hints must have one row a tree");
  args.payload = checked_payload(hints.shape(1));
  args.party = static_cast<unsigned>(party);
  args.width = checked_width(width, args.payload);
  args.acc = data_of<std::uint8_t>(
      acc, "acc", {arguments.trees.num_trees, arguments.trees.num_leaves, args.payload});
  const unsigned threads = checked_threads(num_threads);
  nb::gil_scoped_release release;
  fsl::accumulate(arguments.trees, args, threads);
}

Bytes answer(const nb::bytes& key_tree, const In& roots, const In& cw, const In& cw_right,
             std::int64_t num_leaves, const In& table, std::int64_t num_threads) {
  const TreeArguments arguments(key_tree, roots, cw, cw_right, num_leaves);
  const fsl::Trees& trees = arguments.trees;
  fsl::AnswerArgs args = {};
  args.table = data_of<std::uint8_t>(table, "table", 3);
  args.shared_table = table.shape(0) == 1;
  if (!args.shared_table && table.shape(0) != trees.num_trees) {
    refuse("table must have one entry, or one a tree");
  }
  if (table.shape(1) != trees.num_leaves) refuse("table must have num_leaves rows");
  args.row_bytes = table.shape(2);
  const unsigned threads = checked_threads(num_threads);
  ByteBuffer out({trees.num_trees, args.row_bytes});
  {
    nb::gil_scoped_release release;
    fsl::answer(trees, args, out.data(), threads);
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
  m.doc() = "Native kernels of torchfsl; torchfsl.portable has the same functions in NumPy.";
  m.def("tree_gen", tree_gen, "key"_a, "roots0"_a, "roots1"_a, "alpha"_a, "depth"_a);
  m.def("tree_eval", tree_eval, "key"_a, "roots"_a, "cw"_a, "cw_right"_a, "num_leaves"_a);
  m.def("convert", convert, "key"_a, "states"_a, "num_bytes"_a);
  m.def("hint_gen", hint_gen, "key"_a, "leaf0"_a, "leaf1"_a, "values"_a, "slots"_a, "nu"_a,
        "width"_a);
  m.def("accumulate", accumulate, "key_tree"_a, "key_convert"_a, "roots"_a, "cw"_a, "cw_right"_a,
        "num_leaves"_a, "hints"_a, "party"_a, "width"_a, "acc"_a, "num_threads"_a = 1);
  m.def("answer", answer, "key_tree"_a, "roots"_a, "cw"_a, "cw_right"_a, "num_leaves"_a, "table"_a,
        "num_threads"_a = 1);
  m.def("gather", gather, "acc"_a, "slots"_a, "out"_a, "width"_a, "num_threads"_a = 1);
  m.def("match", match, "candidates"_a, "num_bins"_a);
  m.def("aes_ceiling", aes_ceiling, "num_blocks"_a, "num_threads"_a = 1);
  m.def("cpu_path", [] { return fsl::active_path().name; });
}
