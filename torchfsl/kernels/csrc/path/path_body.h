// The function table of a path, from its vector type and its products in GF(2^128), if it has any.
#pragma once

#include "accumulate.h"
#include "accumulate_lifted.h"
#include "answer_bits.h"
#include "authenticate.h"
#include "field_products.h"
#include "gf128.h"
#include "leaf_checks.h"
#include "leaf_kernels.h"
#include "path.h"
#include "ring_products.h"
#include "row_digests.h"
#include "tree_gen.h"
#include "tree_path.h"

namespace fsl {
namespace {

// Bytes of a hardware register: the portable type is four of them.
template <class V>
inline constexpr std::size_t row_lane_bytes =
    requires { V::kOutOfLine; } ? 16 : sizeof(typename V::R);

#if defined(FSL_CLIENT_KERNELS)
// What a client calls, and nothing that servers alone need: for builds that must be small.
template <class V>
constexpr Path make_path(const char* name) {
  Path path = {};
  path.name = name;
  path.tree_gen = tree_gen<V>;
  path.convert = convert<V>;
  path.hint_gen = hint_gen<V>;
  path.counter_blocks = counter_blocks<V>;
  path.checks.check_gen = check_gen<V>;
  path.checks.tags[0] = path.checks.tags[1] = tags<V, IntegerProducts>;
  path.checks.row_digests = row_digests<row_lane_bytes<V>>;
  return path;
}
#else
template <class V, template <class> class Products = IntegerProducts>
constexpr Path make_path(const char* name) {
  return {name,
          tree_gen<V>,
          tree_path<V>,
          partition<V>,
          tree_eval<V>,
          accumulate<V>,
          accumulate_lifted<V>,
          answer<V>,
          leaf_bits<V>,
          rows_by_bits<V>,
          convert<V>,
          hint_gen<V>,
          counter_blocks<V>,
          hash_blocks<V>,
          {check_gen<V>,
           verify<V>,
           {authenticate<V, IntegerProducts>, authenticate<V, Products>},
           {tags<V, IntegerProducts>, tags<V, Products>},
           row_digests<row_lane_bytes<V>>},
          field_multiply<FieldLanes>,
          ring_multiply<std::uint32_t>,
          ring_multiply<std::uint64_t>};
}
#endif

}  // namespace
}  // namespace fsl
