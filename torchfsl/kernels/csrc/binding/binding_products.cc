#include "binding_products.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "arguments.h"
#include "kernels.h"

using namespace fsl::arguments;
using nb::literals::operator""_a;

namespace {

constexpr std::uint32_t kLargest = 0xfffffffau;  // p - 1

const std::uint32_t* numbers_of(const In& array, const char* name) {
  const std::uint32_t* numbers = data_of<std::uint32_t>(array, name, 2);
  std::uint32_t beyond = 0;
  for (std::size_t i = 0; i < array.size(); ++i) beyond |= numbers[i] > kLargest;
  if (beyond) refuse(std::string(name) + " must hold numbers below 2**32 - 5");
  return numbers;
}

Out<std::uint32_t> field_multiply(const In& left, const In& right, std::int64_t num_threads) {
  fsl::FieldArgs args = {};
  args.left = numbers_of(left, "left");
  args.right = numbers_of(right, "right");
  args.num_rows = left.shape(0);
  args.num_terms = left.shape(1);
  args.num_columns = right.shape(1);
  if (right.shape(0) != args.num_terms) refuse("right must have as many rows as left has columns");
  if (args.num_terms > fsl::kMaxFieldTerms) refuse("a sum must have at most 2**24 terms");
  const unsigned threads = checked_threads(num_threads);
  Buffer<std::uint32_t> out({args.num_rows, args.num_columns});
  args.out = out.data();
  {
    nb::gil_scoped_release release;
    fsl::field_multiply(args, threads);
  }
  return out.release();
}

template <class T>
Out<T> product_in_ring(const In& left, const In& right, unsigned threads) {
  fsl::RingArgs<T> args = {};
  args.left = data_of<T>(left, "left", 2);
  args.right = data_of<T>(right, "right", 2);
  args.num_rows = left.shape(0);
  args.num_terms = left.shape(1);
  args.num_columns = right.shape(1);
  if (right.shape(0) != args.num_terms) refuse("right must have as many rows as left has columns");
  Buffer<T> out({args.num_rows, args.num_columns});
  args.out = out.data();
  {
    nb::gil_scoped_release release;
    fsl::ring_multiply(args, threads);
  }
  return out.release();
}

nb::object ring_multiply(const In& left, const In& right, std::int64_t num_threads) {
  const unsigned threads = checked_threads(num_threads);
  if (left.dtype() == nb::dtype<std::uint64_t>()) {
    return nb::cast(product_in_ring<std::uint64_t>(left, right, threads));
  }
  return nb::cast(product_in_ring<std::uint32_t>(left, right, threads));
}

}  // namespace

void define_products(nb::module_& m) {
  m.def("field_multiply", field_multiply, "left"_a, "right"_a, "num_threads"_a = 1);
  m.def("ring_multiply", ring_multiply, "left"_a, "right"_a, "num_threads"_a = 1);
}
