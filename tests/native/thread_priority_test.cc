#include "native/base/thread_priority.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace millpond::base {
namespace {

struct Scheduling {
  int policy;
  int nice;
};

// Returns the priority of a new thread after it has set `priority`: the test's own thread keeps its
// own.
Scheduling Set(ThreadPriority priority) {
  Scheduling scheduling{};
  std::thread([&] {
    EXPECT_TRUE(SetThreadPriority(priority).ok());
    scheduling = {sched_getscheduler(0),
                  getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)))};
  }).join();
  return scheduling;
}

TEST(ThreadPriority, IdleIsTheKernelsIdlePolicy) {
  EXPECT_EQ(Set(ThreadPriority::kIdle).policy, SCHED_IDLE);
}

TEST(ThreadPriority, NiceIsTheLowestNiceValueOfTheUsualPolicy) {
  const Scheduling scheduling = Set(ThreadPriority::kNice);
  EXPECT_EQ(scheduling.policy, SCHED_OTHER);
  EXPECT_EQ(scheduling.nice, 19);
}

TEST(ThreadPriority, NormalIsThePriorityOfTheProcess) {
  const Scheduling scheduling = Set(ThreadPriority::kNormal);
  EXPECT_EQ(scheduling.policy, sched_getscheduler(0));
  EXPECT_EQ(scheduling.nice, getpriority(PRIO_PROCESS, 0));
}

TEST(ThreadPriority, OtherThreadsKeepTheirs) {
  const int before = sched_getscheduler(0);
  Set(ThreadPriority::kIdle);
  EXPECT_EQ(sched_getscheduler(0), before);
}

}  // namespace
}  // namespace millpond::base
