#pragma once

#include "native/base/status.h"

namespace millpond::base {

// The priority of a load's thread relative to the threads that answer requests.
enum class ThreadPriority {
  kNormal,
  kNice,  // Nice 19: a request thread that needs the core leaves it 1/68.
  kIdle,  // SCHED_IDLE: such a thread leaves it 3/1024, and preempts it at once when it wakes.
};

// Sets the priority of the calling thread; on Linux each thread has its own. kNormal leaves the
// priority with which the process was started. Returns PERMISSION_DENIED if the kernel refuses, as
// it does in sandboxes. Otherwise lowering a priority needs no privilege.
Status SetThreadPriority(ThreadPriority priority);

// True if the calling thread has lowered its priority by SetThreadPriority, so that its work
// belongs to no request. Stays true if another thread raises the priority for a while. A
// thread-local read.
bool IsBackgroundThread();

}  // namespace millpond::base
