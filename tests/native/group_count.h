#pragma once

#include <algorithm>
#include <cstdlib>

namespace millpond::testing {

// The groups of request threads of the tests' servers: TEST_THREAD_GROUPS, by default one. The
// tests of the wire hold with any number.
inline int GroupCount() {
  const char* const number = std::getenv("TEST_THREAD_GROUPS");
  return number == nullptr ? 1 : std::max(1, std::atoi(number));
}

// Enough threads for so many groups, and two at least.
inline int ThreadCount() { return std::max(2, GroupCount()); }

}  // namespace millpond::testing
