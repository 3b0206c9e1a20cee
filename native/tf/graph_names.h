#pragma once

#include <string_view>

namespace millpond::tf {

// Returns the node of an input or output like "^node", "node:1" or, within a function,
// "node:out:0".
inline std::string_view NodeOf(std::string_view tensor) {
  if (!tensor.empty() && tensor.front() == '^') tensor.remove_prefix(1);
  return tensor.substr(0, tensor.find(':'));
}

inline bool IsControl(std::string_view input) { return !input.empty() && input.front() == '^'; }

}  // namespace millpond::tf
