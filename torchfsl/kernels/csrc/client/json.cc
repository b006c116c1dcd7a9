#include "json.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace fsl::client {
namespace {

// The digits of a number with so many significant ones, and the exponent of the first. Whatever
// the locale calls its point is left out.
std::pair<std::string, int> rounded(double number, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*e", digits - 1, number);
  std::string found;
  const char* at = text;
  for (; *at != 'e'; ++at) {
    if (*at >= '0' && *at <= '9') found += *at;
  }
  return {found, std::atoi(at + 1)};
}

double value_of(const std::string& digits, int exponent) {
  const int last = exponent - static_cast<int>(digits.size()) + 1;
  return std::strtod((digits + "e" + std::to_string(last)).c_str(), nullptr);
}

// The number one unit of the last digit above.
void raise(std::string& digits, int& exponent) {
  std::size_t i = digits.size();
  while (i && digits[i - 1] == '9') digits[--i] = '0';
  if (i) {
    ++digits[i - 1];
  } else {
    digits.insert(digits.begin(), '1');
    digits.pop_back();
    ++exponent;
  }
}

}  // namespace

std::string repr(double number) {
  std::string digits;
  int exponent = 0;
  for (int count = 1; count <= 17; ++count) {
    std::tie(digits, exponent) = rounded(number, count);
    if (value_of(digits, exponent) == number) break;
    raise(digits, exponent);  // below a power of two neighbours are nearer
    if (value_of(digits, exponent) == number) break;
  }
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  if (exponent < -4 || exponent >= 16) {
    if (digits.size() > 1) digits.insert(1, ".");
    const std::string size = std::to_string(std::abs(exponent));
    return digits + (exponent < 0 ? "e-" : "e+") + (size.size() < 2 ? "0" : "") + size;
  }
  if (exponent < 0)
    return "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const std::size_t whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return digits + std::string(whole - digits.size(), '0') + ".0";
  return digits.insert(whole, ".");
}

void Json::bad(const char* why) const {
  fail(TFSL_DECODE, "invalid-plan",
       "not a valid plan: " + (path_.empty() ? std::string() : path_ + ": ") + why);
}

void Json::unsupported() const {
  fail(TFSL_UNSUPPORTED, "unsupported-plan",
       "this client does not support the plan's " + path_ + ": use a client that does");
}

std::string_view Json::literal(const char* characters) {
  const std::size_t start = at_;
  while (at_ < text_.size() && std::string_view(characters).find(text_[at_]) != std::string::npos) {
    ++at_;
  }
  return text_.substr(start, at_ - start);
}

std::string Json::string() {
  take('"');
  std::string out;
  while (!taken('"')) {
    if (at_ == text_.size()) bad("a text does not end");
    char c = text_[at_++];
    if (c == '\\') {
      c = at_ < text_.size() ? text_[at_++] : '\0';
      if (c == 'u') {
        path_ += " (a name beyond ASCII)";
        unsupported();
      }
      if (c != '"' && c != '\\') bad("a character that no name has");
    } else if (c < 0x20 || c > 0x7e) {
      bad("a character that no name has");
    }
    out += c;
  }
  return out;
}

i64 Json::integer() {
  const std::string_view digits = literal("-0123456789");
  if (at_ < text_.size() && std::string_view(".eE").find(text_[at_]) != std::string::npos) {
    bad("a number that is not whole");
  }
  const bool minus = !digits.empty() && digits[0] == '-';
  const std::string_view size = digits.substr(minus);
  if (size.empty() || size.find('-') != std::string::npos || (size[0] == '0' && digits != "0")) {
    bad("not a whole number");
  }
  i64 value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (read.ec != std::errc()) unsupported();  // beyond 64 bits
  return value;
}

double Json::number() {
  const std::string text(literal("+-.0123456789e"));
  std::string digits;
  int exponent = -1;  // of the first digit
  bool point = false;
  std::size_t i = 0;
  for (; i < text.size() && text[i] != 'e'; ++i) {
    if (text[i] == '.') {
      point = true;
    } else {
      digits += text[i];
      exponent += !point;
    }
  }
  if (i < text.size()) exponent += std::atoi(text.substr(i + 1).substr(0, 6).c_str());
  if (digits.find_first_not_of("0123456789") != std::string::npos || digits.empty() ||
      digits.size() > 32) {
    bad("not a number");
  }
  const double value = value_of(digits, exponent);
  if (!(value > 0) || value > 1e300 || repr(value) != text) bad("not a number as plans have it");
  return value;
}

bool Json::boolean() {
  const std::string_view word = literal("aeflrstu");
  if (word != "true" && word != "false") bad("neither true nor false");
  return word == "true";
}

void Json::hex(u8* out, std::size_t size) {
  const std::string text = string();
  bool right = text.size() == 2 * size;
  for (std::size_t i = 0; right && i < text.size(); ++i) {
    const char c = text[i];
    right = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    const int digit = c <= '9' ? c - '0' : c - 'a' + 10;
    out[i / 2] = static_cast<u8>(i % 2 ? out[i / 2] | digit : digit << 4);
  }
  if (!right) bad("not so many bytes in lower-case hex");
}

u32 Json::choice(std::initializer_list<const char*> names) {
  const std::string text = string();
  u32 index = 0;
  for (const char* name : names) {
    if (text == name) return index;
    ++index;
  }
  bad("not one of the choices");
}

}  // namespace fsl::client
