// A reader of the one text that a plan has: sorted keys, no white space, shortest numbers.
#pragma once

#include <string>
#include <string_view>

#include "support.h"

namespace fsl::client {

class Json {
 public:
  explicit Json(View text) : text_(reinterpret_cast<const char*>(text.data()), text.size()) {}

  // Calls `field(key)` for every member in order, which reads its value. Returns their number.
  template <class F>
  unsigned object(F field) {
    const std::string outer = path_;
    take('{');
    std::string before;
    unsigned fields = 0;
    for (; !taken('}'); ++fields) {
      if (fields) take(',');
      const std::string key = string();
      if (fields && key <= before) bad("keys are not sorted");
      take(':');
      path_ = outer.empty() ? key : outer + "." + key;
      field(key);
      before = key;
    }
    path_ = outer;
    return fields;
  }
  template <class F>
  void array(F item) {
    take('[');
    for (bool first = true; !taken(']'); first = false) {
      if (!first) take(',');
      item();
    }
  }
  std::string string();
  i64 integer();
  double number();
  bool boolean();
  // `size` bytes in lower-case hex.
  void hex(u8* out, std::size_t size);
  // Which of the names it is.
  u32 choice(std::initializer_list<const char*> names);
  void end() {
    if (at_ != text_.size()) bad("something follows the plan");
  }
  // Where the reader is, for a message.
  const std::string& path() const { return path_; }

  [[noreturn]] void bad(const char* why) const;
  [[noreturn]] void unsupported() const;

 private:
  bool taken(char wanted) {
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void take(char wanted) {
    if (!taken(wanted)) bad("not canonical JSON");
  }
  std::string_view literal(const char* characters);

  std::string_view text_;
  std::size_t at_ = 0;
  std::string path_;
};

// A number as Python writes it: shortest digits, an exponent below 10^-4 and from 10^16 on.
std::string repr(double number);

}  // namespace fsl::client
