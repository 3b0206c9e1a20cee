#include "native/memory/thread_usage.h"

#include "native/memory/jemalloc_api.h"
#include "native/memory/jemalloc_control.h"

namespace millpond::memory {
namespace {

// The addresses of jemalloc's counters for one thread; null if there are no counters.
struct Counters {
  const uint64_t* allocated = nullptr;
  const uint64_t* freed = nullptr;
};

Counters FindCounters() {
  if (!IsJemallocPreloaded()) return {};
  const auto allocated = ReadControl<uint64_t*>("thread.allocatedp");
  const auto freed = ReadControl<uint64_t*>("thread.deallocatedp");
  if (!allocated || !freed) return {};
  return {*allocated, *freed};
}

const Counters& MyCounters() {
  thread_local Counters counters = FindCounters();
  return counters;
}

}  // namespace

int64_t ThreadUsageBytes() {
  const Counters& counters = MyCounters();
  if (counters.allocated == nullptr) return 0;
  return static_cast<int64_t>(*counters.allocated - *counters.freed);
}

bool IsThreadUsageCounted() { return MyCounters().allocated != nullptr; }

}  // namespace millpond::memory
