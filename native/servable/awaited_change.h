#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

namespace millpond::servable {

// A request stops waiting for a version this long before its deadline, so that the reason still
// reaches its client in time.
inline constexpr int64_t kReasonWayNs = 20'000'000;

// Returns the time at which a request stops waiting for the first version of its model.
inline int64_t AwaitEndNs(int64_t received_ns, int64_t wait_ns, int64_t deadline_ns) {
  return std::min(received_ns + wait_ns, deadline_ns - kReasonWayNs);
}

// A mark that a request sets before it looks up a version, and that reports if the model has
// changed since. Borrows a counter of the serving map.
struct AwaitedChange {
  const std::atomic<int64_t>* counter = nullptr;
  int64_t count = 0;

  // True if a new look-up may have another result: the version may be published, or may no longer
  // be awaited.
  bool HasCome() const { return counter->load(std::memory_order_acquire) != count; }
};

// Counts the changes of models after which their waiting requests look again. Models share
// counters, so a request may look again in vain after a change of another model. Thread: any,
// without a lock.
class ChangeCounters {
 public:
  void Count(std::string_view name) {
    counters_[IndexOf(name)].fetch_add(1, std::memory_order_release);
  }
  AwaitedChange Mark(std::string_view name) const {
    const std::atomic<int64_t>& counter = counters_[IndexOf(name)];
    return {&counter, counter.load(std::memory_order_acquire)};
  }

 private:
  // 256 counters take 2 KiB. At a start with thousands of models, a request looks again in vain
  // after one in 256 changes of other models.
  static constexpr size_t kCount = 256;

  static size_t IndexOf(std::string_view name) {
    return std::hash<std::string_view>()(name) % kCount;
  }

  std::array<std::atomic<int64_t>, kCount> counters_ = {};
};

}  // namespace millpond::servable
