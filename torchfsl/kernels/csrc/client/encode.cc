#include "encode.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "seal.h"

namespace fsl::client {
namespace {

[[noreturn]] void refuse(const char* code, const std::string& why) {
  fail(TFSL_ARGUMENT, code, why);
}

std::string of(const Segment& s) { return "segment '" + s.name + "': "; }

Vector<i64> checked_ids(const Segment& s, const i64* ids, std::size_t num) {
  if (num > s.k_max) {
    refuse("too-many-rows", of(s) + std::to_string(num) + " rows, the plan allows k_max = " +
                                std::to_string(s.k_max) + ": keep the most important ones");
  }
  if (num && !ids) refuse("rows-missing", of(s) + "rows is NULL: pass the ids of the rows");
  for (std::size_t i = 0; i < num; ++i) {
    if (ids[i] < 0 || static_cast<u64>(ids[i]) >= s.m) {
      refuse("row-out-of-range", of(s) + "a row lies outside [0, " + std::to_string(s.m) + ")");
    }
  }
  for (std::size_t i = 1; i < num; ++i) {
    if (ids[i] <= ids[i - 1]) {
      refuse("invalid-rows", of(s) + "rows must be distinct and increasing: sort them");
    }
  }
  return {ids, ids + num};
}

using Reals = std::vector<Vector<double>>;  // by segment

Vector<double> reals_of(const tfsl_part& part, std::size_t count) {
  Vector<double> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = part.dtype == TFSL_FLOAT32 ? static_cast<const float*>(part.values)[i]
                                        : static_cast<const double*>(part.values)[i];
  }
  return out;
}

// FixedPoint.quantise.
void quantise(const Encoding& e, const Vector<double>& reals, const Key* rounding,
              Vector<i64>& out) {
  const double scale = std::ldexp(1.0, static_cast<int>(e.frac_bits));
  const Bytes coins = rounding ? stream(*rounding, 4 * reals.size()) : Bytes();
  out.resize(reals.size());
  for (std::size_t i = 0; i < reals.size(); ++i) {
    const double scaled = std::clamp(reals[i], -e.clip, e.clip) * scale;
    double rounded;
    if (rounding) {
      u32 coin;
      std::memcpy(&coin, coins.data() + 4 * i, 4);
      rounded = std::floor(scaled + std::ldexp(static_cast<double>(coin), -32));
    } else {
      rounded = std::nearbyint(scaled);
    }
    out[i] = std::clamp(static_cast<i64>(rounded), -e.q_max, e.q_max);
  }
}

double norm_of(const double* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return std::sqrt(sum);
}

// norm_bound.target_norm.
double target_norm(u64 bound, u128 num_values) {
  const double count = static_cast<double>(num_values);
  const double room =
      static_cast<double>(bound) * static_cast<double>(bound) - count / 4 - std::sqrt(count) / 2;
  return (std::sqrt(1 + 4 * std::max(room, 0.0)) - 1) / 2;
}

u128 values_per_client(const Plan& plan) {
  u128 total = 0;
  for (const Segment& s : plan.segments) total += u128{s.k_max} * s.tau;
  return total;
}

// Rounds all segments, with coins of their own for every segment and attempt.
class Rounding {
 public:
  Rounding(const Plan& plan, Random& random) : plan_(plan) {
    if (plan.encoding.stochastic) seed_ = random.key();
  }
  void run(const Reals& reals, u32 attempt, std::vector<Part>& parts) const {
    u8 number[4];
    std::memcpy(number, &attempt, 4);
    for (std::size_t i = 0; i < reals.size(); ++i) {
      const Segment& s = plan_.segments[i];
      Key key;
      if (plan_.encoding.stochastic) {
        key = derive(seed_, text(label::kRounding), frame({view_of(s.name), number}));
      }
      quantise(s.encoding, reals[i], plan_.encoding.stochastic ? &key : nullptr, parts[i].values);
    }
  }

