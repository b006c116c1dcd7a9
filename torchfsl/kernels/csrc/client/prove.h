// The proof of what a report carries: torchfsl.fsl.client.proof and torchfsl.crypto.flp.
#pragma once

#include "statement.h"
#include "trees.h"

namespace fsl::client {

// What a report carries, by segment in plan order; secret.
struct Sent {
  std::vector<const Selection*> trees;  // null of dense segments
  std::vector<Vector<i64>> values;      // [num_trees, n] with trees, else the dense values
  std::vector<const u8*> travelling;    // hints [num_trees, ..], or the masked dense values
  u64 weight = 0;
};

// Writes carry trees and their hints to `out`, and to `masked` slack and elements. False if more
// values have wrapped than the carry trees take: draw the report anew.
bool prove(const TreeContext& context, const ReportContext& report, const Key (&seeds)[2],
           const Sent& sent, Random& random, u8* out, u8* masked);

// Whole numbers in falling order whose squares add up to `total`.
std::array<u64, 4> four_squares(u128 total);

}  // namespace fsl::client
