#include "native/base/other_thread.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <future>
#include <thread>

#include "native/base/clock.h"

namespace millpond::base {
namespace {

// A thread that does what `work` says, once the test lets it end.
class HeldThread {
 public:
  HeldThread()
      : thread_([this] {
          id_.set_value(CurrentThreadId());
          end_.get_future().wait();
          policy_ = sched_getscheduler(0);
        }) {}

  std::thread* thread() { return &thread_; }
  pid_t Id() { return id_.get_future().get(); }
  // Returns the scheduling policy that the thread had at its end.
  int End() {
    end_.set_value();
    thread_.join();
    return policy_;
  }

 private:
  std::promise<pid_t> id_;
  std::promise<void> end_;
  int policy_ = -1;
  std::thread thread_;
};

TEST(OtherThread, LowersOnlyTheThreadThatIsNamed) {
  HeldThread lowered;
  HeldThread other;
  ASSERT_TRUE(LowerThread(lowered.thread()->native_handle()).ok());
  EXPECT_EQ(lowered.End(), SCHED_IDLE);
  EXPECT_EQ(other.End(), sched_getscheduler(0));
}

TEST(OtherThread, TimeOfAnotherThreadIsItsOwn) {
  int64_t own_ns = 0;
  std::promise<void> is_read;
  std::promise<void> has_worked;
  std::thread worker([&] {
    while (ThreadCpuNs() < 2'000'000) {
    }
    own_ns = ThreadCpuNs();
    has_worked.set_value();
    is_read.get_future().wait();
  });
  has_worked.get_future().wait();
  EXPECT_GE(ThreadCpuNs(worker.native_handle()), own_ns);
  is_read.set_value();
  worker.join();
}

TEST(OtherThread, AThreadIsGoneAfterItsEnd) {
  HeldThread held;
  const pid_t id = held.Id();
  EXPECT_FALSE(IsThreadGone(id));
  held.End();
  // The kernel forgets a thread a moment after its join.
  while (!IsThreadGone(id)) std::this_thread::yield();
}

}  // namespace
}  // namespace millpond::base
