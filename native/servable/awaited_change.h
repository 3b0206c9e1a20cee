#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

namespace millpond::servable {

// Before its deadline a request stops waiting for a version, so that its client gets the reason.
inline constexpr int64_t kReasonWayNs = 20'000'000;

// Returns when a request stops waiting for the first version of its model.
inline int64_t AwaitEndNs(int64_t received_ns, int64_t wait_ns, int64_t deadline_ns) {
  return std::min(received_ns + wait_ns, deadline_ns - kReasonWayNs);
}

// The instant of a look-up that found a version awaited. Borrows a counter of the serving map.
struct AwaitedChange {
  const std::atomic<int64_t>* counter = nullptr;
  int64_t count = 0;

  // Whether the version may be there by now, or may be awaited no longer.
  bool HasCome() const { return counter->load(std::memory_order_acquire) != count; }
};

// Counts the changes of models after which their requests look again. Models share counters: then
// a request looks once more in vain. Thread: any, without a lock.
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
  // 2 KiB: at a start with thousands of models, one change in 256 is another model's.
  static constexpr size_t kCount = 256;

  static size_t IndexOf(std::string_view name) {
    return std::hash<std::string_view>()(name) % kCount;
  }

  std::array<std::atomic<int64_t>, kCount> counters_ = {};
};

}  // namespace millpond::servable
