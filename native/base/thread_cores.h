#pragma once

#include <pthread.h>

#include <vector>

#include "native/base/status.h"

namespace millpond::base {

// Returns the cores that the calling thread may run on, ascending. Returns an empty list if the
// kernel refuses the query.
std::vector<int> AllowedCores();

// Restricts `thread` to `cores` from now on. Returns INVALID_ARGUMENT if the kernel refuses, as it
// does if the machine has none of these cores.
Status RestrictToCores(pthread_t thread, const std::vector<int>& cores);

}  // namespace millpond::base
