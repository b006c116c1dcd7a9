#include "plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "json.h"
#include "kernels.h"
#include "seal.h"
#include "statement.h"

namespace fsl::client {
namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 24;
constexpr u64 kMaxPositions = u64{1} << 32, kMaxMessage = u64{1} << 32, kMaxBound = u64{1} << 62,
              kMaxSigma = (u64{1} << 31) - 1;
// Positions of all segments with bins, whose permutations take 12 bytes each: a limit of this core.
constexpr u64 kMaxPermuted = u64{1} << 27;
constexpr unsigned kMaxProvenRing = 48, kBitLevels = 7;
constexpr u128 kHuge = u128{1} << 70;

void expect(bool holds, const std::string& why) {
  if (!holds) invalid(why);
}

// A whole number of the range that the plan's checks below can take.
u64 natural(Json& json) {
  const i64 value = json.integer();
  if (value < 0) json.bad("negative");
  return static_cast<u64>(value);
}

Encoding read_encoding(Json& json) {
  Encoding e;
  const unsigned seen = json.object([&](const std::string& key) {
    if (key == "clip") {
      e.clip = json.number();
    } else if (key == "frac_bits") {
      const u64 bits = natural(json);
      if (bits > 52) json.bad("above 52");
      e.frac_bits = static_cast<u32>(bits);
    } else if (key == "ring_bits") {
      const u64 bits = natural(json);
      for (const u32 legal : {16, 24, 32, 48, 64, 128}) {
        if (bits == legal) e.ring_bits = legal;
      }
    } else if (key == "rounding") {
      e.stochastic = json.choice({"nearest", "stochastic"});
    } else {
      json.unsupported();
    }
  });
  if (seen != 4 || !e.ring_bits) json.bad("an encoding has a clip, frac_bits, ring_bits, rounding");
  const double most = std::floor(std::ldexp(e.clip, static_cast<int>(e.frac_bits)));
  const double limit = std::ldexp(1.0, static_cast<int>(std::min(e.ring_bits, 64u)) - 1);
  if (!(most >= 1) || !(most < limit)) json.bad("the clip does not fit the ring");
  e.q_max = static_cast<i64>(most);
  if (static_cast<u64>(e.q_max) > e.capacity()) json.bad("the clip does not fit the ring");
  return e;
}

Tensor read_tensor(Json& json) {
  Tensor t;
  const unsigned seen = json.object([&](const std::string& key) {
    if (key == "dtype") {
      t.dtype = json.choice({"float16", "float32", "float64"});
    } else if (key == "name") {
      t.name = json.string();
    } else if (key == "shape") {
      json.array([&] { t.shape.push_back(natural(json)); });
    } else {
      json.unsupported();
    }
  });
  if (seen != 3 || t.name.empty()) json.bad("a tensor has a dtype, a name and a shape");
  u128 count = 1;
  for (const u64 extent : t.shape) count = std::min(kHuge, count * std::min(u128{extent}, kHuge));
  if (count > kMaxMessage) json.bad("too many elements");
  t.numel = static_cast<u64>(count);
  return t;
}

Segment read_segment(Json& json) {
  Segment s;
  unsigned optional = 0;
  const auto small = [&](u64 most) {
    const u64 value = natural(json);
    if (value > most) json.bad("out of range");
    return static_cast<unsigned>(value);
  };
  const unsigned seen = json.object([&](const std::string& key) {
    if (key == "check_bytes") {
      s.check_bytes = small(kCheckBytes);
    } else if (key == "download") {
      ++optional;
      s.download = 1 + json.choice({"float16", "bfloat16"});
    } else if (key == "encoding") {
      ++optional;
      s.own = read_encoding(json);
    } else if (key == "k_max") {
      s.k_max = natural(json);
    } else if (key == "l2_bound") {
      ++optional;
      s.l2_bound = natural(json);
      if (!s.l2_bound) json.bad("stands in a plan only where it is not 0");
    } else if (key == "m") {
      s.m = natural(json);
    } else if (key == "name") {
      s.name = json.string();
    } else if (key == "nu") {
      s.nu = small(7);
    } else if (key == "num_bins") {
      s.num_bins = natural(json);
    } else if (key == "policy") {
      s.policy = json.choice({"rows", "blocks", "scalars", "dense"});
    } else if (key == "retrieve") {
      s.retrieve = json.boolean();
    } else if (key == "stash") {
      s.stash = natural(json);
    } else if (key == "subset") {
      json.array([&] { json.unsupported(); });
    } else if (key == "tag_bytes") {
      s.tag_bytes = small(16);
    } else if (key == "tau") {
      s.tau = natural(json);
    } else if (key == "tensors") {
      json.array([&] { s.tensors.push_back(read_tensor(json)); });
    } else if (key == "theta") {
      s.theta = natural(json);
    } else {
      json.unsupported();
    }
  });
  if (seen - optional != 14) json.bad("a segment lacks a field");
  return s;
}

void check_tensors(Segment& s, const std::string& where) {
  u64 index_space = 0;
  for (Tensor& t : s.tensors) {
    expect(t.dtype == s.tensors[0].dtype || s.policy != TFSL_ROWS, where + "its dtypes differ");
    expect(t.dtype != TFSL_FLOAT16 || !s.download, where + "16 bits already: download 'full'");
    t.positions = ceil_div(t.numel, s.tau);
    if (s.policy == TFSL_ROWS) {
      u128 wide = 1;
      for (std::size_t i = 1; i < t.shape.size(); ++i) {
        wide = std::min(kHuge, wide * std::min(u128{t.shape[i]}, kHuge));
      }
      expect(t.shape.size() >= 2 && wide == s.tau, where + "its rows are not tau wide");
      expect(t.shape[0] <= kMaxPositions, where + "too many rows");
      t.positions = t.shape[0];
    }
    index_space += t.positions;
  }
  expect(s.m == index_space, where + "m does not fit its tensors");
}

void check_layout(Segment& s, const std::string& where) {
  const bool by_bits = s.retrieve && !s.tag_bytes;
  expect(s.tag_bytes == 0 || (s.tag_bytes == 16 && s.retrieve), where + "tag_bytes");
  expect(s.check_bytes == 0 || (s.check_bytes == kCheckBytes && !s.dense()), where + "check_bytes");
  expect(!s.tag_bytes || s.check_bytes, where + "tags go with check words");
  if (s.dense()) {
    expect(s.k_max == s.m && !s.num_bins && !s.theta && !s.nu && !s.stash, where + "dense");
    return;
  }
  expect(s.stash <= s.k_max, where + "stash");
  if (!s.num_bins) {
    expect(s.stash == s.k_max && !s.theta, where + "full-domain trees need stash = k_max, theta 0");
  } else {
    expect(s.num_bins % 3 == 0 && s.theta >= 1 && s.num_bins == 3 * ceil_div(s.m, s.theta),
           where + "bins must be 3 * ceil(m / theta)");
    const unsigned nu = by_bits ? kBitLevels : s.nu;
    const u128 padded = u128{ceil_div(s.theta, u64{1} << nu)} << nu;
    expect(s.num_bins * padded <= kMaxPositions, where + "too many slots in its bins");
  }
  const auto group = [&](u64 num_trees, u64 domain) {
    if (!num_trees) return;
    const u64 leaves = ceil_div(domain, u64{1} << s.nu);
    s.groups.push_back({num_trees, domain, s.nu, s.check_bytes, leaves,
                        static_cast<unsigned>(std::bit_width(leaves - 1))});
  };
  group(s.num_bins, s.theta);
  group(s.stash, s.m);
}

void check_segment(Segment& s, const Plan& plan) {
  const std::string where = "segment '" + s.name.substr(0, 64) + "': ";
  expect(!s.name.empty() && !s.tensors.empty(), "a segment needs a name and tensors");
  expect(1 <= s.m && s.m <= kMaxPositions, where + "m is out of range");
  expect(s.tau >= 1 && 1 <= s.k_max && s.k_max <= s.m, where + "tau or k_max is out of range");
  expect(s.tau <= kMaxMessage, where + "tau is out of range");
  expect(s.tau == 1 || s.policy == TFSL_ROWS || s.policy == TFSL_BLOCKS, where + "tau is not 1");
  expect(!s.retrieve || s.policy == TFSL_ROWS, where + "only rows can be retrieved privately");
  check_tensors(s, where);
  check_layout(s, where);
  s.encoding = s.own ? *s.own : plan.encoding;
  expect(s.encoding.stochastic == plan.encoding.stochastic, where + "another rounding");
  expect(!plan.l2_bound || s.encoding.frac_bits == plan.encoding.frac_bits,
         where + "l2_bound is one norm in one unit");
  const u128 own = u128{s.l2_bound} * s.l2_bound, least = u128{s.k_max} * s.tau;
  expect(!s.l2_bound || (plan.l2_bound && s.l2_bound <= plan.l2_bound && least <= own),
         where + "its l2_bound does not fit");
}

void check_cohort(const Plan& plan) {
  expect(1 <= plan.min_clients && plan.min_clients <= plan.max_clients, "min_clients, max_clients");
  expect(plan.max_weight >= 1 && (plan.max_weight == 1 || plan.lane == TFSL_LANE_WEIGHT),
         "max_weight does not fit the lane");
  expect(1 <= plan.min_contributors && plan.min_contributors <= plan.max_clients,
         "min_contributors");
  expect(plan.min_contributors == 1 || plan.lane == TFSL_LANE_COUNT,
         "min_contributors needs counts");
  const bool limits = plan.max_participations || plan.min_separation != 1;
  expect(!limits || (plan.l2_bound && plan.noise_sigma), "participation limits need noise");
  expect(plan.clip == TFSL_CLIP_WHOLE || plan.l2_bound, "clip needs l2_bound");
  expect(!plan.sum_bound || plan.l2_bound, "sum_bound needs l2_bound");
  expect(plan.min_separation >= 1, "min_separation");
  expect(!limits || std::max(plan.max_participations, plan.min_separation) <= plan.max_rounds,
         "participation limits are above max_rounds");
}

void check_noise(const Plan& plan) {
  u128 values = 0;
  for (const Segment& s : plan.segments) values += u128{s.k_max} * s.tau;
  expect(
      plan.l2_bound <= kMaxBound && plan.noise_sigma <= kMaxSigma && plan.lane_sigma <= kMaxSigma,
      "l2_bound, noise_sigma or lane_sigma is out of range");
  expect(!plan.l2_bound || u128{plan.l2_bound} * plan.l2_bound >= values, "l2_bound is too small");
  expect(!plan.noise_sigma || plan.l2_bound, "noise needs l2_bound");
  expect((plan.lane_sigma > 0) == (plan.noise_sigma > 0 && plan.lane != TFSL_LANE_NONE),
         "lane_sigma is above 0 exactly when there is noise, and a lane");
  const auto tail = [](u64 sigma) {
    return u128{root_of(u128{162} * sigma * sigma)} + (sigma > 0);
  };
  const auto room = [&](const Encoding& e) {
    const u128 capacity = e.capacity(), cohort = u128{plan.max_clients} * plan.max_weight;
    expect(cohort <= capacity &&
               cohort * static_cast<u64>(e.q_max) + tail(plan.noise_sigma) <= capacity &&
               cohort + tail(plan.lane_sigma) <= capacity,
           "a sum could leave its ring");
  };
  for (const Segment& s : plan.segments) room(s.encoding);
}

void check_trees(const Plan& plan) {
  for (const Segment* s : plan.trees) {
    expect(s->check_bytes == plan.trees[0]->check_bytes, "all trees carry check words, or none");
    expect(!s->retrieve || !s->check_bytes || s->tag_bytes, "with check words, answers carry tags");
  }
}

// Whether all messages are below the limit; also before anything is made of larger sizes.
void check_sizes(const Plan& plan) {
  u128 masked = 0, trees = 0, sums = 0, answers = 0, clear = 0, verdict = 16, permuted = 0;
  for (const Segment& s : plan.segments) {
    const u128 width = s.width(), apart = plan.min_contributors > 1 ? 32 : 0;
    if (s.dense()) {
      masked += (u128{s.m} + (plan.lane == TFSL_LANE_WEIGHT)) * width;
    } else {
      const u128 leaf = (u128{s.tau} + plan.lanes()) * width;
      trees += u128{s.num_trees()} * (leaf << s.nu);
      for (const Group& group : s.groups) {
        const u128 levels = u128{group.num_trees} * group.depth;
        trees += levels * 16 + (levels + 7) / 8 + u128{group.num_trees} * group.check_bytes;
      }
      sums += s.m * (leaf + apart);
      if (leaf << s.nu > kMaxPayload) {
        fail(TFSL_UNSUPPORTED, "unsupported-plan",
             "this client does not support the plan's segments.tau: a leaf is too large");
      }
    }
    if (s.retrieve) {
      answers +=
          u128{s.num_trees()} * (u128{s.row_bytes()} << s.nu) + u128{s.num_trees()} * s.tag_bytes;
    } else {
      for (const Tensor& t : s.tensors) clear += u128{t.numel} * s.item_bytes(t);
    }
    if (s.num_bins) permuted += s.m;
  }
  u128 proof = 0;
  if (plan.statement) {
    proof = u128{plan.statement->public_bytes()} + plan.statement->private_bytes();
    verdict = plan.statement->verdict_bytes();
  }
  const u128 largest =
      std::max({masked + trees + proof, masked + sums, answers, clear, plan.max_clients * verdict});
  expect(largest + 1024 <= kMaxMessage, "one of its messages is too large");
  if (permuted > kMaxPermuted) {
    fail(TFSL_UNSUPPORTED, "unsupported-plan",
         "this client does not support the plan's segments.m: too many positions for it");
  }
}

// The stable order of m keys from each of three streams.
void permute(const Plan& plan, Segment& s) {
  s.order.resize(3 * sized(s.m));
  std::vector<u64> keys(sized(s.m));
  for (u8 i = 0; i < 3; ++i) {
    const u8 number[1] = {i};
    const Key key = derive(plan.hash_seed, text(label::kPermutation),
                           frame({view_of(s.name), number, le64(s.m)}));
    Cipher(key).stream(reinterpret_cast<u8*>(keys.data()), 8 * s.m);
    stable_order(keys.data(), s.m, s.order.data() + i * s.m, 1);
  }
}

void read_fields(Json& json, Plan& plan) {
  unsigned optional = 0;
  const unsigned seen = json.object([&](const std::string& key) {
    const auto later = [&](u64 value, u64 standing) {  // not in older plans
      ++optional;
      if (value == standing) json.bad("stands in a plan only where it is not the default");
      return value;
    };
    if (key == "clip") {
      plan.clip = static_cast<u32>(later(json.choice({"whole", "clip", "normalise"}), 0));
    } else if (key == "encoding") {
      plan.encoding = read_encoding(json);
    } else if (key == "hash_seed") {
      json.hex(plan.hash_seed, 32);
    } else if (key == "l2_bound") {
      plan.l2_bound = natural(json);
    } else if (key == "lane") {
      plan.lane = json.choice({"none", "count", "weight"});
    } else if (key == "lane_sigma") {
      plan.lane_sigma = natural(json);
    } else if (key == "max_clients") {
      plan.max_clients = natural(json);
    } else if (key == "max_epochs") {
      const u64 epochs = natural(json);
      if (epochs > 1) json.unsupported();
      if (!epochs) json.bad("at least 1");
    } else if (key == "max_participations") {
      plan.max_participations = later(natural(json), 0);
    } else if (key == "max_rounds") {
      plan.max_rounds = natural(json);
    } else if (key == "max_weight") {
      plan.max_weight = natural(json);
    } else if (key == "min_clients") {
      plan.min_clients = natural(json);
    } else if (key == "min_contributors") {
      plan.min_contributors = natural(json);
    } else if (key == "min_separation") {
      plan.min_separation = later(natural(json), 1);
    } else if (key == "noise_sigma") {
      plan.noise_sigma = natural(json);
    } else if (key == "payload") {
      if (json.choice({"values", "masks"})) json.unsupported();
    } else if (key == "proofs") {
      plan.proofs = static_cast<u32>(later(json.choice({"none", "lanes", "norm"}), 0));
    } else if (key == "segments") {
      json.array([&] { plan.segments.push_back(read_segment(json)); });
    } else if (key == "server_keys") {
      unsigned count = 0;
      json.array([&] {
        if (count == 2) json.bad("two keys, or none");
        json.hex(plan.server_keys[count++], 32);
      });
      if (count == 1 || (count == 2 && equal(plan.server_keys[0], plan.server_keys[1]))) {
        json.bad("two different keys, or none");
      }
      plan.sealed = count == 2;
    } else if (key == "session") {
      json.hex(plan.session, 16);
    } else if (key == "suite") {
      if (json.string() != "bgi16-aes128-mmo") json.bad("an unknown suite");
    } else if (key == "sum_bound") {
      plan.sum_bound = later(json.boolean(), 0);
    } else if (key == "wire_version") {
      if (json.integer() != 4) json.bad("this client speaks version 4: upgrade the older side");
    } else {
      json.unsupported();  // noise_taps, and whatever later versions add
    }
  });
  json.end();
  if (seen - optional != 18) json.bad("a field is missing");
}

}  // namespace

