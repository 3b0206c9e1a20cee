#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/api.h"
#include "native/pjrt/keep_for_ever.h"

namespace millpond::pjrt {

// The events of copies that read or write memory of a caller: none is under way once the object is
// gone, also after an error. Belongs to one thread.
class Copies {
 public:
  explicit Copies(const Api& api) : api_(api) {}
  ~Copies() { static_cast<void>(Await()); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  void Add(PJRT_Event* event) { events_.push_back(event); }
  // Waits for all of them, and returns the first error. The last one happens last as a rule, so the
  // thread sleeps once.
  base::Status Await() {
    base::Status first;
    const std::vector<PJRT_Event*> events = std::exchange(events_, {});
    for (auto event = events.rbegin(); event != events.rend(); ++event) {
      base::Status status = api_.Await(*event, "copying");
      if (!status.ok()) first = std::move(status);
    }
    return first;
  }
  // The same, but no wait takes more than `timeout_ns`. Returns false if a copy has not ended by
  // then: the caller must keep the memory of all of them for ever.
  bool AwaitFor(int64_t timeout_ns, base::Status* first) {
    while (!events_.empty()) {
      PJRT_Event* const last = events_.back();
      events_.pop_back();
      base::Status status;
      if (!api_.AwaitFor(last, timeout_ns, "copying", &status)) {
        Abandon();
        *first = std::move(status);
        return false;
      }
      if (!status.ok()) *first = std::move(status);
    }
    return true;
  }
  // Leaves the copies to a device that is gone: the caller must keep their memory for ever.
  void Abandon() {
    for (PJRT_Event* const event : std::exchange(events_, {})) KeepForEver(event);
  }

 private:
  const Api& api_;
  std::vector<PJRT_Event*> events_;
};

}  // namespace millpond::pjrt
