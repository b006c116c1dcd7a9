// A client's trees: placing rows, growing, hints, and reading the servers' answers on them.
#pragma once

#include "encode.h"
#include "keys.h"
#include "plan.h"

namespace fsl::client {

// Trees of one segment at the client; secret.
struct Selection {
  Vector<i64> ids;    // in the order in which they were placed
  Vector<i64> item;   // by tree, the place in `ids` of what it holds, or -1
  Bytes leaf[2];      // [num_trees, 16], both parties' states at the selected leaves
  Vector<u64> slots;  // within leaf blocks
};

struct TreeKeys {
  Key tree, check;
};

// What is common to segments and carry trees: trees of groups that select `alpha`, their public
// parts to `out`, one group behind the other.
void grow_trees(const std::vector<Group>& groups, const TreeKeys& keys, const Bytes (&roots)[2],
                const Vector<u64>& alpha, u8* out, Selection& selection);

// Places `ids` in the given order, draws dummies, and grows; `out` receives tree_bytes(). The
// context is that of the trees, or of the report that they travel in.
Selection grow(const TreeContext& context, const Segment& s, Vector<i64> ids, View root_context,
               const Key (&seeds)[2], Random& random, u8* out);

// Hints of `values [num_trees, n, width]`, to `out`, `hint_bytes` of them.
void make_hints(const Segment& s, const Key& key, const Selection& selection, const Bytes& values,
                u8* out);

struct Rows {
  Vector<i64> ids;
  Bytes values;  // [k, tau] in the tensors' dtype
};

// Both servers' sealed answers: rows by retrieved segment. Throws a Failure (TFSL_PROTOCOL); sets
// `finite` to false if a row is not.
std::vector<Rows> read_rows(const TreeContext& context, const Key (&seeds)[2],
                            const std::vector<Selection>& selections, const Bytes (&answers)[2],
                            bool& finite);

}  // namespace fsl::client
