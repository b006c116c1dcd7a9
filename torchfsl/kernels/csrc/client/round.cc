#include "round.h"

#include <algorithm>
#include <numeric>

namespace fsl::client {
namespace {

constexpr u8 kMagic[4] = {'T', 'F', 'S', 'L'};
constexpr u8 kWireVersion = 4;

u64 number_at(View bytes, std::size_t at) {
  u64 number;
  std::memcpy(&number, bytes.data() + at, 8);
  return number;
}

u8* put(u8* out, View bytes) {
  if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
  return out + bytes.size();
}

[[noreturn]] void refuse(const char* code, const char* why) { fail(TFSL_DECODE, code, why); }

// Items in order of falling magnitude, so that the lightest are left out, if any.
Vector<std::size_t> by_weight(const Part& part, u64 tau) {
  Vector<u64> size(part.rows.size());
  for (std::size_t i = 0; i < part.values.size(); ++i) {
    const i64 value = part.values[i];
    size[i / tau] += value < 0 ? u64{0} - static_cast<u64>(value) : static_cast<u64>(value);
  }
  Vector<std::size_t> order(size.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return static_cast<i64>(u64{0} - size[a]) < static_cast<i64>(u64{0} - size[b]);
  });
  return order;
}

// What each tree carries: [num_trees, lanes + tau], zero for dummies.
Vector<i64> carried(const Plan& plan, const Segment& s, const Selection& own, const Part& part,
                    u64 weight) {
  const u64 lanes = plan.lanes(), n = s.tau + lanes;
  Vector<i64> out(sized(s.num_trees() * n));
  for (u64 tree = 0; tree < s.num_trees(); ++tree) {
    if (own.item[tree] < 0) continue;
    const i64 id = own.ids[static_cast<std::size_t>(own.item[tree])];
    const auto found = std::lower_bound(part.rows.begin(), part.rows.end(), id);
    if (found == part.rows.end() || *found != id) continue;
    const u64 row = static_cast<u64>(found - part.rows.begin());
    if (lanes) out[tree * n] = static_cast<i64>(weight);
    for (u64 i = 0; i < s.tau; ++i) {
      out[tree * n + lanes + i] = part.values[row * s.tau + i] * static_cast<i64>(weight);
    }
  }
  return out;
}

}  // namespace

Round::Round(const Plan& plan, u64 client, u64 number, const tfsl_rows* wanted,
             std::size_t num_wanted, Random random)
    : plan_(plan), random_(random), context_(plan, number, client, random_.key()) {
  for (Key& seed : seeds_) seed = random_.key();
  seal_seeds();
  std::vector<Vector<i64>> rows(plan.early.size());
  try {
    rows = checked_rows(plan, wanted, num_wanted);
  } catch (const Failure& failure) {
    wrong = std::string(failure.code) + ": " + failure.text;
    aborted_ = true;
  }
  if (!plan.early.empty()) make_trees(rows);
}

void Round::seal_seeds() {
  for (u8 party = 0; party < 2; ++party) {
    const Key& seed = seeds_[party];
    if (!plan_.sealed) {
      sent_seeds_[party].assign(seed.data(), seed.data() + 16);
      continue;
    }
    Wiped<Digest> secret;
    random_.fill(secret.data(), 32);
    if (!hpke_seal(secret, plan_.server_keys[party], context_.seal_info(party), seed,
                   sent_seeds_[party])) {
      fail(TFSL_ARGUMENT, "parameter", "a key in server_keys is no public key: plan with another");
    }
  }
}

Bytes Round::message_of(Kind kind, unsigned party) const {
  const u64 size = plan_.body_bytes(kind);
  Bytes out(kHeaderBytes + size);
  u8* at = put(out.data(), kMagic);
  const u8 fixed[4] = {kWireVersion, 0, kind, static_cast<u8>(party)};
  at = put(at, fixed);
  at = put(at, le64(context_.round));
  at = put(at, le64(context_.client));
  at = put(at, le64(size));
  put(at, plan_.digest);
  return out;
}

