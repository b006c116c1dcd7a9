// What a hostile plan, a hostile server and a careless caller can do to the client core.
//
//     fuzz_client PLANS COUNT [FIRST]    so many inputs: in turn scripts of calls and texts of
//     plans fuzz_client PLANS allocations      a round of each plan, with every allocation failing
//     once fuzz_client PLANS digest           of all that a round of each plan sends: equal on all
//     CPUs
//
// PLANS has the text of one plan a line. An input is drawn from its number alone, from FIRST or 0
// on, so that any of them can be run again. Built with -DTORCHFSL_FUZZ=ON by Clang, the inputs
// come from libFuzzer, and PLANS from the variable TORCHFSL_FUZZ_PLANS.
#include <algorithm>
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

struct Close {
  void operator()(tfsl_plan* plan) const { tfsl_plan_close(plan); }
};

// A plan as the servers have read it, and as the client has opened it.
struct Own {
  std::string text;
  std::unique_ptr<Plan> plan;
  std::unique_ptr<tfsl_plan, Close> opened;
};

std::vector<Own> plans;
Bytes tape(1 << 16);                                    // random bytes of all rounds
constexpr std::size_t kScript = 200, kSmall = 1 << 14;  // bytes of an input, and of messages
Digest all_sent{};                                      // over every message of `digest`

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
  Servers(const Plan& plan, u64 client, u64 round)
      : plan_(plan), client_(client), round_(round), clear_(plan.clear_bytes()) {}

  void sent(const tfsl_step& step) {
    all_sent = digest({View(all_sent), View(step.data, step.size)});
    if (step.message > kTreesCommit) return;
    std::memcpy(nonce_.data(), step.data + kHeaderBytes, 16);
    std::memcpy(seeds_[step.party].data(), step.data + kHeaderBytes + 16, 16);
  }

  Bytes answer(const tfsl_step& step, Input& input, bool honest) {
    const Kind kind = static_cast<Kind>(step.message);
    Bytes body(plan_.body_bytes(kind));
    const auto fill = [&](std::size_t from, std::size_t to) {
      for (std::size_t i = from; i < to && !honest; ++i) body[i] = input.byte();
    };
    if (kind == kAnswer) {
      fill(0, body.size() - 48);
      const TreeContext context(plan_, round_, client_, nonce_);
      const u8 nonce[12] = {};
      const u8 party = static_cast<u8>(step.party);
      body = gcm_seal(context.answer_key(seeds_[party], party), nonce,
                      View(body).first(body.size() - 16));
    } else {
      // Of any values both servers may agree on.
      if (!honest && kind == kModel && !clear_.empty()) {
        const std::size_t at = input.below(clear_.size());
        std::fill_n(clear_.begin() + static_cast<std::ptrdiff_t>(at),
                    std::min<std::size_t>(8, clear_.size() - at), input.byte());
      }
      const Digest own = digest({text(label::kModel), text("clear"), clear_});
      std::memcpy(body.data(), own.data(), 32);
      if (kind == kModel) std::copy(clear_.begin(), clear_.end(), body.begin() + 64);
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
    std::memcpy(out.data() + 32, plan_.digest.data(), 32);
    out.insert(out.end(), body.begin(), body.end());
    if (honest) return out;
    if (input.byte() % 8 == 0) out[input.below(out.size())] ^= input.byte();
    if (input.byte() % 16 == 0) {  // fields of the header change places
      u8* const field = out.data() + 8 * (input.byte() % 7);
      std::swap_ranges(field, field + 8, field + 8);
    }
    if (input.byte() % 16 == 0) out.resize(input.below(out.size() + 9));
    return out;
  }

 private:
  const Plan& plan_;
  u64 client_, round_;
  Key nonce_, seeds_[2];
  Bytes clear_;  // of the model
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
    for (u64 row = 0; !s.dense() && ids.size() < s.k_max && row < std::min<u64>(s.m, 64); ++row) {
      if (honest || input.byte() % 2) ids.push_back(static_cast<i64>(row));
    }
    if (!honest && !ids.empty() && input.byte() % 16 == 0) {
      ids[input.below(ids.size())] = static_cast<i64>(input.below(40)) - 4;
    }
    const std::size_t count = s.dense() ? s.m : ids.size();
    out.values.emplace_back(count * s.tau, honest ? 1e-4 : input.byte() * 1e-3);
    const u32 dtype = honest || input.byte() % 8 ? TFSL_FLOAT64 : input.byte() % 5;
    if (s.retrieve) out.wanted.push_back({i, 0, ids.data(), ids.size()});
    out.parts.push_back(
        {i, dtype, s.dense() ? nullptr : ids.data(), count, out.values.back().data()});
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

// A round: steps as they should be taken, then calls in any order with answers of any kind.
void run_calls(const Plan& plan, const tfsl_plan* opened, Input input) {
  const u64 client = input.byte(), number = input.byte();
  Servers servers(plan, client, number);
  const Rows rows = made_rows(plan, input, input.byte() % 2);
  const u8* random = tape.data() + 64 * input.byte();
  const std::size_t left = input.byte() % 16 ? tape.size() / 2 : 8 * input.byte();
  tfsl_round* round = nullptr;
  tfsl_test_round_begin(opened, client, number, rows.wanted.data(), rows.wanted.size(), random,
                        left, &round);
  bool done = false;
  for (int steps = input.byte() % 12; round && steps > 0; --steps) {
    take_step(round, servers, input, true, rows, done);
  }
  for (int calls = 0; round && calls < 64 && !(done && input.done()); ++calls) {
    const u8 call = input.byte() % 16;
    if (call < 11) {
      take_step(round, servers, input, call % 4 != 0, rows, done);
    } else if (call == 11) {
      const Bytes answer = input.bytes(input.below(200));
      tfsl_round_give(round, answer.data(), answer.size());
    } else if (call == 12) {
      const Rows other = made_rows(plan, input, false);
      tfsl_round_submit(round, other.parts.data(), other.parts.size(), input.byte());
    } else if (call == 13 && input.byte() % 4 == 0) {
      tfsl_round_abort(round);
    } else {
      read_all(round, plan);
    }
  }
  tfsl_round_close(round);
}

// A plan's text; what is taken for a plan tells its fields, and has a round if that is small.
void run_plan(const u8* data, std::size_t size, Input script) {
  tfsl_plan* opened = nullptr;
  char text[100];
  const tfsl_status status = tfsl_plan_open(data, size, &opened, text, sizeof text);
  expect((status == TFSL_OK) == (opened != nullptr), "a plan without a status");
  if (!opened) return;
  const std::unique_ptr<tfsl_plan, Close> closed(opened);
  tfsl_plan_fields fields = {};
  fields.struct_size = sizeof fields;
  expect(tfsl_plan_info(opened, &fields) == TFSL_OK, "no fields");
  for (u32 i = 0; i < fields.num_segments; ++i) {
    tfsl_segment_fields segment = {};
    segment.struct_size = sizeof segment;
    expect(tfsl_plan_segment(opened, i, &segment) == TFSL_OK, "no segment");
    touch(segment.name.data, segment.name.size);
    for (u32 j = 0; j < segment.num_tensors; ++j) {
      tfsl_tensor_fields tensor = {};
      tensor.struct_size = sizeof tensor;
      expect(tfsl_plan_tensor(opened, i, j, &tensor) == TFSL_OK, "no tensor");
      touch(tensor.shape, tensor.num_dims * sizeof *tensor.shape);
      touch(tensor.name.data, tensor.name.size);
    }
  }
  if (fields.upload_bytes + fields.download_bytes > kSmall) return;
  run_calls(*read_plan({data, size}), opened, script);
}

// One whole round, of which an allocation may fail; whether none did.
bool run_round(const Own& own, bool failing, long number) {
  Servers servers(*own.plan, 3, 9);
  Input none(nullptr, 0);
  const View text = view_of(own.text);
  const Rows rows = made_rows(*own.plan, none, true);
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
  bool whole =
      !failed(calling([&] { return tfsl_plan_open(text.data(), text.size(), &plan, nullptr, 0); }));
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
  for (const Own& own : plans) {
    if (own.plan->sealed || (!own.plan->early.empty() && own.plan->verified()))
      continue;  // no tags are made here
    expect(run_round(own, false, 0), "a round fails");
    if (!failing) continue;
    long number = 0;
    while (!run_round(own, true, number)) ++number;
    std::printf("fuzz_client: %ld allocations failed, one at a time\n", number);
  }
  if (!failing) {
    for (const u8 byte : all_sent) std::printf("%02x", byte);
    std::printf("\n");
  }
  return 0;
}

void load(const char* path) {
  for (std::size_t i = 0; i < tape.size(); ++i) tape[i] = static_cast<u8>((i * i * 0x9e37) >> 9);
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    tfsl_plan* plan = nullptr;
    const View text = view_of(line);
    expect(tfsl_plan_open(text.data(), text.size(), &plan, nullptr, 0) == TFSL_OK,
           "a good plan is refused");
    plans.push_back({line, read_plan(text), std::unique_ptr<tfsl_plan, Close>(plan)});
  }
  expect(!plans.empty(), "no plans");
}

}  // namespace

