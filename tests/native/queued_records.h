#pragma once

#include <cstdint>

#include "native/servable/record_queue.h"

namespace millpond::testing {

// Calls `take(record)` for each complete record of a queue, and removes them.
template <typename Take>
void TakeAll(servable::RecordQueue& queue, Take take) {
  const uint64_t end = queue.FindEnd(SIZE_MAX);
  queue.VisitUpTo(end, take);
  queue.RemoveUpTo(end);
}

}  // namespace millpond::testing
