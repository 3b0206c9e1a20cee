#pragma once

#include <jemalloc/jemalloc.h>

// jemalloc's functions as weak references: null if the launcher has not preloaded the library. No
// part of the data plane links it: libjemalloc needs static TLS and cannot be loaded later, so the
// launcher sets LD_PRELOAD. Check IsJemallocPreloaded() before the first call.
#pragma weak dallocx
#pragma weak mallctl
#pragma weak mallocx
#pragma weak nallocx
#pragma weak sallocx
