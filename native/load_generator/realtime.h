#pragma once

namespace millpond::load_generator {

// Sets SCHED_FIFO for the calling thread and for the threads that it makes from now on. Returns
// false, and leaves the scheduling as it was, if the process may not do so: without CAP_SYS_NICE,
// and with a limit RLIMIT_RTPRIO below `priority`.
bool EnterRealtime(int priority);

// Keeps the pages that the process has, and the pages that it frees. A page fault during a run
// would be measured as the server's time. If the process may not lock memory, it only keeps freed
// pages.
void KeepMemory();

}  // namespace millpond::load_generator
