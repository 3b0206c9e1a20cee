// Measures what the marks of a supervised server add to a request: a scope around a run, without a
// page and with one.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "native/base/crash_page.h"
#include "native/bench/measure.h"

namespace millpond::bench {
namespace {

// Opens a page as a supervisor makes it. Returns false if that fails.
bool OpenPage() {
  const int descriptor = memfd_create("crash_page", MFD_CLOEXEC);
  const uint32_t counts[] = {base::kCrashThreadCount, base::kCrashRowCount};
  return ftruncate(descriptor, sizeof(base::CrashPageContent)) == 0 &&
         pwrite(descriptor, &base::kCrashPageMagic, sizeof(base::kCrashPageMagic), 0) > 0 &&
         pwrite(descriptor, counts, sizeof(counts), sizeof(base::kCrashPageMagic)) > 0 &&
         base::OpenCrashPage(descriptor).ok();
}

void MeasureScope(const char* name) {
  const base::CrashRow row("model", 1);
  for (const int thread_count : {1, 2}) {
    Measure(name, thread_count, 20'000'000, [&](int, int) {
      const auto running = base::CrashScope::Running(row);
      Keep(&running);
    });
  }
}

}  // namespace
}  // namespace millpond::bench

int main() {
  using namespace millpond::bench;
  MeasureScope("scope of a run, no supervisor");
  if (!OpenPage()) {
    std::puts("the page cannot be opened");
    return 1;
  }
  MeasureScope("scope of a run, supervised");
}
