// The function table of a path, from its vector type.
#pragma once

#include "path.h"
#include "shares.h"
#include "tree_gen.h"

namespace fsl {
namespace {

template <class V>
constexpr Path make_path(const char* name) {
  return {name,      tree_gen<V>, partition<V>, tree_eval<V>,  accumulate<V>,
          answer<V>, convert<V>,  hint_gen<V>,  hash_blocks<V>};
}

}  // namespace
}  // namespace fsl