 private:
  const Plan& plan_;
  Key seed_;
};

// clipping.by_group: each group of values to its equal share of the bound.
void clip_by_group(const Plan& plan, const std::vector<Part>& parts, Reals& reals) {
  using Span = std::span<double>;
  std::vector<std::vector<Span>> groups;
  if (!plan.dense.empty()) groups.emplace_back();
  for (std::size_t i = 0; i < reals.size(); ++i) {
    const Segment& s = plan.segments[i];
    if (s.dense()) groups[0].emplace_back(reals[i]);
  }
  for (std::size_t i = 0; i < reals.size(); ++i) {
    const Segment& s = plan.segments[i];
    if (s.dense()) continue;
    if (s.policy != TFSL_ROWS) {
      groups.push_back({Span(reals[i])});
      continue;
    }
    i64 start = 0;
    const Vector<i64>& rows = parts[i].rows;
    for (const Tensor& t : s.tensors) {
      const i64 stop = start + static_cast<i64>(t.positions);
      const auto first = std::lower_bound(rows.begin(), rows.end(), start) - rows.begin();
      const auto last = std::lower_bound(rows.begin(), rows.end(), stop) - rows.begin();
      const std::size_t from = static_cast<std::size_t>(first) * s.tau;
      const std::size_t count = static_cast<std::size_t>(last - first) * s.tau;
      groups.push_back({Span(reals[i]).subspan(from, count)});
      start = stop;
    }
  }
  const double bound = target_norm(plan.l2_bound, values_per_client(plan)) /
                       std::sqrt(static_cast<double>(groups.size()));
  const double most = std::ldexp(bound, -static_cast<int>(plan.encoding.frac_bits));
  for (const std::vector<Span>& group : groups) {
    double sum = 0;
    for (const Span part : group) {
      const double norm = norm_of(part.data(), part.size());
      sum += norm * norm;
    }
    const double length = std::sqrt(sum);
    const bool fits = std::isfinite(length) && length > 0;
    double factor = fits ? most / length : 0.0;
    if (plan.clip != TFSL_CLIP_NORMALISE) factor = std::min(factor, 1.0);
    for (const Span part : group) {
      for (double& value : part) value = fits ? value * factor : 0.0;
    }
  }
}

bool within(const Plan& plan, const std::vector<Part>& parts) {
  const u128 bound = u128{plan.l2_bound} * plan.l2_bound;
  u128 total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const u128 own = norm_squared(parts[i].values, bound);
    const u128 most = u128{plan.segments[i].l2_bound} * plan.segments[i].l2_bound;
    if (most && own > most) return false;
    total += own;
    if (total > bound) return false;
  }
  return true;
}

void scale_to(Reals& reals, std::size_t first, std::size_t last, double target) {
  double sum = 0;
  for (std::size_t i = first; i < last; ++i) {
    const double norm = norm_of(reals[i].data(), reals[i].size());
    sum += norm * norm;
  }
  const double norm = std::sqrt(sum);
  if (norm <= target) return;
  for (std::size_t i = first; i < last; ++i) {
    for (double& value : reals[i]) value *= target / norm;
  }
}

// norm_bound.round_within: integers near the values whose exact norm is within the bound.
void round_within(const Plan& plan, Reals reals, const Rounding& rounding,
                  std::vector<Part>& parts) {
  constexpr u32 kTries = 32;
  const int bits = static_cast<int>(plan.encoding.frac_bits);
  for (std::size_t i = 0; i < reals.size(); ++i) {
    const Segment& s = plan.segments[i];
    const double clip = s.encoding.clip;
    for (double& value : reals[i]) value = std::ldexp(std::clamp(value, -clip, clip), bits);
    if (s.l2_bound) scale_to(reals, i, i + 1, target_norm(s.l2_bound, u128{s.k_max} * s.tau));
  }
  scale_to(reals, 0, reals.size(), target_norm(plan.l2_bound, values_per_client(plan)));
  for (u32 attempt = 0; attempt < kTries; ++attempt) {
    const double shrunk = 1 - attempt / (2.0 * kTries);
    Reals units = reals;
    for (Vector<double>& part : units) {
      for (double& value : part) value = std::ldexp(value * shrunk, -bits);
    }
    rounding.run(units, attempt, parts);
    if (within(plan, parts)) return;
  }
  for (std::size_t i = 0; i < reals.size(); ++i) {
    std::transform(reals[i].begin(), reals[i].end(), parts[i].values.begin(),
                   [](double value) { return static_cast<i64>(std::trunc(value)); });
  }
  while (!within(plan, parts)) {  // only by the last bits of the float norm, if ever
    for (Part& part : parts) {
      for (i64& value : part.values) value -= (value > 0) - (value < 0);
    }
  }
}