void Round::make_trees(const std::vector<Vector<i64>>& wanted) {
  const unsigned first_party = first(), second = 1 - first_party;
  Bytes body = message_of(kTrees, first_party), commit = message_of(kTreesCommit, second);
  const std::size_t head = kHeaderBytes + 32 + plan_.seed_bytes();
  u8* out = body.data() + head;
  for (std::size_t i = 0; i < plan_.early.size(); ++i) {
    const Segment& s = *plan_.early[i];
    early_.push_back(grow(context_, s, wanted[i], context_.encoded, seeds_, random_, out));
    out += s.tree_bytes();
  }
  const Digest commitment = context_.commitment(View(body).subspan(head));
  for (const unsigned party : {first_party, second}) {
    const Key tag =
        upload_tag(context_.encoded, seeds_[party], static_cast<u8>(party), frame({commitment}));
    u8* at = (party == second ? commit : body).data() + kHeaderBytes;
    at = put(at, context_.nonce);
    at = put(at, sent_seeds_[party]);
    at = put(at, tag);
    if (party == second) put(at, commitment);
  }
  outgoing_ = {std::move(commit), std::move(body)};
  phase_ = kSendTreesCommit;
}

// Values under trees and dense segments, from `out` and where `sent.travelling` says.
void Round::write_values(const ReportContext& report, const std::vector<Part>& parts, u64 weight,
                         std::vector<Selection>& late, u8*& out, Sent& sent) const {
  std::size_t early = 0, grown = 0;
  for (std::size_t i = 0; i < plan_.segments.size(); ++i) {
    const Segment& s = plan_.segments[i];
    if (s.dense()) continue;
    sent.trees[i] = s.retrieve ? &early_[early++] : &late[grown++];
    sent.values[i] = carried(plan_, s, *sent.trees[i], parts[i], weight);
    sent.travelling[i] = out;
    make_hints(s, report.public_key(text(label::kConvert), view_of(s.name)), *sent.trees[i],
               ring_of(sent.values[i], s.width()), out);
    out += plan_.hint_bytes(s);
  }
  u8* masked = out + (plan_.statement ? plan_.statement->public_bytes() : 0);
  for (std::size_t i = 0; i < plan_.segments.size(); ++i) {
    const Segment& s = plan_.segments[i];
    if (!s.dense()) continue;
    Vector<i64>& whole = sent.values[i];
    whole.reserve(plan_.dense_values(s));
    if (plan_.lane == TFSL_LANE_WEIGHT) whole.push_back(static_cast<i64>(weight));
    for (const i64 value : parts[i].values) whole.push_back(value * static_cast<i64>(weight));
    sent.travelling[i] = masked;
    put(masked, ring_of(whole, s.width()));
    for (u8 party = 0; party < 2; ++party) {
      const Bytes mask = stream(report.dense_mask(s, seeds_[party], party), plan_.dense_bytes(s));
      subtract_ring(masked, mask.data(), whole.size(), s.width());
    }
    masked += plan_.dense_bytes(s);
  }
}

bool Round::draw_report(const std::vector<Part>& parts, u64 weight, const Key& hint_nonce) {
  const ReportContext report(context_, hint_nonce);
  const unsigned first_party = first(), second = 1 - first_party;
  Bytes body = message_of(kReport, first_party), commit = message_of(kReportCommit, second);
  const std::size_t head = kHeaderBytes + 48 + plan_.seed_bytes();
  const std::size_t public_bytes = plan_.public_bytes();
  u8* out = body.data() + head;
  std::vector<Selection> late;
  for (const Segment* s : plan_.late) {
    const Part& part = parts[static_cast<std::size_t>(s - plan_.segments.data())];
    Vector<i64> ids;
    for (const std::size_t item : by_weight(part, s->tau)) ids.push_back(part.rows[item]);
    late.push_back(grow(context_, *s, std::move(ids), report.encoded, seeds_, random_, out));
    out += s->tree_bytes();
  }
  const std::size_t count = plan_.segments.size();
  Sent sent{std::vector<const Selection*>(count), std::vector<Vector<i64>>(count),
            std::vector<const u8*>(count), weight};
  write_values(report, parts, weight, late, out, sent);
  if (plan_.statement) {
    u8* proof = body.data() + body.size() - plan_.statement->private_bytes();
    if (!prove(context_, report, seeds_, sent, random_, out, proof)) return false;
  }
  const View whole = View(body).subspan(head);
  const Digest commitment = report.commitment(whole.first(public_bytes));
  const Digest hidden = digest_with({text(label::kUpload)}, whole.subspan(public_bytes));
  for (const unsigned party : {first_party, second}) {
    Bytes digests = party == first_party ? frame({commitment, hidden}) : frame({commitment});
    if (!heard_.empty()) {
      const Bytes heard = frame({heard_});
      digests.insert(digests.end(), heard.begin(), heard.end());
    }
    const Key tag = upload_tag(report.encoded, seeds_[party], static_cast<u8>(party), digests);
    u8* at = (party == second ? commit : body).data() + kHeaderBytes;
    at = put(at, context_.nonce);
    at = put(at, sent_seeds_[party]);
    at = put(at, hint_nonce);
    at = put(at, tag);
    if (party == second) put(at, commitment);
  }
  outgoing_ = {std::move(commit), std::move(body)};
  return true;
}

