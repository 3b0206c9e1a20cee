#pragma once

#include <string>

#include "native/base/byte_budget.h"
#include "native/base/status.h"

namespace millpond::base {

// Returns RESOURCE_EXHAUSTED with the reason why `budget` has no bytes left for `what`, like "a
// message of 9 bytes", and with the remedy. The control plane's MemoryBusy has the same sentence:
// change both.
Status NoMemoryFor(const std::string& what, const ByteBudget& budget);

}  // namespace millpond::base
