// Checks of what Python passes: dtype, shape, layout and range of every buffer, before any kernel
// sees it. Raises std::invalid_argument, which arrives as ValueError.
#pragma once

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
#include "huge_pages.h"
#include "path.h"

namespace nb = nanobind;

// A header of the binding files only.
namespace fsl::arguments {

using In = nb::ndarray<nb::ro>;
using InOut = nb::ndarray<>;
template <class T>
using Out = nb::ndarray<nb::numpy, T>;
using Bytes = Out<std::uint8_t>;
using Shape = std::initializer_list<std::size_t>;

[[noreturn]] inline void refuse(const std::string& message) {
  throw std::invalid_argument(message);
}

inline std::size_t product(Shape factors) {
  std::size_t result = 1;
  for (const std::size_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result) || result >> 62) {
      refuse("the arrays asked for are too large");
    }
  }
  return result;
}

inline std::string describe(Shape shape) {
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
    const std::string kind = std::is_signed_v<T> ? " must have dtype int" : " must have dtype uint";
    refuse(label + kind + std::to_string(8 * sizeof(T)));
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

inline KeySchedule schedule_of(const nb::bytes& key) {
  if (key.size() != 16) refuse("a key has 16 bytes");
  return expand_key(reinterpret_cast<const std::uint8_t*>(key.c_str()));
}

inline unsigned checked_width(std::int64_t width, std::size_t payload) {
  for (const unsigned legal : {2u, 3u, 4u, 6u, 8u, 16u}) {
    if (width != legal) continue;
    if (payload % legal) refuse("rows must hold whole ring values of the given width");
    return legal;
  }
  refuse("width must be 2, 3, 4, 6, 8 or 16 bytes");
}

inline std::size_t checked_payload(std::size_t payload) {
  if (payload < 1 || payload > kMaxPayload) {
    refuse("a payload has 1 to " + std::to_string(kMaxPayload) + " bytes");
  }
  return payload;
}

inline unsigned checked_threads(std::int64_t num_threads) {
  if (num_threads < 0 || num_threads > 1024) refuse("num_threads must be in [0, 1024]");
  return static_cast<unsigned>(num_threads);
}

// Uninitialised elements that become a NumPy array.
template <class T>
class Buffer {
 public:
  explicit Buffer(Shape shape)
      : shape_(shape.begin(), shape.end()),
        data_(static_cast<T*>(::operator new(product(shape) * sizeof(T), kAlignment))) {
    ask_for_huge_pages(data_.get(), product(shape) * sizeof(T));
  }

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
                std::int64_t num_leaves, unsigned max_depth = kMaxExpandedDepth)
      : key(schedule_of(key_bytes)) {
    if (num_leaves < 1 || num_leaves > std::int64_t{1} << max_depth) {
      refuse("num_leaves must be in [1, 2**48]");  // callers with other limits have checked theirs
    }
    trees.key = &key;
    trees.num_leaves = static_cast<std::size_t>(num_leaves);
    trees.depth = static_cast<unsigned>(std::bit_width(trees.num_leaves - 1));
    trees.num_trees = roots.ndim() ? roots.shape(0) : 0;
    trees.roots = data_of<std::uint8_t>(roots, "roots", {trees.num_trees, 16});
    trees.cw = data_of<std::uint8_t>(cw, "cw", {trees.depth, trees.num_trees, 16});
    trees.cw_right = data_of<std::uint8_t>(cw_right, "cw_right", {trees.depth, trees.num_trees});
    trees.cw_stride = trees.num_trees * 16;
    trees.right_stride = trees.num_trees;
    for (std::size_t i = 0; i < trees.depth * trees.num_trees; ++i) stray |= trees.cw_right[i];
    if (stray > 1) refuse("cw_right holds a value other than 0 and 1");
  }
  TreeArguments(const TreeArguments&) = delete;
  TreeArguments& operator=(const TreeArguments&) = delete;

  const KeySchedule key;
  std::uint8_t stray = 0;
  Trees trees = {};
};

// Both parties' leaves, as hints, check words and tags are made from.
template <class Args>
void take_leaves(Args& args, const In& leaf0, const In& leaf1) {
  args.num_trees = leaf0.ndim() ? leaf0.shape(0) : 0;
  args.leaf[0] = data_of<std::uint8_t>(leaf0, "leaf0", {args.num_trees, 16});
  args.leaf[1] = data_of<std::uint8_t>(leaf1, "leaf1", {args.num_trees, 16});
}

// Whether the trees share one table.
inline bool checked_shared(const In& table, const Trees& trees) {
  const bool shared = table.shape(0) == 1;
  if (!shared && table.shape(0) != trees.num_trees) {
    refuse("table must have one entry, or one a tree");
  }
  return shared;
}

// The table that answers are from, a row a leaf.
template <class Args>
void take_table(Args& args, const In& table, const Trees& trees) {
  args.table = data_of<std::uint8_t>(table, "table", 3);
  args.shared_table = checked_shared(table, trees);
  if (table.shape(1) != trees.num_leaves) refuse("table must have num_leaves rows");
  args.row_bytes = table.shape(2);
}

}  // namespace fsl::arguments