void Round::make_report(const std::vector<Part>& parts, u64 weight, u32 outcome) {
  phase_ = kEnded;  // where anything fails from here on, nothing leaves
  outcome_ = TFSL_OUTCOME_SILENT;
  while (!draw_report(parts, weight, random_.key())) {
  }
  outcome_ = outcome;
  phase_ = kSendReportCommit;
}

unsigned Round::asked_party() const {
  switch (phase_) {
    case kAskFirst:
      return 0;
    case kAskSecond:
      return 1;
    case kSendTrees:
    case kSendReport:
    case kAskModel:
      return first();
    default:
      return 1 - first();
  }
}

Kind Round::kind() const {
  switch (phase_) {
    case kSendTreesCommit:
      return kTreesCommit;
    case kSendTrees:
      return kTrees;
    case kAskModel:
      return kModel;
    case kAskDigest:
      return kModelDigest;
    case kSendReportCommit:
      return kReportCommit;
    case kSendReport:
      return kReport;
    default:
      return kAnswer;
  }
}

void Round::next(tfsl_step& step) const {
  step = {};
  step.round = context_.round;
  step.client = context_.client;
  if (phase_ == kTraining || phase_ == kEnded) {
    step.kind = phase_ == kTraining ? TFSL_TRAIN : TFSL_DONE;
    step.outcome = outcome_;
    return;
  }
  const bool commit = phase_ == kSendTreesCommit || phase_ == kSendReportCommit;
  const bool send = commit || phase_ == kSendTrees || phase_ == kSendReport;
  step.kind = send ? TFSL_SEND : TFSL_FETCH;
  step.party = asked_party();
  step.message = kind();
  step.size = kHeaderBytes + plan_.body_bytes(kind());
  if (send) step.data = (commit ? outgoing_.commit : outgoing_.body).data();
}

View Round::checked_body(View answer, Kind kind, unsigned party) const {
  if (answer.size() < kHeaderBytes) refuse("length", "a message is shorter than its header");
  if (!equal(answer.first(4), kMagic)) refuse("not-a-message", "not a message of two servers");
  if (answer[4] != kWireVersion || answer[5]) {
    refuse("version", "a message of another wire version than 4: upgrade the older side");
  }
  if (answer[6] != kind) refuse("wrong-kind", "a message of another kind than was asked for");
  if (!equal(answer.subspan(32, 32), plan_.digest)) {
    refuse("another-plan", "the message belongs to another plan: fetch the current plan");
  }
  if (answer[7] > 1) refuse("wrong-kind", "a message of neither server");
  const u64 size = plan_.body_bytes(kind);
  if (number_at(answer, 24) != size || answer.size() != kHeaderBytes + size) {
    refuse("length", "a message of another length than the plan says");
  }
  if (answer[7] != party || number_at(answer, 8) != context_.round) {
    fail(TFSL_PROTOCOL, "answer-for-another", "a server answered for another server or round");
  }
  return answer.subspan(kHeaderBytes);
}

void Round::read_model(View digests) {
  const View model = model_, bytes = model.subspan(64);
  const Digest clear = digest({text(label::kModel), text("clear"), bytes});
  if (!equal(model.first(64), digests) || !equal(model.first(32), clear)) {
    fail(TFSL_PROTOCOL, "models-differ",
         "the two servers hold different models: nothing may go on");
  }
  std::size_t start = 0;
  for (const auto& [segment, tensor] : plan_.clear) {
    const std::size_t size = tensor->numel * segment->item_bytes(*tensor);
    clear_.emplace_back();
    if (!widen(bytes.subspan(start, size), segment->download, tensor->dtype, clear_.back())) {
      fail(TFSL_PROTOCOL, "model-not-finite",
           "the model's '" + tensor->name +
               "' has values that are not finite: the servers go back "
               "to an earlier model");
    }
    start += size;
  }
  heard_.assign(digests.begin(), digests.end());
  model_ = {};
}

void Round::begin_training() {
  phase_ = kTraining;
  if (aborted_) abort();
}

