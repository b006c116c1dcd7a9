// What a hostile plan, a hostile server and a careless caller can do to the client core.
//
//     fuzz_client PLANS COUNT [SEED]     so many inputs, each a plan's text or a script of calls
//     fuzz_client PLANS allocations      a round of each plan, with every allocation failing once
//     fuzz_client PLANS digest           of all that a round of each plan sends: equal on all CPUs
//
// PLANS has the text of one plan a line. Built with -DTORCHFSL_FUZZ=ON by Clang, the same inputs
// come from libFuzzer, and PLANS from the variable TORCHFSL_FUZZ_PLANS.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "keys.h"
#include "torchfsl_client.h"

using namespace fsl::client;

namespace {

long allocations_left = -1;  // before one fails; none fails where it is negative

void* allocate(std::size_t size, std::size_t alignment) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  const std::size_t whole = (size + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, whole ? whole : alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size, 16); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return allocate(size, 16);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t size) { return allocate(size, 16); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

std::vector<std::string> plans;
Digest all_sent{};  // over every message of `digest`

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_client: %s\n", what);
  std::abort();
}

// Bytes of the input while they last, then zeros.
class Input {
 public:
  Input(const u8* data, std::size_t size) : data_(data), left_(size) {}
  u8 byte() { return left_ ? (--left_, *data_++) : 0; }
  u64 below(u64 bound) {
    u64 value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | byte();
    return bound ? value % bound : 0;
  }
  Bytes bytes(std::size_t size) {
    Bytes out(size);
    for (u8& byte_of : out) byte_of = byte();
    return out;
  }
  bool done() const { return !left_; }

 private:
  const u8* data_;
  std::size_t left_;
};

// A server's answers, as one makes them that knows its seed and says what it likes.
class Servers {
 public:
  Servers(const std::string& text, u64 client, u64 round)
      : plan_(read_plan(view_of(text))), client_(client), round_(round) {}

  void sent(const tfsl_step& step) {
    all_sent = digest({View(all_sent), View(step.data, step.size)});
    if (step.message > kTreesCommit) return;
    std::memcpy(nonce_.data(), step.data + kHeaderBytes, 16);
    std::memcpy(seeds_[step.party].data(), step.data + kHeaderBytes + 16, 16);
  }

  Bytes answer(const tfsl_step& step, Input& input, bool honest) const {
    const Kind kind = static_cast<Kind>(step.message);
    Bytes body(plan_->body_bytes(kind));
    const auto fill = [&](std::size_t from, std::size_t to) {
      for (std::size_t i = from; i < to && !honest; ++i) body[i] = input.byte();
    };
    if (kind == kAnswer) {
      fill(0, body.size() - 48);
      const TreeContext context(*plan_, round_, client_, nonce_);
      const u8 nonce[12] = {};
      const u8 party = static_cast<u8>(step.party);
      body = gcm_seal(context.answer_key(seeds_[party], party), nonce,
                      View(body).first(body.size() - 16));
    } else {
      const Bytes clear(plan_->clear_bytes());
      const Digest own = digest({text(label::kModel), text("clear"), clear});
      std::memcpy(body.data(), own.data(), 32);
      if (!honest && input.byte() % 4 == 0) fill(0, body.size());
    }
    Bytes out(kHeaderBytes);
    std::memcpy(out.data(), "TFSL\4\0", 6);
    out[6] = kind;
    out[7] = static_cast<u8>(step.party);
    std::memcpy(out.data() + 8, &round_, 8);
    std::memcpy(out.data() + 16, &client_, 8);
    const u64 size = body.size();
    std::memcpy(out.data() + 24, &size, 8);
    std::memcpy(out.data() + 32, plan_->digest.data(), 32);
    out.insert(out.end(), body.begin(), body.end());
    if (!honest && input.byte() % 8 == 0) out[input.below(out.size())] ^= input.byte();
    if (!honest && input.byte() % 16 == 0) out.resize(input.below(out.size() + 9));
    return out;
  }

  const Plan& plan() const { return *plan_; }

 private:
  std::unique_ptr<Plan> plan_;
  u64 client_, round_;
  Key nonce_, seeds_[2];
};

struct Rows {
  explicit Rows(const Plan& plan) : ids(plan.segments.size()) {}
  std::vector<std::vector<i64>> ids;
  std::vector<std::vector<double>> values;
  std::vector<tfsl_rows> wanted;
  std::vector<tfsl_part> parts;
};

