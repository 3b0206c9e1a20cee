#pragma once

#include <atomic>

namespace millpond::base {

// Tells the code of a run, which knows no threads, whether the run gives way: it has taken so much
// processor time that its thread has a lower priority than the threads of other requests. The time
// of such a run says little about what it costs.
//
// While the scope lives, GivesWay of this thread reads `gives_way`, which any thread may set.
class GivingWayScope {
 public:
  // Borrows the flag.
  explicit GivingWayScope(const std::atomic<bool>* gives_way);
  ~GivingWayScope();
  GivingWayScope(const GivingWayScope&) = delete;
  GivingWayScope& operator=(const GivingWayScope&) = delete;
};

// False on a thread without a scope. Cost: about 1 ns.
bool GivesWay();

}  // namespace millpond::base