void Round::take_answer(View answer) {
  const View body = checked_body(answer, kind(), asked_party());
  if (phase_ == kAskModel) {
    model_.assign(body.begin(), body.end());
    phase_ = kAskDigest;
  } else if (phase_ == kAskDigest) {
    read_model(body);
    phase_ = kAskFirst;
    if (plan_.early.empty()) begin_training();
  } else {
    answers_[phase_ == kAskSecond].assign(body.begin(), body.end());
    if (phase_ == kAskFirst) {
      phase_ = kAskSecond;
      return;
    }
    bool finite = true;
    rows_ = read_rows(context_, seeds_, early_, answers_, finite);
    if (!finite) {  // which rows these are is private: a report that adds nothing leaves
      rows_.clear();
      aborted_ = true;
    }
    begin_training();
    if (!finite) {
      fail(TFSL_PROTOCOL, "model-not-finite",
           "the model's rows have values that are not finite: the servers go back to an earlier "
           "model");
    }
  }
}

void Round::give(View answer) {
  switch (phase_) {
    case kSendTreesCommit:
    case kSendReportCommit:
      outgoing_.commit = {};
      phase_ = phase_ == kSendTreesCommit ? kSendTrees : kSendReport;
      return;
    case kSendTrees:
      outgoing_ = {};
      phase_ = kAskModel;
      if (aborted_ && wrong.empty()) begin_training();
      return;
    case kSendReport:
      outgoing_ = {};
      phase_ = kEnded;
      return;
    case kTraining:
    case kEnded:
      fail(TFSL_STATE, "wrong-step", "no step waits for an answer: call tfsl_round_next");
    default:
      break;
  }
  const Phase before = phase_;
  try {
    take_answer(answer);
  } catch (...) {
    if (phase_ == before) {  // silence, as of a client that dropped out
      phase_ = kEnded;
      outcome_ = TFSL_OUTCOME_SILENT;
    }
    throw;
  }
}

const Rows& Round::rows(u32 segment) const {
  if (phase_ < kTraining || rows_.empty()) {
    fail(TFSL_STATE, "wrong-step", "no rows are there: they are from TFSL_TRAIN on");
  }
  for (std::size_t i = 0; i < plan_.early.size(); ++i) {
    if (plan_.early[i] - plan_.segments.data() == static_cast<std::ptrdiff_t>(segment)) {
      return rows_[i];
    }
  }
  fail(TFSL_ARGUMENT, "unknown-segment", "the segment is none that is retrieved");
}

const Bytes& Round::clear(u32 tensor) const {
  if (phase_ < kTraining || (clear_.empty() && !plan_.clear.empty())) {
    fail(TFSL_STATE, "wrong-step", "no model is there: it is from TFSL_TRAIN on");
  }
  if (tensor >= clear_.size()) {
    fail(TFSL_ARGUMENT, "out-of-range",
         "the plan has " + std::to_string(clear_.size()) + " tensors in the clear");
  }
  return clear_[tensor];
}

void Round::submit(const tfsl_part* parts, std::size_t num, u64 weight) {
  if (phase_ == kEnded && outcome_ == TFSL_OUTCOME_SILENT) {
    fail(TFSL_STATE, "client-withdrew",
         "this client has withdrawn from the round: start the next one");
  }
  if (phase_ > kTraining) {
    fail(TFSL_STATE, "already-submitted", "this round was submitted already: start the next one");
  }
  if (phase_ < kTraining) {
    fail(TFSL_STATE, "wrong-step", "the update comes too early: go on to TFSL_TRAIN");
  }
  std::vector<Part> checked;
  try {
    checked = checked_update(plan_, parts, num, random_);
    check_weight(plan_, weight);
    for (std::size_t i = 0; i < plan_.early.size(); ++i) {
      const Segment& s = *plan_.early[i];
      for (const i64 id : checked[static_cast<std::size_t>(&s - plan_.segments.data())].rows) {
        if (!std::binary_search(early_[i].ids.begin(), early_[i].ids.end(), id)) {
          fail(TFSL_ARGUMENT, "row-not-selected",
               "segment '" + s.name + "': the update has rows outside the round's selection");
        }
      }
    }
  } catch (...) {  // whatever is wrong with private values
    abort();
    throw;
  }
  make_report(checked, weight, TFSL_OUTCOME_REPORT);
}

void Round::abort() {
  if (phase_ == kEnded && outcome_ == TFSL_OUTCOME_SILENT) return;
  if (phase_ > kTraining) {
    fail(TFSL_STATE, "already-submitted", "this round was submitted already");
  }
  aborted_ = true;
  if (phase_ >= kAskModel) make_report(no_update(plan_), 0, TFSL_OUTCOME_DUMMY);
}

}  // namespace fsl::client
