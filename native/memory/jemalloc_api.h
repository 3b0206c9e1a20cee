#pragma once

#include <string>

namespace millpond::memory {

// Returns true if jemalloc is this process's allocator. Fixed when the process starts.
bool IsJemallocPreloaded();

// Returns a text like "5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c", or "" if jemalloc is not
// preloaded.
std::string JemallocVersion();

}  // namespace millpond::memory
