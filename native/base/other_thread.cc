#include "native/base/other_thread.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <string>
#include <system_error>

namespace millpond::base {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

}  // namespace

Status LowerThread(pid_t id, int steps) {
  const auto thread = static_cast<id_t>(id);
  const int nice = getpriority(PRIO_PROCESS, thread) + steps;
  if (setpriority(PRIO_PROCESS, thread, nice) == 0) return {};
  return {Code::kPermissionDenied, "the kernel refused a nice value for another thread: " +
                                       std::generic_category().message(errno)};
}

int64_t ThreadCpuNs(pthread_t thread) {
  clockid_t clock{};
  timespec time{};
  if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return time.tv_sec * kNsPerSecond + time.tv_nsec;
}

pid_t CurrentThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

bool IsThreadGone(pid_t id) {
  // With signal 0 the call sends nothing, and only looks for the thread.
  return syscall(SYS_tgkill, getpid(), id, 0) != 0 && errno == ESRCH;
}

}  // namespace millpond::base
