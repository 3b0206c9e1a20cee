#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <cstdint>

#include "native/base/status.h"

namespace millpond::base {

// Calls by which one thread of the process lowers or watches another one. `thread` is not joined
// yet.

// Gives `thread` SCHED_IDLE: it has the cores that no other thread wants, and leaves its core at
// once to one that wakes. Returns PERMISSION_DENIED if the kernel refuses, as it does in sandboxes.
// There is no way back: the kernel demands a privilege (CAP_SYS_NICE) to raise a thread again.
Status LowerThread(pthread_t thread);

// Returns the processor time of `thread` in nanoseconds; 0 if it has ended. Cost: a system call.
int64_t ThreadCpuNs(pthread_t thread);

// Returns the kernel's id of the calling thread.
pid_t CurrentThreadId();

// True if the kernel has no thread of this id in the process (any more), so that a join does not
// wait.
bool IsThreadGone(pid_t id);

}  // namespace millpond::base
