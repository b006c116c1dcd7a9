#include "trees.h"

#include <algorithm>
#include <numeric>

#include "check_kernels.h"
#include "kernels.h"

namespace fsl::client {
namespace {

constexpr u64 kNumHashes = 3;

struct Placement {
  Vector<i64> item;
  Vector<u64> position;
};

// placement.place: bins first, what finds none to the stash, the rest nowhere.
Placement place(const Segment& s, const Vector<i64>& ids) {
  Placement out{Vector<i64>(sized(s.num_trees()), -1), Vector<u64>(sized(s.num_trees()))};
  const std::size_t num = ids.size();
  u64 stashed = s.num_bins;
  const auto to_stash = [&](std::size_t item) {
    if (stashed == s.num_trees()) return;
    out.item[stashed] = static_cast<i64>(item);
    out.position[stashed++] = static_cast<u64>(ids[item]);
  };
  if (!s.num_bins) {
    for (std::size_t item = 0; item < num; ++item) to_stash(item);
    return out;
  }
  const u64 bins_each = s.num_bins / kNumHashes;
  Vector<u32> candidates(kNumHashes * num);
  Vector<i64> bins(num);
  for (u64 i = 0; i < kNumHashes; ++i) {
    for (std::size_t item = 0; item < num; ++item) {
      const u64 place = s.order[i * s.m + static_cast<u64>(ids[item])];
      candidates[i * num + item] = static_cast<u32>(place / s.theta + i * bins_each);
    }
  }
  match(candidates.data(), num, s.num_bins, bins.data());
  for (std::size_t item = 0; item < num; ++item) {
    if (bins[item] < 0) {
      to_stash(item);
      continue;
    }
    const u64 bin = static_cast<u64>(bins[item]);
    out.item[bin] = static_cast<i64>(item);
    out.position[bin] = s.order[bin / bins_each * s.m + static_cast<u64>(ids[item])] % s.theta;
  }
  return out;
}

// One row of each block; all are read, under masks.
void choose_slots(const u8* blocks, u64 rows, u64 row_bytes, const Vector<u64>& slots, Bytes& out) {
  out.assign(slots.size() * row_bytes, 0);
  for (std::size_t tree = 0; tree < slots.size(); ++tree) {
    for (u64 row = 0; row < rows; ++row) {
      const u64 different = slots[tree] ^ row;
      u8 mask = static_cast<u8>(((different | (u64{0} - different)) >> 63) - 1);
      __asm__("" : "+r"(mask));
      const u8* from = blocks + (tree * rows + row) * row_bytes;
      for (u64 i = 0; i < row_bytes; ++i) out[tree * row_bytes + i] |= from[i] & mask;
    }
  }
}

// psr.decode: the rows at the selected positions of all trees, once every tag fits.
Bytes decode(const TreeContext& context, const Segment& s, const Selection& own, View model_rows,
             const u8* first, const u8* second) {
  const std::size_t trees = sized(s.num_trees()), block = sized(s.row_bytes() << s.nu);
  Bytes both(s.answer_bytes());
  for (std::size_t i = 0; i < both.size(); ++i) both[i] = first[i] ^ second[i];
  if (s.tag_bytes) {
    const Key row_key =
        derive(model_rows, text(label::kRowDigest), frame({context.plan.digest, view_of(s.name)}));
    Bytes digests(16 * trees), expected(16 * trees);
    row_digests(row_key.data(), trees, {nullptr, both.data(), block, digests.data()});
    const Wiped<KeySchedule> mac(expand_key(context.mac_key(s).data()));
    tags({&mac.value,
          {own.leaf[0].data(), own.leaf[1].data()},
          digests.data(),
          trees,
          expected.data()});
    if (!equal(expected, View(both).subspan(trees * block))) {
      fail(TFSL_PROTOCOL, "tag-mismatch",
           "a server's answer does not fit its tag: nothing retrieved is used; report the servers "
           "to their operators");
    }
  }
  Bytes rows;
  choose_slots(both.data(), u64{1} << s.nu, s.row_bytes(), own.slots, rows);
  return rows;
}

}  // namespace

void grow_trees(const std::vector<Group>& groups, const TreeKeys& keys, const Bytes (&roots)[2],
                const Vector<u64>& alpha, u8* out, Selection& selection) {
  const std::size_t all = alpha.size();
  selection.leaf[0].resize(16 * all);
  selection.leaf[1].resize(16 * all);
  selection.slots.resize(all);
  Vector<u64> leaf(all);
  const unsigned nu = groups.empty() ? 0 : groups[0].nu;
  for (std::size_t i = 0; i < all; ++i) {
    leaf[i] = alpha[i] >> nu;
    selection.slots[i] = alpha[i] & ((u64{1} << nu) - 1);
  }
  const Wiped<KeySchedule> key(expand_key(keys.tree.data()));
  std::size_t first = 0;
  for (const Group& group : groups) {
    const std::size_t trees = group.num_trees, levels = trees * group.depth;
    Bytes right(levels);
    TreeGenArgs args = {};
    args.key = &key.value;
    args.alpha = leaf.data() + first;
    args.num_trees = trees;
    args.depth = group.depth;
    args.cw = out;
    args.cw_right = right.data();
    for (int b = 0; b < 2; ++b) {
      args.roots[b] = roots[b].data() + 16 * first;
      args.leaf[b] = selection.leaf[b].data() + 16 * first;
    }
    tree_gen(args);
    out += 16 * levels;
    std::memset(out, 0, (levels + 7) / 8);
    for (std::size_t i = 0; i < levels; ++i) out[i / 8] |= static_cast<u8>(right[i] << i % 8);
    out += (levels + 7) / 8;
    if (group.check_bytes) {
      Wiped<LeafKeys> leaf_keys(expand_leaf_keys(keys.check.data()));
      check_gen({&leaf_keys.value, {args.leaf[0], args.leaf[1]}, args.alpha, trees, first, out});
      out += trees * group.check_bytes;
    }
    first += trees;
  }
}

Selection grow(const TreeContext& context, const Segment& s, Vector<i64> ids, View root_context,
               const Key (&seeds)[2], Random& random, u8* out) {
  const Placement placed = place(s, ids);
  Vector<u64> alpha;
  alpha.reserve(s.num_trees());
  for (const Group& group : s.groups) {
    const Vector<u64> dummies = random.below(group.domain, group.num_trees);
    alpha.insert(alpha.end(), dummies.begin(), dummies.end());
  }
  for (std::size_t tree = 0; tree < alpha.size(); ++tree) {
    if (placed.item[tree] >= 0) alpha[tree] = placed.position[tree];
  }
  const Bytes roots[2] = {roots_of(root_context, view_of(s.name), s.num_trees(), seeds[0], 0),
                          roots_of(root_context, view_of(s.name), s.num_trees(), seeds[1], 1)};
  Selection selection{std::move(ids), placed.item, {}, {}};
  grow_trees(s.groups, {context.tree_key(s), context.check_key(s)}, roots, alpha, out, selection);
  return selection;
}

void make_hints(const Segment& s, const Key& key, const Selection& selection, const Bytes& values,
                u8* out) {
  const Wiped<KeySchedule> schedule(expand_key(key.data()));
  const std::size_t trees = s.num_trees();
  hint_gen({&schedule.value,
            {selection.leaf[0].data(), selection.leaf[1].data()},
            values.data(),
            selection.slots.data(),
            trees,
            (values.size() / trees) << s.nu,
            s.nu,
            s.width(),
            out});
}

std::vector<Rows> read_rows(const TreeContext& context, const Key (&seeds)[2],
                            const std::vector<Selection>& selections, const Bytes (&answers)[2],
                            bool& finite) {
  constexpr u8 kNonce[12] = {};
  Bytes open[2];
  for (u8 party = 0; party < 2; ++party) {
    open[party].resize(answers[party].size() - kTagBytes);
    if (!gcm_open(context.answer_key(seeds[party], party), kNonce, answers[party],
                  open[party].data())) {
      fail(TFSL_PROTOCOL, "altered-message",
           "a sealed message does not fit its seal: it was altered");
    }
  }
  const View model = View(open[0]).last(32);
  if (!equal(model, View(open[1]).last(32))) {
    fail(TFSL_PROTOCOL, "models-differ",
         "the two servers hold different models: nothing may go on");
  }
  std::vector<Rows> out;
  std::size_t start = 0;
  for (std::size_t i = 0; i < context.plan.early.size(); ++i) {
    const Segment& s = *context.plan.early[i];
    const Selection& own = selections[i];
    const Bytes rows =
        decode(context, s, own, model, open[0].data() + start, open[1].data() + start);
    start += s.answer_bytes();
    Vector<std::pair<i64, u64>> used;  // id and tree
    for (u64 tree = 0; tree < s.num_trees(); ++tree) {
      if (own.item[tree] < 0) continue;
      used.emplace_back(own.ids[static_cast<std::size_t>(own.item[tree])], tree);
    }
    std::sort(used.begin(), used.end());
    Bytes sent;
    Rows found;
    for (const auto& [id, tree] : used) {
      found.ids.push_back(id);
      const u8* row = rows.data() + tree * s.row_bytes();
      sent.insert(sent.end(), row, row + s.row_bytes());
    }
    finite &= widen(sent, s.download, s.tensors[0].dtype, found.values);
    out.push_back(std::move(found));
  }
  return out;
}

}  // namespace fsl::client