void quantise_all(const Plan& plan, Reals reals, Random& random, std::vector<Part>& parts) {
  if (plan.clip) clip_by_group(plan, parts, reals);
  const Rounding rounding(plan, random);
  if (plan.l2_bound) return round_within(plan, std::move(reals), rounding, parts);
  rounding.run(reals, 0, parts);
}

void check_values(const Plan& plan, const std::vector<Part>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Segment& s = plan.segments[i];
    for (const i64 value : parts[i].values) {
      if (value > s.encoding.q_max || value < -s.encoding.q_max) {
        refuse("value-too-large", of(s) + "a value exceeds q_max: quantise with its encoding");
      }
    }
  }
  if (plan.l2_bound && !within(plan, parts)) {
    refuse("norm-too-large", "the update's L2 norm exceeds the plan's bound: scale it down");
  }
}

}  // namespace

std::vector<Vector<i64>> checked_rows(const Plan& plan, const tfsl_rows* wanted, std::size_t num) {
  if (num && !wanted) refuse("rows-missing", "the rows are NULL: pass those of each segment");
  if (num != plan.early.size()) {
    refuse("segments-differ", "rows of " + std::to_string(num) + " segments, the plan retrieves " +
                                  std::to_string(plan.early.size()));
  }
  std::vector<Vector<i64>> rows;
  for (const Segment* s : plan.early) {
    const u32 index = static_cast<u32>(s - plan.segments.data());
    const tfsl_rows* found = std::find_if(
        wanted, wanted + num, [&](const tfsl_rows& given) { return given.segment == index; });
    if (found == wanted + num) refuse("segments-differ", of(*s) + "its rows are missing");
    rows.push_back(checked_ids(*s, found->ids, found->num));
  }
  return rows;
}

std::vector<Part> checked_update(const Plan& plan, const tfsl_part* given, std::size_t num,
                                 Random& random) {
  const std::size_t count = plan.segments.size();
  if (num && !given) refuse("segments-differ", "the parts are NULL: pass one for each segment");
  if (num != count) {
    refuse("segments-differ", "an update of " + std::to_string(num) + " parts, the plan has " +
                                  std::to_string(count) + " segments");
  }
  std::vector<Part> parts(count);
  std::vector<bool> seen(count);
  Reals reals(count);
  bool whole = false, real = false;
  for (const tfsl_part& part : std::span(given, num)) {
    if (part.segment >= count || seen[part.segment]) {
      refuse("segments-differ", "a segment is unknown or stands in the update twice");
    }
    seen[part.segment] = true;
    const Segment& s = plan.segments[part.segment];
    Part& own = parts[part.segment];
    if (s.dense() ? part.rows || part.num_rows != s.m : false) {
      refuse("wrong-shape", of(s) + "a dense segment has all its values and no ids");
    }
    if (!s.dense()) own.rows = checked_ids(s, part.rows, part.num_rows);
    const std::size_t values = part.num_rows * s.tau;
    if (values && !part.values) refuse("wrong-shape", of(s) + "values is NULL");
    if (part.dtype == TFSL_INT64) {
      whole = true;
      const i64* from = static_cast<const i64*>(part.values);
      own.values.assign(from, from + values);
    } else if (part.dtype == TFSL_FLOAT32 || part.dtype == TFSL_FLOAT64) {
      real = true;
      reals[part.segment] = reals_of(part, values);
    } else {
      refuse("wrong-type", of(s) + "dtype is none of TFSL_FLOAT32, TFSL_FLOAT64, TFSL_INT64");
    }
  }
  if (whole && real) refuse("wrong-type", "either all parts are quantised, or none");
  for (const Vector<double>& values : reals) {
    for (const double value : values) {
      if (!std::isfinite(value)) {
        refuse("value-not-finite", "a value is NaN or infinite: lower the learning rate");
      }
    }
  }
  if (real) quantise_all(plan, std::move(reals), random, parts);
  check_values(plan, parts);
  return parts;
}

