// The public plan: what torchfsl.fsl.plan and torchfsl.submodel.plan read of it, checked as there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hash.h"
#include "support.h"

namespace fsl::client {

inline constexpr std::size_t kHeaderBytes = 64, kCheckBytes = 32;
enum Kind : u8 {
  kTrees = 1,
  kTreesCommit = 2,
  kAnswer = 4,
  kReport = 5,
  kReportCommit = 6,
  kModel = 8,
  kModelDigest = 9,
};

struct Encoding {
  u32 ring_bits = 0, frac_bits = 0;
  double clip = 0;
  bool stochastic = false;
  i64 q_max = 0;

  unsigned width() const { return ring_bits / 8; }
  u64 capacity() const { return (u64{1} << ((ring_bits < 64 ? ring_bits : 64) - 1)) - 1; }
};

struct Tensor {
  std::string name;
  std::vector<u64> shape;
  u32 dtype = 0;
  u64 numel = 0;
  u64 positions = 0;  // of its segment
};

// Equal trees: the bins of a segment, or its stash.
struct Group {
  u64 num_trees, domain;
  unsigned nu;
  std::size_t check_bytes;
  u64 num_leaves;
  unsigned depth;

  u64 tree_bytes() const {
    const u64 levels = num_trees * depth;
    return levels * 16 + (levels + 7) / 8 + num_trees * check_bytes;
  }
};

struct Segment {
  std::string name;
  u32 policy = 0, download = 0;  // 0 full, 1 float16, 2 bfloat16
  std::vector<Tensor> tensors;
  u64 m = 0, tau = 0, k_max = 0, num_bins = 0, theta = 0, stash = 0, l2_bound = 0;
  unsigned nu = 0, check_bytes = 0, tag_bytes = 0;
  bool retrieve = false;
  std::optional<Encoding> own;
  Encoding encoding;
  std::vector<Group> groups;
  std::vector<u32> order;  // [3, m], the permutations, of segments with bins

  bool dense() const { return policy == TFSL_DENSE; }
  u64 num_trees() const { return num_bins + stash; }
  unsigned width() const { return encoding.width(); }
  std::size_t item_bytes(const Tensor& tensor) const {
    return download ? 2 : std::size_t{2} << tensor.dtype;
  }
  u64 row_bytes() const { return tau * item_bytes(tensors[0]); }
  u64 tree_bytes() const;
  u64 answer_bytes() const {
    return retrieve ? num_trees() * ((row_bytes() << nu) + tag_bytes) : 0;
  }
};

class Statement;

struct Plan {
  Digest digest;
  u8 session[16], hash_seed[32], server_keys[2][32];
  bool sealed = false, sum_bound = false;
  Encoding encoding;
  u64 max_clients = 0, min_clients = 0, max_weight = 0, max_rounds = 0, min_contributors = 0,
      max_participations = 0, min_separation = 1, l2_bound = 0, noise_sigma = 0, lane_sigma = 0;
  u32 lane = 0, proofs = 0, clip = 0;
  std::vector<Segment> segments;
  std::vector<const Segment*> trees, dense, early, late;  // in plan order; early are retrieved
  std::vector<std::pair<const Segment*, const Tensor*>> clear;
  std::shared_ptr<const Statement> statement;  // null without proofs

  bool verified() const { return !trees.empty() && trees[0]->check_bytes; }
  u64 lanes() const { return lane != TFSL_LANE_NONE; }
  u64 seed_bytes() const { return sealed ? 64 : 16; }
  // Ring values of a position with a tree, lane included.
  u64 leaf_values(const Segment& segment) const { return segment.tau + lanes(); }
  u64 hint_bytes(const Segment& segment) const {
    return segment.num_trees() * (leaf_values(segment) * segment.width() << segment.nu);
  }
  u64 dense_values(const Segment& segment) const { return segment.m + (lane == TFSL_LANE_WEIGHT); }
  u64 dense_bytes(const Segment& segment) const { return dense_values(segment) * segment.width(); }
  u64 public_bytes() const;  // of a report
  u64 masked_bytes() const;
  u64 clear_bytes() const;
  u64 body_bytes(Kind kind) const;
};

// Reads and checks a plan; throws a Failure.
std::unique_ptr<Plan> read_plan(View json);

// The whole root, rounded down.
u64 root_of(u128 number);
inline u64 ceil_div(u64 number, u64 divisor) { return number / divisor + (number % divisor != 0); }
// The plan's error.
[[noreturn]] void invalid(const std::string& why);

}  // namespace fsl::client
