#include "prove.h"

#include <algorithm>
#include <functional>

#include "field128.h"
#include "kernels.h"
#include "proofs.h"

namespace fsl::client {
namespace {

using field128::kModulus;

// By segment what of the values the vector takes: [trees, slots, n], or the dense values.
struct Values {
  Vector<i64> data;
  u64 per_slot = 1;
};
using Vectors = std::vector<Values>;

// --- the field ---

u128 times(u128 a, u128 b) {
  constexpr u128 kRadixSquared = (u128{0x5587ull} << 64) | 0xfffffffffffffcf1ull;  // 2^256 modulo p
  return field128::multiply(field128::multiply(a, kRadixSquared), b);
}

u128 power(u128 base, u128 exponent) {
  u128 result = 1;
  for (; exponent; exponent >>= 1) {
    if (exponent & 1) result = times(result, base);
    base = times(base, base);
  }
  return result;
}

// Of exactly this order, a power of two.
u128 root_of_unity(u64 order) {
  u128 root = power(7, (kModulus - 1) >> 66);
  for (u128 own = u128{1} << 66; own > order; own >>= 1) root = times(root, root);
  return root;
}

u128 element_of(i64 value) {
  const u128 below = u128{0} - (static_cast<u64>(value) >> 63);
  return static_cast<u128>(static_cast<__int128>(value)) + (kModulus & below);
}

void put(Vector<u64>& words, std::size_t at, u128 element) {
  field128::store_element(element, words.data() + 2 * at);
}

// field128.uniform: the blocks of a key's stream that are elements.
Vector<u64> uniform(const Key& key, u64 count) {
  Vector<u64> words(2 * sized(count));
  const Cipher cipher(key);
  constexpr u8 kNoPrefix[8] = {};
  u64 first = 0;
  for (u64 kept = 0; kept < count;) {
    const u64 drawn = count - kept;
    Vector<u64> blocks(2 * drawn);
    cipher.blocks(kNoPrefix, first, reinterpret_cast<u8*>(blocks.data()), 16 * drawn);
    first += drawn;
    for (u64 i = 0; i < drawn; ++i) {
      const u128 element = field128::element(blocks.data() + 2 * i);
      if (element < kModulus) put(words, kept++, element);
    }
  }
  return words;
}

// Coefficients from values at the powers of a root of unity.
Vector<u64> interpolated(const Vector<u64>& values) {
  const u64 size = values.size() / 2;
  const u128 back = power(root_of_unity(size), kModulus - 2), scale = power(size, kModulus - 2);
  Vector<u64> out(values.size());
  TransformArgs args = {values.data(), sized(size), {}, out.data()};
  field128::store_element(back, args.root);
  field_transform(args);
  for (u64 i = 0; i < size; ++i) put(out, i, times(field128::element(out.data() + 2 * i), scale));
  return out;
}

Vector<u64> square_coefficients(const Vector<u64>& points, u64 order, u64 num_wires) {
  Vector<u64> squares(4 * order);
  SquareArgs args = {points.data(), sized(order), sized(num_wires), {}, squares.data()};
  field128::store_element(root_of_unity(2 * order), args.root);
  square_sums(args, 1);
  return interpolated(squares);
}

void append(Vector<u64>& words, const Vector<u64>& more, u64 count) {
  words.insert(words.end(), more.begin(), more.begin() + static_cast<std::ptrdiff_t>(2 * count));
}

// flp.SumsOfSquares.prove, behind `elements`.
void prove_squares(const Statement& st, const Vector<i64>& vector, const Vector<i64>& sums,
                   const std::vector<u64>& bits, Random& random, Vector<u64>& elements) {
  const u64 arity = st.arity;
  const Vector<u64> seeds = uniform(random.key(), arity);
  Vector<u64> points(2 * sized(st.order * arity));
  std::copy(seeds.begin(), seeds.end(), points.begin());
  for (const ProofGroup& group : st.groups) {
    const u64 first = (1 + group.first_call) * arity;
    for (u64 i = 0; i < group.size; ++i)
      put(points, first + i, element_of(vector[group.start + i]));
  }
  const u64 tail = 1 + st.num_calls - bits.size() - ceil_div(sums.size(), arity);
  for (u64 i = 0; i < sums.size(); ++i) put(points, tail * arity + i, element_of(sums[i]));
  for (u64 i = 0; i < bits.size(); ++i) {
    put(points, (1 + st.num_calls - bits.size() + i) * arity, bits[i]);
  }
  append(elements, seeds, arity);
  append(elements, square_coefficients(points, st.order, arity), 2 * st.order - 1);
}

// flp.ZeroOrSame.prove, behind `elements`.
void prove_same(const Statement& st, const i64* lanes, u64 weight, Random& random,
                Vector<u64>& elements) {
  const u64 order = st.same_order, arity = st.same_arity, wires = 1 + arity;
  const Vector<u64> seeds = uniform(random.key(), wires);
  Vector<u64> roots(2 * sized(2 * order * arity)), same;
  for (u64 wire = 0; wire < wires; ++wire) {
    Vector<u64> points(2 * order);
    put(points, 0, field128::element(seeds.data() + 2 * wire));
    for (u64 call = 0; call < st.same_calls; ++call) {
      const u64 at = call * arity + wire - 1;
      const u128 value = !wire ? weight : at < st.num_lanes ? element_of(lanes[at]) : 0;
      put(points, 1 + call, value);
    }
    Vector<u64> longer = interpolated(points), at(4 * order);
    longer.resize(4 * order);
    TransformArgs args = {longer.data(), sized(2 * order), {}, at.data()};
    field128::store_element(root_of_unity(2 * order), args.root);
    field_transform(args);
    if (!wire) {
      same = at;
      continue;
    }
    for (u64 k = 0; k < 2 * order; ++k) {
      const u128 value = field128::element(at.data() + 2 * k);
      const u128 away = field128::subtract(value, field128::element(same.data() + 2 * k));
      put(roots, k * arity + wire - 1, times(value, away));
    }
  }
  append(elements, seeds, wires);
  append(elements, square_coefficients(roots, 2 * order, arity), 4 * order - 3);
}

// --- shares as signed integers ---

i64 lifted(const u8* share, unsigned width, unsigned party) {
  if (party == 0) return load_signed(share, width);
  u64 word = 0;
  std::memcpy(&word, share, width);
  word = u64{0} - word;
  return -load_signed(reinterpret_cast<const u8*>(&word), width);
}

Bytes converted(const Key& key, const Bytes& states, std::size_t payload) {
  const Wiped<KeySchedule> schedule(expand_key(key.data()));
  Bytes out(states.size() / 16 * payload);
  convert({&schedule.value, states.data(), states.size() / 16, payload, out.data()});
  return out;
}

// lifts.leaf_lifts of the first `count` values of every leaf.
Vector<i64> leaf_lifts(const Key& key, const Bytes& states, const u8* hints, std::size_t stride,
                       u64 count, unsigned width, unsigned party) {
  const std::size_t payload = count * width, trees = states.size() / 16;
  const Bytes own = converted(key, states, payload);
  Vector<i64> out(trees * count);
  for (std::size_t tree = 0; tree < trees; ++tree) {
    const u64 chosen = u64{0} - (states[16 * tree] & 1);
    for (u64 i = 0; i < count; ++i) {
      u64 word = 0, hint = 0;
      std::memcpy(&word, own.data() + tree * payload + i * width, width);
      std::memcpy(&hint, hints + tree * stride + i * width, width);
      word += hint & chosen;
      const i64 whole = load_signed(reinterpret_cast<const u8*>(&word), width);
      out[tree * count + i] = party ? -whole : whole;  // its share is the negative
    }
  }
  return out;
}

// Statement.vector.
Vector<i64> vector_of(const Plan& plan, const Vectors& values, const Vector<i64>& slack) {
  const Statement& st = *plan.statement;
  Vector<i64> out;
  out.reserve(st.num_values);
  const auto values_in = [&](const Segment& s) -> const Values& {
    return values[static_cast<std::size_t>(&s - plan.segments.data())];
  };
  const auto norm_of = [&](const Segment& s) {
    const Values& own = values_in(s);
    const u64 skipped = s.dense() ? 0 : st.has_lanes;
    const u64 first = s.dense() ? st.weighted : 0;
    for (u64 at = first; at < own.data.size(); at += own.per_slot) {
      for (u64 i = skipped; i < own.per_slot; ++i) out.push_back(own.data[at + i]);
    }
  };
  std::size_t taken = 0;
  for (const ProofGroup& group : st.groups) {
    if (group.what == ProofGroup::kNorm && group.segment) {
      norm_of(*group.segment);
    } else if (group.what == ProofGroup::kNorm) {
      for (const Segment* s : plan.trees) {
        if (!s->l2_bound) norm_of(*s);
      }
      for (const Segment* s : plan.dense) {
        if (!s->l2_bound) norm_of(*s);
      }
    } else if (group.what == ProofGroup::kClaim) {
      out.push_back(values_in(*group.segment).data[0]);
    } else if (group.what == ProofGroup::kLane) {
      const Values& own = values_in(*group.segment);
      for (u64 at = 0; at < own.data.size(); at += own.per_slot) out.push_back(own.data[at]);
    }
    for (u64 i = 0; i < group.slack; ++i) out.push_back(slack[taken++]);
  }
  return out;
}

// What is carried, and both parties' lifted shares of it.
void collect(const Plan& plan, const ReportContext& report, const Key (&seeds)[2], const Sent& sent,
             unsigned public_party, Vectors& carried, Vectors (&shares)[2]) {
  const Statement& st = *plan.statement;
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& s = plan.segments[i];
    const u64 slots = u64{1} << s.nu;
    if (!s.dense()) {
      const Selection& own = *sent.trees[i];
      const u64 n = plan.leaf_values(s), count = st.leaf_values(plan, s);
      carried[i] = {Vector<i64>(sized(s.num_trees() * slots * n)), n};
      for (u64 tree = 0; tree < s.num_trees(); ++tree) {
        std::copy_n(sent.values[i].begin() + static_cast<std::ptrdiff_t>(tree * n), n,
                    carried[i].data.begin() +
                        static_cast<std::ptrdiff_t>((tree * slots + own.slots[tree]) * n));
      }
      const Key key = report.public_key(text(label::kConvert), view_of(s.name));
      for (unsigned party = 0; party < 2; ++party) {
        shares[party][i] = {leaf_lifts(key, own.leaf[party], sent.travelling[i],
                                       plan.hint_bytes(s) / s.num_trees(), count, s.width(), party),
                            count / slots};
      }
    } else if (st.reads_dense()) {
      const u64 count = plan.dense_values(s);
      carried[i].data = sent.values[i];
      for (u8 party = 0; party < 2; ++party) {
        Bytes share = stream(report.dense_mask(s, seeds[party], party), plan.dense_bytes(s));
        Vector<i64>& own = shares[party][i].data;
        own.resize(count);
        for (u64 j = 0; j < count; ++j) {
          u64 word = 0, masked = 0;
          std::memcpy(&word, share.data() + j * s.width(), s.width());
          std::memcpy(&masked, sent.travelling[i] + j * s.width(), s.width());
          if (party == public_party) word += masked;
          own[j] = lifted(reinterpret_cast<const u8*>(&word), s.width(), party);
        }
      }
    }
  }
}

u128 squares_of(const i64* values, u64 count) {
  u128 total = 0;
  for (u64 i = 0; i < count; ++i) {
    total += static_cast<u128>(static_cast<__int128>(values[i]) * values[i]);
  }
  return total;
}

// What is left of every bound, as the roots of four squares; and the weight.
Vector<i64> slack_of(const Plan& plan, const Vectors& values, u64 weight) {
  const Statement& st = *plan.statement;
  const Vector<i64> blank = vector_of(plan, values, Vector<i64>(st.num_slack));
  const u128 unit = st.weighted ? weight : 1;
  const auto part = [&](ProofGroup::What what, const Segment* segment) -> const ProofGroup& {
    return *std::find_if(st.groups.begin(), st.groups.end(), [&](const ProofGroup& g) {
      return g.what == what && g.segment == segment;
    });
  };
  Vector<i64> slack;
  for (const ProofGroup& group : st.groups) {
    if (!group.slack) continue;
    u128 left = 0;
    if (group.what == ProofGroup::kWeight) {
      slack.push_back(static_cast<i64>(weight));
      continue;
    }
    if (group.what == ProofGroup::kNorm) {
      left = (unit * st.norm) * (unit * st.norm);
      for (const ProofGroup& g : st.groups) {
        if (g.what == ProofGroup::kNorm) left -= squares_of(blank.data() + g.start, g.size);
      }
    } else if (group.what == ProofGroup::kOwn) {
      const ProofGroup& own = part(ProofGroup::kNorm, group.segment);
      const u128 bound = unit * group.segment->l2_bound;
      left = bound * bound - squares_of(blank.data() + own.start, own.size);
    } else if (group.what == ProofGroup::kRange) {
      left = u128{weight} * (plan.max_weight - weight);
    } else {
      const ProofGroup& lanes = part(ProofGroup::kLane, group.segment);
      left =
          unit * unit * group.segment->k_max - squares_of(blank.data() + lanes.start, lanes.size);
    }
    for (const u64 root : four_squares(left)) slack.push_back(static_cast<i64>(root));
  }
  return slack;
}

// --- carry trees ---

u64 seven_bytes(const u8* from) {
  u64 word = 0;
  std::memcpy(&word, from, kCarryWidth);
  return word;
}

// carries.grow: to `out` trees and hints; what they carry, or false if a share of that has wrapped.
bool grow_carries(const Statement& st, const ReportContext& report, const Key (&seeds)[2],
                  const Vector<i64>& wraps, Random& random, u8* out, Vector<i64>& sums) {
  const Group& group = st.carries;
  const u64 trees = group.num_trees, slots = u64{1} << group.nu;
  Vector<u64> alpha = random.below(group.domain, trees);
  Vector<u64> values(trees * slots);
  u64 used = 0;
  for (u64 i = 0; i < wraps.size(); ++i) {
    if (!wraps[i]) continue;
    alpha[used] = i;
    values[used * slots + (i & (slots - 1))] = static_cast<u64>(wraps[i]);
    ++used;
  }
  const View name = text(kCarriesName);
  const Bytes roots[2] = {roots_of(report.encoded, name, trees, seeds[0], 0),
                          roots_of(report.encoded, name, trees, seeds[1], 1)};
  Selection own;
  grow_trees(
      {group},
      {report.public_key(text(label::kTree), name), report.public_key(text(label::kCheck), name)},
      roots, alpha, out, own);
  const Key key = report.public_key(text(label::kConvert), name);
  Bytes leaves[2];
  for (int b = 0; b < 2; ++b) leaves[b] = converted(key, own.leaf[b], slots * kCarryWidth);
  u8* hints = out + group.tree_bytes();
  sums.assign(trees * slots, 0);
  bool fits = true;
  for (u64 i = 0; i < trees * slots; ++i) {
    const u64 first = seven_bytes(leaves[0].data() + i * kCarryWidth);
    const u64 second = seven_bytes(leaves[1].data() + i * kCarryWidth);
    const u64 bit[2] = {u64{0} - (own.leaf[0][16 * (i / slots)] & 1u),
                        u64{0} - (own.leaf[1][16 * (i / slots)] & 1u)};
    const u64 plain = values[i] - first + second;
    const u64 hint = (plain ^ bit[1]) - bit[1];
    std::memcpy(hints + i * kCarryWidth, &hint, kCarryWidth);
    const i64 one = static_cast<i64>((first + (hint & bit[0])) << 8) >> 8;
    const i64 two = static_cast<i64>((second + (hint & bit[1])) << 8) >> 8;
    sums[i] = one - two;
    fits &= static_cast<u64>(sums[i]) == values[i];
  }
  return fits;
}

// --- sums of four squares: norm_bound.four_squares ---

bool is_three_squares(u64 total) {
  while (total && total % 4 == 0) total /= 4;
  return total % 8 != 7;
}

bool two_squares(u64 total, u64& larger, u64& smaller) {
  if (total % 4 == 3) return false;
  for (larger = root_of(total);; --larger) {
    const u64 rest = total - larger * larger;
    if (rest > larger * larger) return false;
    smaller = root_of(rest);
    if (smaller * smaller == rest) return true;
    if (!larger) return false;
  }
}

}  // namespace

