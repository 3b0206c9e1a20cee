#pragma once

#include <string>

#include "native/base/byte_budget.h"
#include "native/base/status.h"

namespace millpond::base {

// Returns RESOURCE_EXHAUSTED with the reason why `what`, like "a message of 9 bytes", found no
// place in `budget`, and what to do. serving/request_memory.py has the same sentence for Python.
Status NoMemoryFor(const std::string& what, const ByteBudget& budget);

}  // namespace millpond::base
