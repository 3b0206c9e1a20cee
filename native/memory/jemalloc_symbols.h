#pragma once

#include <jemalloc/jemalloc.h>

// jemalloc's functions as weak references: null where the launcher has not preloaded the library.
// Nothing links it (design.md, seam 4). Ask IsJemallocPreloaded() before the first call.
#pragma weak dallocx
#pragma weak mallctl
#pragma weak mallocx
#pragma weak nallocx
#pragma weak sallocx
