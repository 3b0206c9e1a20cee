#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "native/memory/jemalloc_symbols.h"

// jemalloc's mallctl with types. Only to be used if IsJemallocPreloaded(). T must be the type that
// jemalloc's manual gives for `name`: jemalloc compares the sizes and refuses others.
namespace millpond::memory {

template <typename T>
std::optional<T> ReadControl(const std::string& name) {
  T value{};
  size_t value_bytes = sizeof(value);
  if (mallctl(name.c_str(), &value, &value_bytes, nullptr, 0) != 0) return std::nullopt;
  return value;
}

// Returns false if jemalloc refuses the value.
template <typename T>
[[nodiscard]] bool WriteControl(const std::string& name, T value) {
  return mallctl(name.c_str(), nullptr, nullptr, &value, sizeof(value)) == 0;
}

[[nodiscard]] inline bool CallControl(const std::string& name) {
  return mallctl(name.c_str(), nullptr, nullptr, nullptr, 0) == 0;
}

}  // namespace millpond::memory