void invalid(const std::string& why) {
  fail(TFSL_DECODE, "invalid-plan", "not a valid plan: " + why);
}

u64 root_of(u128 number) {
  if (number >> 64) {
    u64 root = 0;
    for (int bit = 63; bit >= 0; --bit) {
      const u64 larger = root | (u64{1} << bit);
      if (u128{larger} * larger <= number) root = larger;
    }
    return root;
  }
  u64 root = static_cast<u64>(std::sqrt(static_cast<double>(static_cast<u64>(number))));
  while (u128{root} * root > number) --root;
  while (u128{root + 1} * (root + 1) <= number) ++root;
  return root;
}

u64 Segment::tree_bytes() const {
  u64 total = 0;
  for (const Group& group : groups) total += group.tree_bytes();
  return total;
}

u64 Plan::public_bytes() const {
  u64 total = statement ? statement->public_bytes() : 0;
  for (const Segment* s : late) total += s->tree_bytes();
  for (const Segment* s : trees) total += hint_bytes(*s);
  return total;
}

u64 Plan::masked_bytes() const {
  u64 total = statement ? statement->private_bytes() : 0;
  for (const Segment* s : dense) total += dense_bytes(*s);
  return total;
}

u64 Plan::clear_bytes() const {
  u64 total = 0;
  for (const auto& [segment, tensor] : clear) total += tensor->numel * segment->item_bytes(*tensor);
  return total;
}

