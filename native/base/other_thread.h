#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <cstdint>

#include "native/base/status.h"

namespace millpond::base {

// Calls by which one thread of the process lowers or watches another one. `thread` is not joined
// yet, and `id` is the id of a thread that runs.

// Adds `steps` to the nice value of the thread with the kernel's id `id`, up to 19. Beside threads
// that want its core, each step takes a fifth of the thread's share of it (sched(7)); a share is
// left, whoever the others are. Returns PERMISSION_DENIED if the kernel refuses, as it does in
// sandboxes. There is no way back: the kernel demands a privilege (CAP_SYS_NICE) to raise a thread
// again.
Status LowerThread(pid_t id, int steps);

// Returns the processor time of `thread` in nanoseconds; 0 if it has ended. Cost: a system call.
int64_t ThreadCpuNs(pthread_t thread);

// Returns the kernel's id of the calling thread.
pid_t CurrentThreadId();

// True if the kernel has no thread of this id in the process (any more), so that a join does not
// wait.
bool IsThreadGone(pid_t id);

}  // namespace millpond::base
