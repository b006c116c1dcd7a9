#include "keys.h"

namespace fsl::client {

Key TreeContext::mac_key(const Segment& s) const {
  return derive(nonce, text(label::kAuthenticate), frame({encoded, view_of(s.name), le64(round)}));
}

Key TreeContext::answer_key(const Key& seed, u8 party) const {
  const u8 number[1] = {party};
  return derive(seed, text(label::kAnswer), frame({encoded, number, le64(round)}));
}

Bytes TreeContext::seal_info(u8 party) const {
  const u8 number[1] = {party};
  return frame({text(label::kSeed), plan.digest, number, le64(client), nonce});
}

Digest TreeContext::commitment(View public_part) const {
  return digest_with({text(label::kCommitment), text("trees"), encoded}, public_part);
}

Key ReportContext::dense_mask(const Segment& s, const Key& seed, u8 party) const {
  const u8 number[1] = {party};
  return derive(seed, text(label::kDense), frame({encoded, view_of(s.name), number}));
}

Key ReportContext::proof_mask(View what, const Key& seed, u8 party) const {
  const u8 number[1] = {party};
  return derive(seed, text(label::kProof), frame({encoded, what, number}));
}

Digest ReportContext::commitment(View public_part) const {
  return digest_with({text(label::kCommitment), text("report"), encoded}, public_part);
}

Bytes roots_of(View context, View name, u64 num_trees, const Key& seed, u8 party) {
  const Bytes key_context = frame({context, name});
  Bytes states = stream(derive(seed, text(label::kRoots), key_context), 16 * sized(num_trees));
  for (u64 i = 0; i < num_trees; ++i)
    states[16 * i] = static_cast<u8>((states[16 * i] & 0xfe) | party);
  return states;
}

Key upload_tag(View context, const Key& seed, u8 party, const Bytes& digests) {
  const u8 number[1] = {party};
  Bytes bound = frame({context, number});
  bound.insert(bound.end(), digests.begin(), digests.end());
  return derive(seed, text(label::kUpload), bound);
}

}  // namespace fsl::client