void check_weight(const Plan& plan, u64 weight) {
  if (weight >= 1 && weight <= plan.max_weight) return;
  refuse("wrong-weight", "the weight is outside 1.." + std::to_string(plan.max_weight) +
                             ": pass one within, which is 1 in a plan without lane='weight'");
}

std::vector<Part> no_update(const Plan& plan) {
  std::vector<Part> parts(plan.segments.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (plan.segments[i].dense()) parts[i].values.resize(plan.segments[i].m);
  }
  return parts;
}

u128 norm_squared(const Vector<i64>& values, u128 most) {
  u128 total = 0;
  for (const i64 value : values) {
    const u64 size = value < 0 ? u64{0} - static_cast<u64>(value) : static_cast<u64>(value);
    total += u128{size} * size;
    if (total > most) break;
  }
  return total;
}

namespace {

// A word holds a value of so many bytes.
template <class Word>
void subtract_words(u8* values, const u8* others, std::size_t count, std::size_t width) {
  for (std::size_t i = 0; i < count; ++i) {
    Word a = 0, b = 0;
    std::memcpy(&a, values + i * width, width);
    std::memcpy(&b, others + i * width, width);
    a = static_cast<Word>(a - b);
    std::memcpy(values + i * width, &a, width);
  }
}

template <class Word>
void store_words(const Vector<i64>& values, u8* out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Word word = static_cast<Word>(values[i]);
    std::memcpy(out + i * sizeof word, &word, sizeof word);
  }
}

// Whether no exponent, the bits of `mask`, is that of infinities and NaN.
template <class Word>
bool are_finite(const Bytes& values, Word mask) {
  bool finite = true;
  for (std::size_t at = 0; at + sizeof mask <= values.size(); at += sizeof mask) {
    Word bits;
    std::memcpy(&bits, values.data() + at, sizeof bits);
    finite &= (bits & mask) != mask;
  }
  return finite;
}

}  // namespace

void subtract_ring(u8* values, const u8* others, std::size_t count, unsigned width) {
  if (width == 2) return subtract_words<std::uint16_t>(values, others, count, 2);
  if (width == 4) return subtract_words<u32>(values, others, count, 4);
  if (width == 8) return subtract_words<u64>(values, others, count, 8);
  subtract_words<u128>(values, others, count, width);
}

Bytes ring_of(const Vector<i64>& values, unsigned width) {
  Bytes out(values.size() * width);
  if (width == 2) {
    store_words<std::uint16_t>(values, out.data());
  } else if (width == 4) {
    store_words<u32>(values, out.data());
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) {
      store_ring(values[i], width, out.data() + i * width);
    }
  }
  return out;
}

bool widen(View sent, u32 download, u32 dtype, Bytes& out) {
  if (!download) {
    out.assign(sent.begin(), sent.end());
  } else {
    const std::size_t count = sent.size() / 2, size = std::size_t{2} << dtype;
    out.resize(count * size);
    for (std::size_t i = 0; i < count; ++i) {
      u32 half = 0;
      std::memcpy(&half, sent.data() + 2 * i, 2);
      const u32 sign = half >> 15 << 31, exponent = half >> 10 & 31, digits = half & 1023;
      float value = static_cast<float>(digits) * 0x1p-24f;  // below the smallest normal number
      u32 bits = download == 2 ? half << 16 : sign | (exponent + 112) << 23 | digits << 13;
      if (download == 1 && exponent == 31) bits = sign | 0x7f800000 | digits << 13;
      if (download == 2 || exponent)
        std::memcpy(&value, &bits, 4);
      else if (sign)
        value = -value;
      const double wide = value;
      std::memcpy(out.data() + i * size,
                  dtype == TFSL_FLOAT64 ? static_cast<const void*>(&wide) : &value, size);
    }
  }
  if (dtype == TFSL_FLOAT16) return are_finite<std::uint16_t>(out, 0x7c00);
  if (dtype == TFSL_FLOAT32) return are_finite<u32>(out, 0x7f800000);
  return are_finite<u64>(out, 0x7ff0000000000000);
}

}  // namespace fsl::client
