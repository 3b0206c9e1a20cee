#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "native/servable/routing.h"

namespace millpond::servable {

// The metadata of a request: one key with a value, or nothing. It counts its reads.
class FakeMetadata final : public RequestMetadata {
 public:
  FakeMetadata() = default;
  FakeMetadata(std::string key, std::string value)
      : key_(std::move(key)), value_(std::move(value)) {}

  std::optional<std::string_view> Find(std::string_view key) const override {
    read_count_ += 1;
    if (key_.empty() || key != key_) return {};
    return value_;
  }

  int read_count() const { return read_count_; }

 private:
  const std::string key_;
  const std::string value_;
  mutable int read_count_ = 0;
};

}  // namespace millpond::servable
