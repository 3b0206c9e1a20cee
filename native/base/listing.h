#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millpond::base {

// A list of names for an error's text: a few of them, and how many more there are. A server may
// have thousands of models, and a message goes to any client that misspells one.
class Listing {
 public:
  static constexpr size_t kShown = 5;

  void Add(std::string_view item) {
    if (count_++ < kShown) text_.append(" ").append(item);
  }

  // " a b c d e and 7 more", or " none".
  std::string text() const {
    if (count_ == 0) return " none";
    if (count_ <= kShown) return text_;
    return text_ + " and " + std::to_string(count_ - kShown) + " more";
  }

 private:
  size_t count_ = 0;
  std::string text_;
};

}  // namespace millpond::base
