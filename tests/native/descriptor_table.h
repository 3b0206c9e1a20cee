#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace millpond::testing {

// Returns the length of the kernel's table of this process's descriptors; -1 if it does not tell.
inline int64_t DescriptorTableLength() {
  constexpr std::string_view kName = "FDSize:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, kName.size(), kName) == 0) return std::atoll(line.c_str() + kName.size());
  }
  return -1;
}

}  // namespace millpond::testing
