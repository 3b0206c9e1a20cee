#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millpond::base {

// A list of names for an error message: the first kShown names, and the number of the others. A
// server may have thousands of models, and any client that misspells a name receives the message.
class Listing {
 public:
  static constexpr size_t kShown = 5;

  void Add(std::string_view item) {
    if (count_++ < kShown) text_.append(" ").append(item);
  }

  // Returns " a b c d e and 7 more", or " none" if the list is empty.
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
