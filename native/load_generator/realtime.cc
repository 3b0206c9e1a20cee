#include "native/load_generator/realtime.h"

#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>

namespace millpond::load_generator {
namespace {

// More than calls in flight take from malloc at any time.
constexpr int kHeapReserveBytes = 16 << 20;

}  // namespace

bool EnterRealtime(int priority) {
  sched_param parameters{};
  parameters.sched_priority = priority;
  return sched_setscheduler(0, SCHED_FIFO, &parameters) == 0;
}

void KeepMemory() {
  mallopt(M_TOP_PAD, kHeapReserveBytes);
  mallopt(M_TRIM_THRESHOLD, 8 * kHeapReserveBytes);
  mlockall(MCL_CURRENT);
}

}  // namespace millpond::load_generator