// A kind, then either a plan's number or its text, with a script of calls.
extern "C" int LLVMFuzzerTestOneInput(const u8* data, std::size_t size) {
  if (plans.empty()) load(std::getenv("TORCHFSL_FUZZ_PLANS"));
  if (size < 2) return 0;
  if (data[0] % 2 == 0) {
    const Own& own = plans[data[1] % plans.size()];
    run_calls(*own.plan, own.opened.get(), {data + 2, size - 2});
  } else {
    const std::size_t script = std::min<std::size_t>(kScript, size - 1);
    run_plan(data + 1 + script, size - 1 - script, {data + 1, script});
  }
  return 0;
}

#if !defined(TORCHFSL_LIBFUZZER)
namespace {

u64 state;  // of splitmix64

u64 random(u64 bound) {
  u64 z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return (z ^ (z >> 31)) % bound;
}

// A plan with some characters, numbers or fields of others.
std::string changed_plan() {
  constexpr char kCharacters[] = "0123456789\"{}[],:-.eau", kDigits[] = "0123456789";
  constexpr const char* kNumbers[] = {"0",
                                      "1",
                                      "2",
                                      "3",
                                      "7",
                                      "16",
                                      "255",
                                      "65535",
                                      "4294967296",
                                      "9223372036854775807",
                                      "9223372036854775808"};
  std::string text = plans[random(plans.size())].text;
  for (u64 changes = 1 + random(3); changes; --changes) {
    const std::string& other = plans[random(plans.size())].text;
    std::size_t at = random(text.size()), from = random(other.size());
    const u64 kind = random(4);
    if (kind == 0) {
      text[at] = kCharacters[random(22)];
    } else if (kind == 1) {
      text.replace(at, random(12), other, from, random(12));
    } else if (kind == 2) {
      at = std::min(text.find_first_of(kDigits, at), text.size());
      text.replace(at, text.find_first_not_of(kDigits, at) - at, kNumbers[random(11)]);
    } else {  // from one comma to the next
      at = std::min(text.find(',', at), text.size());
      from = std::min(other.find(',', from), other.size());
      text.replace(at, text.find(',', at + 1) - at, other, from, other.find(',', from + 1) - from);
    }
  }
  return text;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: fuzz_client PLANS COUNT [FIRST] | PLANS allocations|digest\n");
    return 2;
  }
  load(arguments[1]);
  const std::string what = arguments[2];
  if (what == "allocations" || what == "digest") return play_rounds(what == "allocations");
  const u64 runs = std::strtoull(arguments[2], nullptr, 10);
  const u64 first = count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 0;
  for (u64 number = first; number < first + runs; ++number) {
    if (number % 1000 == 0) {
      std::fprintf(stderr, "fuzz_client: inputs from %llu on\n",
                   static_cast<unsigned long long>(number));
    }
    state = number * 0xd1342543de82ef95;
    std::vector<u8> input(1 + kScript + (number % 2 ? 0 : random(kScript)));
    for (u8& byte : input) byte = static_cast<u8>(random(256));
    input[0] = static_cast<u8>(number);
    if (number % 2) {
      const std::string text = changed_plan();
      input.insert(input.end(), text.begin(), text.end());
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("fuzz_client: %llu inputs\n", static_cast<unsigned long long>(runs));
  return 0;
}
#endif