std::array<u64, 4> four_squares(u128 total) {
  constexpr int kSeconds = 64;
  u64 scale = 1;
  for (; total && total % 4 == 0; total /= 4) scale *= 2;
  for (u64 first = root_of(total);; --first) {
    const u64 rest = static_cast<u64>(total - u128{first} * first);
    u64 second = root_of(rest), third, fourth;
    for (int tries = is_three_squares(rest) ? kSeconds : 0; tries; --tries) {
      if (two_squares(rest - second * second, third, fourth)) {
        std::array<u64, 4> roots = {scale * first, scale * second, scale * third, scale * fourth};
        std::sort(roots.begin(), roots.end(), std::greater<>());
        return roots;
      }
      if (!second--) break;
    }
    if (!first) fail(TFSL_INTERNAL, "error", "every number is a sum of four squares");
  }
}

bool prove(const TreeContext& context, const ReportContext& report, const Key (&seeds)[2],
           const Sent& sent, Random& random, u8* out, u8* masked) {
  const Plan& plan = context.plan;
  const Statement& st = *plan.statement;
  const unsigned first = context.public_party();
  Vectors carried(plan.segments.size()), shares[2] = {carried, carried};
  collect(plan, report, seeds, sent, first, carried, shares);
  const Vector<i64> slack = slack_of(plan, carried, sent.weight);
  Bytes masks[2];
  for (u64 i = 0; i < slack.size(); ++i) store_ring(slack[i], st.width, masked + i * st.width);
  for (u8 party = 0; party < 2; ++party) {
    masks[party] = stream(report.proof_mask(text("slack"), seeds[party], party), st.slack_bytes());
    subtract_ring(masked, masks[party].data(), slack.size(), st.width);
  }
  Vector<i64> sums = vector_of(plan, carried, slack);
  const Vector<i64> vector = sums;
  for (i64& value : sums) value = -value;
  for (unsigned party = 0; party < 2; ++party) {
    Vector<i64> own(slack.size());
    for (u64 i = 0; i < own.size(); ++i) {
      u64 word = 0, travelling = 0;
      std::memcpy(&word, masks[party].data() + i * st.width, st.width);
      std::memcpy(&travelling, masked + i * st.width, st.width);
      if (party == first) word += travelling;
      own[i] = lifted(reinterpret_cast<const u8*>(&word), st.width, party);
    }
    const Vector<i64> share = vector_of(plan, shares[party], own);
    for (u64 i = 0; i < sums.size(); ++i) sums[i] += share[i];
  }
  u64 wrapped = 0;
  for (i64& value : sums) {
    value >>= 8 * st.width;
    wrapped += value != 0;
  }
  if (wrapped > st.num_carries) return false;
  Vector<i64> totals;
  if (!grow_carries(st, report, seeds, sums, random, out, totals)) return false;
  u64 wanted = static_cast<u64>(squares_of(totals.data(), totals.size()));
  std::vector<u64> bits;
  for (const u64 part : st.weights) {
    bits.push_back(wanted >= part);
    wanted -= part * bits.back();
  }
  Vector<u64> elements;
  elements.reserve(2 * st.num_elements());
  for (const u64 bit : bits) elements.insert(elements.end(), {bit, 0});
  prove_squares(st, vector, totals, bits, random, elements);
  if (st.same_arity) {
    const auto lanes = std::find_if(st.groups.begin(), st.groups.end(), [](const ProofGroup& g) {
      return g.what == ProofGroup::kLane;
    });
    prove_same(st, vector.data() + lanes->start, sent.weight, random, elements);
  }
  for (u8 party = 0; party < 2; ++party) {
    const Key key = report.proof_mask(text("elements"), seeds[party], party);
    const Vector<u64> mask = uniform(key, st.num_elements());
    for (u64 i = 0; i < st.num_elements(); ++i) {
      put(elements, i,
          field128::subtract(field128::element(elements.data() + 2 * i),
                             field128::element(mask.data() + 2 * i)));
    }
  }
  std::memcpy(masked + st.slack_bytes(), elements.data(), 16 * st.num_elements());
  return true;
}

}  // namespace fsl::client
