// The C interface: no exception leaves it.
#include <algorithm>
#include <cstdio>
#include <new>
#include <stdexcept>

#include "round.h"
#include "torchfsl_client.h"

using namespace fsl::client;

struct tfsl_plan {
  std::unique_ptr<Plan> plan;
};

struct tfsl_round {
  Round round;
};

namespace {

// `size` characters of text with a zero behind them, cut where there is no room.
void tell(const std::string& text, char* message, std::size_t room) {
  if (!message || !room) return;
  const std::size_t size = std::min(room - 1, text.size());
  std::memcpy(message, text.data(), size);
  message[size] = '\0';
}

// Runs a call; whatever it throws becomes a status, and `said` receives the text.
template <class Call, class Said>
tfsl_status guarded(Call call, Said said) noexcept {
  try {
    try {
      call();
      return TFSL_OK;
    } catch (const Failure& failure) {
      said(std::string(failure.code) + ": " + failure.text);
      return failure.status;
    }
  } catch (const std::bad_alloc&) {
    return TFSL_MEMORY;
  } catch (const std::length_error&) {
    return TFSL_MEMORY;
  } catch (...) {
    return TFSL_INTERNAL;
  }
}

template <class Call>
tfsl_status of_round(tfsl_round* round, Call call) noexcept {
  if (!round) return TFSL_ARGUMENT;
  return guarded([&] { call(round->round); },
                 [&](std::string text) { round->round.message = std::move(text); });
}

template <class Fields>
tfsl_status hand_out(const Fields& fields, Fields* to) {
  const std::size_t size = std::min(to->struct_size, sizeof fields);
  if (size < sizeof to->struct_size) return TFSL_ARGUMENT;
  std::memcpy(to, &fields, size);
  return TFSL_OK;
}

tfsl_view view_of_text(const std::string& text) { return {text.data(), text.size()}; }

tfsl_status begin(const tfsl_plan* plan, uint64_t client, uint64_t number, const tfsl_rows* wanted,
                  size_t num_wanted, Random random, tfsl_round** round) noexcept {
  if (!plan || !round) return TFSL_ARGUMENT;
  *round = nullptr;
  const tfsl_status status = guarded(
      [&] {
        *round = new tfsl_round{Round(*plan->plan, client, number, wanted, num_wanted, random)};
        (*round)->round.message = (*round)->round.wrong;
      },
      [](const std::string&) {});
  if (status != TFSL_OK && *round) tfsl_round_close(std::exchange(*round, nullptr));
  return status == TFSL_OK && !(*round)->round.wrong.empty() ? TFSL_ARGUMENT : status;
}

}  // namespace

uint32_t tfsl_abi_version(void) noexcept { return TFSL_ABI_VERSION; }

tfsl_status tfsl_plan_open(const uint8_t* json, size_t size, tfsl_plan** plan, char* message,
                           size_t room) noexcept {
  tell({}, message, room);
  if (!json || !plan) return TFSL_ARGUMENT;
  *plan = nullptr;
  return guarded([&] { *plan = new tfsl_plan{read_plan({json, size})}; },
                 [&](const std::string& text) { tell(text, message, room); });
}

tfsl_status tfsl_plan_info(const tfsl_plan* handle, tfsl_plan_fields* fields) noexcept {
  if (!handle || !fields) return TFSL_ARGUMENT;
  const Plan& plan = *handle->plan;
  tfsl_plan_fields out = {};
  out.struct_size = fields->struct_size;
  out.max_clients = plan.max_clients;
  out.min_clients = plan.min_clients;
  out.max_weight = plan.max_weight;
  out.max_rounds = plan.max_rounds;
  out.min_contributors = plan.min_contributors;
  out.max_participations = plan.max_participations;
  out.min_separation = plan.min_separation;
  out.l2_bound = plan.l2_bound;
  out.noise_sigma = plan.noise_sigma;
  out.lane_sigma = plan.lane_sigma;
  const bool early = !plan.early.empty();
  for (const Kind kind : {kTrees, kTreesCommit, kReport, kReportCommit}) {
    if (kind >= kReport || early) out.upload_bytes += kHeaderBytes + plan.body_bytes(kind);
  }
  out.download_bytes = 2 * kHeaderBytes + plan.body_bytes(kModel) + plan.body_bytes(kModelDigest) +
                       (early ? 2 * (kHeaderBytes + plan.body_bytes(kAnswer)) : 0);
  out.lane = plan.lane;
  out.proofs = plan.proofs;
  out.clip = plan.clip;
  out.sum_bound = plan.sum_bound;
  out.checked = plan.verified();
  out.num_segments = static_cast<uint32_t>(plan.segments.size());
  out.num_clear = static_cast<uint32_t>(plan.clear.size());
  out.num_server_keys = plan.sealed ? 2 : 0;
  std::copy(plan.digest.begin(), plan.digest.end(), out.digest);
  std::copy_n(plan.session, 16, out.session);
  if (plan.sealed) std::memcpy(out.server_keys, plan.server_keys, 64);
  return hand_out(out, fields);
}

