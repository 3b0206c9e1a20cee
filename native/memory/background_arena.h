#pragma once

#include "native/base/status.h"
#include "native/base/thread_priority.h"

namespace millpond::memory {

// Makes the calling thread take its ordinary memory (malloc, new) from a jemalloc arena that all
// background threads share: loaders, unloaders and the slab keeper. These threads run at idle
// priority. If a background thread loses its core inside malloc, it may hold an arena's mutex for
// long. No request thread uses this arena, so no request waits for that mutex.
//
// Returns false and changes nothing without jemalloc. Thread: call it at the thread's start,
// because earlier blocks stay in their arena. Lifetime: the arena lives as long as the process.
bool UseBackgroundArena();

// Gives the calling thread `priority`, and makes it use that arena, if jemalloc is there.
base::Status EnterBackground(base::ThreadPriority priority);

}  // namespace millpond::memory
