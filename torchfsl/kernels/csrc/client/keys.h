// Keys of one client's trees and reports, as torchfsl.fsl.dpf.keys derives them.
#pragma once

#include "hash.h"
#include "plan.h"
#include "seal.h"

namespace fsl::client {

// What trees are bound to. The nonce is public.
struct TreeContext {
  TreeContext(const Plan& plan, u64 round, u64 client, const Key& nonce)
      : plan(plan),
        round(round),
        client(client),
        nonce(nonce),
        encoded(frame({plan.digest, le64(round), le64(client), nonce})) {}

  Key tree_key(const Segment& s) const { return of(text(label::kTree), s); }
  Key check_key(const Segment& s) const { return of(text(label::kCheck), s); }
  Key mac_key(const Segment& s) const;
  Key answer_key(const Key& seed, u8 party) const;
  Bytes seal_info(u8 party) const;
  Digest commitment(View public_part) const;
  unsigned public_party() const { return client % 2; }

  const Plan& plan;
  const u64 round, client;
  const Key nonce;
  const Bytes encoded;

 private:
  Key of(View label, const Segment& s) const {
    return derive(nonce, label, frame({encoded, view_of(s.name)}));
  }
};

// What a report is bound to.
struct ReportContext {
  ReportContext(const TreeContext& trees, const Key& hint_nonce)
      : hint_nonce(hint_nonce), encoded(frame({trees.encoded, le64(trees.round), hint_nonce})) {}

  // Of trees that travel in the report, of its carry trees, and of its hints.
  Key public_key(View label, View name) const {
    return derive(hint_nonce, label, frame({encoded, name}));
  }
  Key dense_mask(const Segment& s, const Key& seed, u8 party) const;
  Key proof_mask(View what, const Key& seed, u8 party) const;
  Digest commitment(View public_part) const;

  const Key hint_nonce;
  const Bytes encoded;
};

// Root states [num_trees, 16] of trees of this name in a context.
Bytes roots_of(View context, View name, u64 num_trees, const Key& seed, u8 party);
// Shows that an upload is from whoever drew the seed; `digests` are framed.
Key upload_tag(View context, const Key& seed, u8 party, const Bytes& digests);

}  // namespace fsl::client