// Rows of all segments with trees, and an update of them; as they should be if `honest`.
Rows made_rows(const Plan& plan, Input& input, bool honest) {
  Rows out(plan);
  for (u32 i = 0; i < plan.segments.size(); ++i) {
    const Segment& s = plan.segments[i];
    std::vector<i64>& ids = out.ids[i];
    for (u64 row = 0; !s.dense() && ids.size() < s.k_max && row < s.m; ++row) {
      if (honest || input.byte() % 2) ids.push_back(static_cast<i64>(row));
    }
    if (!honest && !ids.empty() && input.byte() % 16 == 0) {
      ids[input.below(ids.size())] = static_cast<i64>(input.below(40)) - 4;
    }
    const std::size_t count = s.dense() ? s.m : ids.size();
    out.values.emplace_back(count * s.tau, honest ? 1e-4 : input.byte() * 1e-3);
    if (s.retrieve) out.wanted.push_back({i, 0, ids.data(), ids.size()});
    out.parts.push_back(
        {i, TFSL_FLOAT64, s.dense() ? nullptr : ids.data(), count, out.values.back().data()});
  }
  if (!honest && input.byte() % 16 == 0) out.parts[input.below(out.parts.size())].segment = 7;
  if (!honest && input.byte() % 32 == 0 && !out.wanted.empty()) out.wanted.pop_back();
  return out;
}

u64 touched;  // so that every byte of a view is read

void touch(const void* data, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) touched += static_cast<const u8*>(data)[i];
}

void read_all(tfsl_round* round, const Plan& plan) {
  tfsl_view ids, values;
  for (u32 i = 0; i < plan.segments.size() + 1; ++i) {
    if (tfsl_round_rows(round, i, &ids, &values) != TFSL_OK) continue;
    touch(ids.data, ids.size);
    touch(values.data, values.size);
  }
  for (u32 i = 0; i < plan.clear.size() + 1; ++i) {
    if (tfsl_round_clear(round, i, &values) == TFSL_OK) touch(values.data, values.size);
  }
  char text[40];
  expect(tfsl_last_message(round, text, sizeof text) == TFSL_OK, "no message");
}

// Takes the next step, as it should be taken or nearly so.
tfsl_status take_step(tfsl_round* round, Servers& servers, Input& input, bool honest,
                      const Rows& rows, bool& done) {
  tfsl_step step;
  const tfsl_status status = tfsl_round_next(round, &step);
  if (status != TFSL_OK) return status;
  if (step.kind == TFSL_SEND) {
    touch(step.data, step.size);
    servers.sent(step);
    return tfsl_round_give(round, nullptr, 0);
  }
  if (step.kind == TFSL_FETCH) {
    const Bytes answer = servers.answer(step, input, honest);
    return tfsl_round_give(round, answer.data(), answer.size());
  }
  if (step.kind == TFSL_TRAIN) {
    return tfsl_round_submit(round, rows.parts.data(), rows.parts.size(), 1);
  }
  done = true;
  return TFSL_OK;
}

void run_calls(Input input) {
  const std::string& text = plans[input.byte() % plans.size()];
  const u64 client = input.byte(), number = input.byte();
  Servers servers(text, client, number);
  tfsl_plan* plan = nullptr;
  expect(tfsl_plan_open(view_of(text).data(), text.size(), &plan, nullptr, 0) == TFSL_OK,
         "a good plan is refused");
  const Rows rows = made_rows(servers.plan(), input, input.byte() % 2);
  const Bytes tape(1 << 18, input.byte());
  tfsl_round* round = nullptr;
  tfsl_test_round_begin(plan, client, number, rows.wanted.data(), rows.wanted.size(), tape.data(),
                        tape.size(), &round);
  bool done = false;
  for (int calls = 0; round && calls < 64 && !(done && input.done()); ++calls) {
    const u8 call = input.byte() % 16;
    if (call < 11) {
      take_step(round, servers, input, call % 4 != 0, rows, done);
    } else if (call == 11) {
      const Bytes answer = input.bytes(input.below(200));
      tfsl_round_give(round, answer.data(), answer.size());
    } else if (call == 12) {
      const Rows other = made_rows(servers.plan(), input, false);
      tfsl_round_submit(round, other.parts.data(), other.parts.size(), input.byte());
    } else if (call == 13 && input.byte() % 4 == 0) {
      tfsl_round_abort(round);
    } else {
      read_all(round, servers.plan());
    }
  }
  tfsl_round_close(round);
  tfsl_plan_close(plan);
}

void run_plan(const u8* data, std::size_t size) {
  tfsl_plan* plan = nullptr;
  char text[100];
  const tfsl_status status = tfsl_plan_open(data, size, &plan, text, sizeof text);
  expect((status == TFSL_OK) == (plan != nullptr), "a plan without a status");
  if (!plan) return;
  tfsl_plan_fields fields = {};
  fields.struct_size = sizeof fields;
  expect(tfsl_plan_info(plan, &fields) == TFSL_OK, "no fields");
  tfsl_plan_close(plan);
}

