// What reports prove under a plan: torchfsl.fsl.plan.statement, proof_groups and proof_shape.
#pragma once

#include <vector>

#include "plan.h"

namespace fsl::client {

inline constexpr char kCarriesName[] = "carries of the proof";
inline constexpr unsigned kCarryWidth = 7;

// A part of the vector that is proven of: `size` values from `start` on, the last `slack` of which
// are sent for the proof alone.
struct ProofGroup {
  enum What { kNorm, kOwn, kWeight, kRange, kClaim, kLane, kSlack } what;
  const Segment* segment;  // null where the group is of several, or none
  u64 start, size, slack, first_call, num_calls;
};

class Statement {
 public:
  // Throws a Failure if the plan cannot be proven.
  explicit Statement(const Plan& plan);

  u64 public_bytes() const {
    return carries.tree_bytes() + (num_carries << carries.nu) * kCarryWidth;
  }
  u64 slack_bytes() const { return num_slack * width; }
  u64 num_elements() const {
    return weights.size() + arity + 2 * order - 1 +
           (same_arity ? 1 + same_arity + 4 * same_order - 3 : 0);
  }
  u64 private_bytes() const { return slack_bytes() + 16 * num_elements(); }
  u64 verdict_bytes() const {
    return 16 + 16 * (arity + 1 + (same_arity ? same_arity + 2 : 0) + 1);
  }
  // Values of a leaf that matter, from the first on.
  u64 leaf_values(const Plan& plan, const Segment& segment) const {
    return !norm && !segment.nu ? 1 : plan.leaf_values(segment) << segment.nu;
  }
  bool reads_dense() const { return norm || weighted; }

  u64 norm;  // 0 if it is not proven
  bool weighted, has_lanes;
  unsigned width;
  std::vector<ProofGroup> groups;
  u64 num_values = 0, num_slack = 0, num_carries = 0;
  Group carries;
  std::vector<u64> weights;                            // parts of num_carries
  u64 num_calls, arity, order;                         // of the proof of sums of squares
  u64 num_lanes = 0;                                   // values of the proof of weights
  u64 same_arity = 0, same_calls = 0, same_order = 0;  // its shape, 0 without it
};

// 2^128 - 7 * 2^66 + 1, and whether a product reaches it.
bool reaches_modulus(std::initializer_list<u128> factors);

}  // namespace fsl::client
