#include "statement.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "field128.h"

namespace fsl::client {
namespace {

constexpr u64 kMaxCarries = 16, kFour = 4;

// Natural numbers that the choice of `num_carries` needs: 2048 bits in words of 32.
struct Big {
  std::array<u32, 64> word = {};
  explicit Big(u32 start) { word[0] = start; }
  void multiply(u128 factor) {
    std::array<u32, 64> result = {};
    for (unsigned shift = 0; shift < 4; ++shift) {
      const u64 part = static_cast<u32>(factor >> (32 * shift));
      u64 carry = 0;
      for (unsigned i = 0; i + shift < 64; ++i) {
        carry += part * word[i] + result[i + shift];
        result[i + shift] = static_cast<u32>(carry);
        carry >>= 32;
      }
    }
    word = result;
  }
  bool operator<=(const Big& other) const {
    return !std::lexicographical_compare(other.word.rbegin(), other.word.rend(), word.rbegin(),
                                         word.rend());
  }
};

// The least T with E^(T+1) / (T+1)! <= 2^-60, E = magnitudes / 2^l.
u64 carries_for(u128 magnitudes, unsigned ring_bits) {
  Big wraps(1), allowed(1);
  wraps.multiply(magnitudes);
  wraps.multiply(u128{1} << 60);
  allowed.multiply(u128{1} << ring_bits);
  for (u64 carries = 1; carries <= kMaxCarries; ++carries) {
    wraps.multiply(magnitudes);
    allowed.multiply(carries + 1);
    allowed.multiply(u128{1} << ring_bits);
    if (wraps <= allowed) return carries;
  }
  invalid("its values wrap too often in their ring to prove anything about them");
}

u64 values_of(const Segment& s) { return s.dense() ? s.m : (s.num_trees() << s.nu) * s.tau; }

// As few calls as the order leaves room for: the least arity.
u64 least_arity(const std::vector<u64>& sizes, u64 room) {
  u64 low = 1, high = *std::max_element(sizes.begin(), sizes.end());
  while (low < high) {
    const u64 middle = (low + high) / 2;
    u64 calls = 0;
    for (const u64 size : sizes) calls += ceil_div(size, middle);
    (calls <= room ? high : low) = calls <= room ? middle : middle + 1;
  }
  return low;
}

u64 order_of(u64 num_calls) { return u64{1} << std::bit_width(num_calls); }

}  // namespace

bool reaches_modulus(std::initializer_list<u128> factors) {
  u128 left = field128::kModulus - 1;
  for (const u128 factor : factors) {
    if (!factor) return false;
    left /= factor;
  }
  return left == 0;
}

Statement::Statement(const Plan& plan)
    : norm(plan.proofs == TFSL_PROOFS_NORM ? plan.l2_bound : 0),
      weighted(plan.lane == TFSL_LANE_WEIGHT),
      has_lanes(plan.lane != TFSL_LANE_NONE),
      width(plan.segments[0].width()) {
  std::vector<const Segment*> all(plan.trees);
  all.insert(all.end(), plan.dense.begin(), plan.dense.end());
  const unsigned ring_bits = 8 * width;
  u128 whole = 0, sent = 0, num_free = kFour, most_terms = 0;
  for (const Segment* s : all) {
    if (s->width() != width) invalid("proofs want one ring for all segments");
    if (s->name == kCarriesName) invalid("a segment has the name of the proof's trees");
    for (const Group& group : s->groups) {
      if (group.num_leaves >> 30) invalid("proofs take trees of fewer than 2**30 leaves");
    }
    whole += values_of(*s);
    sent += u128{s->dense() ? s->m : s->k_max} * s->tau;
    if (!s->l2_bound) num_free += values_of(*s);
    if (!s->dense() && has_lanes) num_lanes += s->num_trees() << s->nu;
  }
  const auto add = [&](ProofGroup::What what, const Segment* segment, u64 size, u64 slack) {
    groups.push_back({what, segment, num_values, size, slack, 0, 0});
    num_values += size;
    num_slack += slack;
    most_terms = std::max<u128>(most_terms, size);
  };
  const u128 bound = norm, most = plan.max_weight;
  u128 largest = most * std::max<u128>(bound, 1), magnitudes = 0;
  if (norm) {
    add(ProofGroup::kNorm, nullptr, static_cast<u64>(num_free), kFour);
    for (const Segment* s : all) {
      if (!s->l2_bound) continue;
      add(ProofGroup::kNorm, s, values_of(*s), 0);
      add(ProofGroup::kOwn, s, kFour, kFour);
    }
    most_terms = std::max(most_terms, whole + kFour);
  }
  if (weighted) {
    add(ProofGroup::kWeight, nullptr, 1, 1);
    add(ProofGroup::kRange, nullptr, kFour, kFour);
    for (const Segment* s : plan.dense) add(ProofGroup::kClaim, s, 1, 0);
    for (const Segment* s : plan.trees) {
      largest = std::max(largest, most * (root_of(s->k_max) + 1));
    }
    most_terms = std::max<u128>(most_terms, 1 + kFour + 1);
  }
  if (has_lanes) {
    for (const Segment* s : plan.trees) add(ProofGroup::kLane, s, s->num_trees() << s->nu, 0);
    for (const Segment* s : plan.trees) add(ProofGroup::kSlack, s, kFour, kFour);
  }
  most_terms = std::max<u128>(most_terms, num_lanes + (weighted ? kFour : 0));
  if (largest >> (ring_bits - 1)) invalid("a bound or weight does not fit the ring of its proof");
  if (norm) {
    magnitudes += most * ((root_of(sent) + 1) * bound + 2 * bound);
    for (const Segment* s : all) magnitudes += 2 * most * s->l2_bound;
  }
  if (has_lanes) {
    for (const Segment* s : plan.trees) {
      magnitudes += most * (s->k_max + 2 * (u128{root_of(s->k_max)} + 1));
    }
  }
  if (weighted) magnitudes += most * (2 + plan.dense.size());
  num_carries = carries_for(magnitudes, ring_bits);
  const u128 lifted = u128{1 + num_carries} << ring_bits;
  if (reaches_modulus({most_terms, lifted, lifted + 1})) {
    invalid("too many values to prove anything about them");
  }
  if (weighted) {
    u128 rows = 0, away = 0;
    for (const Segment* s : plan.trees) {
      rows += s->k_max;
      away = std::max(away, (u128{root_of(s->k_max)} + 2) * most);
    }
    if (reaches_modulus({rows, most, most, away, away}))
      invalid("max_weight is too large to prove");
  }
  carries = {num_carries, std::max(num_values, num_carries), norm ? 4u : 0u, kCheckBytes, 0, 0};
  carries.num_leaves = ceil_div(carries.domain, u64{1} << carries.nu);
  carries.depth = static_cast<unsigned>(std::bit_width(carries.num_leaves - 1));
  for (u64 left = num_carries; left; left -= weights.back()) weights.push_back((left + 1) / 2);
  std::vector<u64> sizes;
  for (const ProofGroup& group : groups) sizes.push_back(group.size);
  sizes.push_back(num_carries << carries.nu);
  const u64 tail = weights.size();
  u64 best = ~u64{0};
  for (u64 points = 2; 2 * points - 1 < best; points *= 2) {
    if (points - 1 < tail + sizes.size()) continue;
    const u64 own = least_arity(sizes, points - 1 - tail);
    u64 calls = tail;
    for (const u64 size : sizes) calls += ceil_div(size, own);
    const u64 elements = own + 2 * order_of(calls) - 1;
    if (elements <= best) {
      best = elements;
      num_calls = calls;
      arity = own;
      order = order_of(calls);
    }
  }
  u64 call = 0;
  for (ProofGroup& group : groups) {
    group.first_call = call;
    group.num_calls = ceil_div(group.size, arity);
    call += group.num_calls;
  }
  if (!weighted) return;
  best = ~u64{0};
  for (u64 points = 2; points <= 2 * num_lanes || best == ~u64{0}; points *= 2) {
    const u64 own = ceil_div(num_lanes, points - 1), calls = ceil_div(num_lanes, own);
    const u64 elements = 1 + own + 4 * order_of(calls) - 3;
    if (elements < best) {
      best = elements;
      same_arity = own;
      same_calls = calls;
      same_order = order_of(calls);
    }
  }
}

}  // namespace fsl::client