tfsl_status tfsl_plan_segment(const tfsl_plan* handle, uint32_t segment,
                              tfsl_segment_fields* fields) noexcept {
  if (!handle || !fields || segment >= handle->plan->segments.size()) return TFSL_ARGUMENT;
  const Segment& s = handle->plan->segments[segment];
  tfsl_segment_fields out = {};
  out.struct_size = fields->struct_size;
  out.positions = s.m;
  out.width = s.tau;
  out.most_rows = s.k_max;
  out.l2_bound = s.l2_bound;
  out.clip = s.encoding.clip;
  out.frac_bits = s.encoding.frac_bits;
  out.policy = s.policy;
  out.retrieved = s.retrieve;
  out.num_tensors = static_cast<uint32_t>(s.tensors.size());
  out.name = view_of_text(s.name);
  return hand_out(out, fields);
}

tfsl_status tfsl_plan_tensor(const tfsl_plan* handle, uint32_t segment, uint32_t tensor,
                             tfsl_tensor_fields* fields) noexcept {
  if (!handle || !fields || segment >= handle->plan->segments.size()) return TFSL_ARGUMENT;
  const Segment& s = handle->plan->segments[segment];
  if (tensor >= s.tensors.size()) return TFSL_ARGUMENT;
  const Tensor& t = s.tensors[tensor];
  tfsl_tensor_fields out = {};
  out.struct_size = fields->struct_size;
  out.dtype = t.dtype;
  out.num_dims = static_cast<uint32_t>(t.shape.size());
  out.shape = t.shape.data();
  out.positions = t.positions;
  out.name = view_of_text(t.name);
  return hand_out(out, fields);
}

void tfsl_plan_close(tfsl_plan* plan) noexcept { delete plan; }

tfsl_status tfsl_round_begin(const tfsl_plan* plan, uint64_t client, uint64_t number,
                             const tfsl_rows* wanted, size_t num_wanted,
                             tfsl_round** round) noexcept {
  return begin(plan, client, number, wanted, num_wanted, Random(), round);
}

#if defined(TORCHFSL_CLIENT_TAPE)
tfsl_status tfsl_test_round_begin(const tfsl_plan* plan, uint64_t client, uint64_t number,
                                  const tfsl_rows* wanted, size_t num_wanted, const uint8_t* tape,
                                  size_t tape_size, tfsl_round** round) noexcept {
  Random random;
  random.tape = tape;
  random.left = tape_size;
  return begin(plan, client, number, wanted, num_wanted, random, round);
}
#endif

tfsl_status tfsl_round_next(tfsl_round* round, tfsl_step* step) noexcept {
  if (!step) return TFSL_ARGUMENT;
  return of_round(round, [&](Round& own) { own.next(*step); });
}

tfsl_status tfsl_round_give(tfsl_round* round, const uint8_t* answer, size_t size) noexcept {
  return of_round(round, [&](Round& own) { own.give({answer, answer ? size : 0}); });
}

tfsl_status tfsl_round_rows(tfsl_round* round, uint32_t segment, tfsl_view* ids,
                            tfsl_view* values) noexcept {
  if (!ids || !values) return TFSL_ARGUMENT;
  return of_round(round, [&](Round& own) {
    const Rows& rows = own.rows(segment);
    *ids = {rows.ids.data(), rows.ids.size() * sizeof rows.ids[0]};
    *values = {rows.values.data(), rows.values.size()};
  });
}

tfsl_status tfsl_round_clear(tfsl_round* round, uint32_t tensor, tfsl_view* values) noexcept {
  if (!values) return TFSL_ARGUMENT;
  return of_round(round, [&](Round& own) {
    const Bytes& found = own.clear(tensor);
    *values = {found.data(), found.size()};
  });
}

tfsl_status tfsl_round_submit(tfsl_round* round, const tfsl_part* parts, size_t num_parts,
                              uint64_t weight) noexcept {
  return of_round(round, [&](Round& own) { own.submit(parts, num_parts, weight); });
}

tfsl_status tfsl_round_abort(tfsl_round* round) noexcept {
  return of_round(round, [](Round& own) { own.abort(); });
}

tfsl_status tfsl_last_message(const tfsl_round* round, char* message, size_t room) noexcept {
  if (!round || !message || !room) return TFSL_ARGUMENT;
  tell(round->round.message, message, room);
  return TFSL_OK;
}

void tfsl_round_close(tfsl_round* round) noexcept { delete round; }
