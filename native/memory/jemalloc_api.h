#pragma once

#include <string>

namespace millpond::memory {

// Whether jemalloc is this process's allocator. Decided when the process starts, never changes.
bool IsJemallocPreloaded();

// Like "5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c"; empty where it is not preloaded.
std::string JemallocVersion();

}  // namespace millpond::memory