u64 Plan::body_bytes(Kind kind) const {
  u64 rest = 0;
  switch (kind) {
    case kTrees:
      for (const Segment* s : early) rest += s->tree_bytes();
      return 32 + seed_bytes() + rest;
    case kTreesCommit:
      return 32 + seed_bytes() + 32;
    case kAnswer:
      for (const Segment* s : early) rest += s->answer_bytes();
      return 16 + 32 + rest;
    case kReport:
      return 48 + seed_bytes() + public_bytes() + masked_bytes();
    case kReportCommit:
      return 48 + seed_bytes() + 32;
    case kModel:
      return 64 + clear_bytes();
    case kModelDigest:
      return 64;
  }
  return 0;
}

std::unique_ptr<Plan> read_plan(View text) {
  if (text.size() > kMaxText) {
    fail(TFSL_DECODE, "plan-too-large", "a plan has at most 16777216 bytes");
  }
  auto plan = std::make_unique<Plan>();
  plan->digest = sha256(text);
  Json json(text);
  read_fields(json, *plan);
  std::set<std::string> names, tensors;
  expect(!plan->segments.empty(), "it has no segments");
  for (Segment& s : plan->segments) {
    check_segment(s, *plan);
    expect(names.insert(s.name).second, "two segments have one name");
    for (const Tensor& t : s.tensors) {
      expect(tensors.insert(t.name).second, "a tensor stands in two segments");
      if (!s.retrieve) plan->clear.emplace_back(&s, &t);
    }
    (s.dense() ? plan->dense : plan->trees).push_back(&s);
    if (!s.dense()) (s.retrieve ? plan->early : plan->late).push_back(&s);
  }
  check_cohort(*plan);
  check_noise(*plan);
  check_trees(*plan);
  check_sizes(*plan);
  if (plan->proofs) {
    expect(plan->proofs != TFSL_PROOFS_LANES || plan->lane, "proofs of lanes need a lane");
    expect(plan->proofs != TFSL_PROOFS_NORM || plan->l2_bound, "proofs of a norm need l2_bound");
    expect(plan->verified(), "proofs need trees with check words");
    for (const Segment& s : plan->segments) {
      expect(s.encoding.ring_bits <= kMaxProvenRing, "proofs want rings of at most 48 bits");
    }
    plan->statement = std::make_shared<const Statement>(*plan);
    check_sizes(*plan);
  }
  for (Segment& s : plan->segments) {
    if (s.num_bins) permute(*plan, s);
  }
  return plan;
}

}  // namespace fsl::client
