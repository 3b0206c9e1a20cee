#pragma once

#include <pthread.h>

#include <vector>

#include "native/base/status.h"

namespace millpond::base {

// The cores that the calling thread may run on, ascending; empty where the kernel does not say.
std::vector<int> AllowedCores();

// From now on `thread` runs on `cores` and no others. INVALID_ARGUMENT where none of them is there.
Status RestrictToCores(pthread_t thread, const std::vector<int>& cores);

}  // namespace millpond::base
