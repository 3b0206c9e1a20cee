#include "native/base/other_thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "native/base/thread_cores.h"

namespace millpond::base {
namespace {

// The nice value of the calling thread.
int Nice() { return getpriority(PRIO_PROCESS, static_cast<id_t>(CurrentThreadId())); }

// A thread that does what `work` says, once the test lets it end.
class HeldThread {
 public:
  HeldThread()
      : thread_([this] {
          id_.set_value(CurrentThreadId());
          end_.get_future().wait();
          nice_ = Nice();
        }) {}

  std::thread* thread() { return &thread_; }
  pid_t Id() { return id_.get_future().get(); }
  // Returns the nice value that the thread had at its end.
  int End() {
    end_.set_value();
    thread_.join();
    return nice_;
  }

 private:
  std::promise<pid_t> id_;
  std::promise<void> end_;
  int nice_ = -1;
  std::thread thread_;
};

TEST(OtherThread, LowersOnlyTheThreadThatIsNamed) {
  HeldThread lowered;
  HeldThread other;
  ASSERT_TRUE(LowerThread(lowered.Id(), 10).ok());
  EXPECT_EQ(lowered.End(), std::min(Nice() + 10, 19));
  EXPECT_EQ(other.End(), Nice());
}

TEST(OtherThread, NoThreadIsLoweredBelowTheLowest) {
  HeldThread lowered;
  ASSERT_TRUE(LowerThread(lowered.Id(), 40).ok());
  EXPECT_EQ(lowered.End(), 19);
}

// Computes on one core from now on, until it has computed for `cpu_ns` or `is_over`.
void ComputeOn(int core, int64_t cpu_ns, const std::atomic<bool>& is_over) {
  EXPECT_TRUE(RestrictToCores(pthread_self(), {core}).ok());
  while (ThreadCpuNs() < cpu_ns && !is_over) {
  }
}

// Ten steps leave 110 / (3 * 1,024 + 110), which is 3.5 %. SCHED_IDLE would leave 0.1 %.
TEST(OtherThread, ALoweredThreadKeepsAShareOfABusyCore) {
  constexpr int64_t kBusyNs = 300'000'000;
  constexpr int kBusyCount = 3;
  const int core = AllowedCores().front();
  std::atomic<bool> is_over{false};
  std::promise<pid_t> id;
  std::promise<void> is_lowered;
  int64_t lowered_ns = 0;
  std::thread lowered([&] {
    id.set_value(CurrentThreadId());
    is_lowered.get_future().wait();
    const int64_t begin_ns = ThreadCpuNs();
    ComputeOn(core, INT64_MAX, is_over);
    lowered_ns = ThreadCpuNs() - begin_ns;
  });
  ASSERT_TRUE(LowerThread(id.get_future().get(), 10).ok());
  std::vector<std::thread> busy;
  busy.reserve(kBusyCount);
  for (int i = 0; i < kBusyCount; ++i) {
    busy.emplace_back([&] { ComputeOn(core, kBusyNs, is_over); });
  }
  while (ThreadCpuNs(busy.back().native_handle()) < 1'000'000) std::this_thread::yield();
  is_lowered.set_value();
  for (std::thread& thread : busy) thread.join();
  is_over = true;
  lowered.join();
  EXPECT_GE(lowered_ns, kBusyCount * kBusyNs / 100);
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
