#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "native/tf/resource_reads.h"
#include "native/tf/signature_split.h"

namespace millpond::tf {

// The place of the tables in which signatures look rows up.
enum class TablePlace {
  kAuto,    // on the accelerator, as far as there is room
  kHost,    // in this process's memory
  kDevice,  // on the accelerator
};

// Returns the tables that stay in this process's memory. With kAuto it is the fewest, the largest
// first, so that the rest of `variables` fits `room_bytes`.
std::set<ResourceKey> ChooseHostTables(
    const std::map<ResourceKey, SignatureSplit::Variable>& variables, TablePlace place,
    int64_t room_bytes);

}  // namespace millpond::tf