// One whole round, of which an allocation may fail; whether none did.
bool run_round(const std::string& text, bool failing, long number) {
  Servers servers(text, 3, 9);
  Input none(nullptr, 0);
  const Rows rows = made_rows(servers.plan(), none, true);
  Bytes tape(1 << 18);
  for (std::size_t i = 0; i < tape.size(); ++i) tape[i] = static_cast<u8>((i * i * 0x9e37) >> 9);
  tfsl_plan* plan = nullptr;
  tfsl_round* round = nullptr;
  const auto calling = [&](auto call) {
    if (failing) allocations_left = number;
    const tfsl_status status = call();
    if (failing) number = allocations_left;
    allocations_left = -1;
    return status;
  };
  const auto failed = [&](tfsl_status status) {
    expect(status == TFSL_OK || (failing && status == TFSL_MEMORY), "another status than MEMORY");
    return status != TFSL_OK;
  };
  bool whole = !failed(calling(
      [&] { return tfsl_plan_open(view_of(text).data(), text.size(), &plan, nullptr, 0); }));
  whole = whole && !failed(calling([&] {
            return tfsl_test_round_begin(plan, 3, 9, rows.wanted.data(), rows.wanted.size(),
                                         tape.data(), tape.size(), &round);
          }));
  bool done = false;
  for (int steps = 0; whole && !done && steps < 20; ++steps) {
    tfsl_step step;
    expect(tfsl_round_next(round, &step) == TFSL_OK, "next fails");
    Bytes answer;
    if (step.kind == TFSL_FETCH) answer = servers.answer(step, none, true);
    if (step.kind == TFSL_SEND) servers.sent(step);
    whole = !failed(calling([&] {
      return step.kind == TFSL_TRAIN
                 ? tfsl_round_submit(round, rows.parts.data(), rows.parts.size(), 1)
             : step.kind == TFSL_DONE ? (done = true, TFSL_OK)
                                      : tfsl_round_give(round, answer.data(), answer.size());
    }));
  }
  expect(whole == done, "a round does not end");
  if (round && !whole) {  // it goes on as a client that dropped out, or sends a report
    for (int steps = 0; !done && steps < 20; ++steps) {
      take_step(round, servers, none, true, rows, done);
    }
    expect(done, "a round does not end after a failure");
  }
  tfsl_round_close(round);
  tfsl_plan_close(plan);
  return whole;
}

int play_rounds(bool failing) {
  for (const std::string& text : plans) {
    const std::unique_ptr<Plan> plan = read_plan(view_of(text));
    if (plan->sealed || (!plan->early.empty() && plan->verified()))
      continue;  // no tags are made here
    expect(run_round(text, false, 0), "a round fails");
    if (!failing) continue;
    long number = 0;
    while (!run_round(text, true, number)) ++number;
    std::printf("fuzz_client: %ld allocations failed, one at a time\n", number);
  }
  if (!failing) {
    for (const u8 byte : all_sent) std::printf("%02x", byte);
    std::printf("\n");
  }
  return 0;
}

void load(const char* path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) plans.push_back(line);
  expect(!plans.empty(), "no plans");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8* data, std::size_t size) {
  if (plans.empty()) load(std::getenv("TORCHFSL_FUZZ_PLANS"));
  if (!size) return 0;
  if (data[0] % 2) {
    run_plan(data + 1, size - 1);
  } else {
    run_calls(Input(data + 1, size - 1));
  }
  return 0;
}

#if !defined(TORCHFSL_LIBFUZZER)
int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: fuzz_client PLANS COUNT [SEED] | PLANS allocations|digest\n");
    return 2;
  }
  load(arguments[1]);
  const std::string what = arguments[2];
  if (what == "allocations" || what == "digest") return play_rounds(what == "allocations");
  u64 state = count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1;
  const auto random = [&](u64 bound) {  // splitmix64
    u64 z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (z ^ (z >> 31)) % bound;
  };
  const long runs = std::strtol(arguments[2], nullptr, 10);
  for (long run = 0; run < runs; ++run) {
    std::vector<u8> input(1, static_cast<u8>(run));
    if (run % 2) {
      std::string text = plans[random(plans.size())];
      for (u64 changes = random(4); changes; --changes) {
        const std::size_t at = random(text.size());
        const std::string other = plans[random(plans.size())];
        const std::size_t from = random(other.size()), size = random(12);
        if (random(2))
          text.replace(at, 1, 1, "0123456789\"{}[],:-.eau"[random(22)]);
        else
          text.replace(at, random(12), other, from, size);
      }
      input.insert(input.end(), text.begin(), text.end());
    } else {
      for (u64 left = 20 + random(400); left; --left) input.push_back(static_cast<u8>(random(256)));
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("fuzz_client: %ld inputs\n", runs);
  return 0;
}
#endif
