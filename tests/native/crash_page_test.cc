#include "native/base/crash_page.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/native/crashed_process.h"

namespace millpond::base {
namespace {

class CrashPageTest : public ::testing::Test {
 protected:
  int SignalOf(const std::function<void()>& live) { return process_.SignalOf(live); }
  std::string Crashed() const { return process_.Crashed(); }

  CrashedProcess process_;
  CrashPageContent* const page_ = process_.page();
};

// Unchecked, since a sanitizer would report the fault and end the process itself. The pointer is
// volatile too: GCC leaves out a write of which it knows that it faults.
__attribute__((no_sanitize("undefined", "address", "thread"))) void Fault() {
  volatile int* volatile nowhere = nullptr;
  *nowhere = 1;  // NOLINT(clang-analyzer-core.NullDereference)
}

TEST_F(CrashPageTest, FaultNamesVersionOfItsThread) {
  const int signal = SignalOf([] {
    const CrashRow other("other", 1);
    const CrashRow row("ctr", 7);
    std::atomic<bool> is_marked{false};
    std::thread beside([&] {
      const auto running = CrashScope::Running(other);
      is_marked = true;
      pause();
    });
    while (!is_marked) std::this_thread::yield();
    const auto running = CrashScope::Running(row);
    Fault();
    beside.join();
  });
  EXPECT_EQ(signal, SIGSEGV);
  EXPECT_EQ(Crashed(), "ctr/7");
  EXPECT_EQ(page_->header.signal.load(), static_cast<uint32_t>(SIGSEGV));
}

TEST_F(CrashPageTest, AbortNamesVersionBeingLoaded) {
  EXPECT_EQ(SignalOf([] {
              const CrashRow row("ctr", 8);
              const auto loading = CrashScope::Loading(row);
              abort();
            }),
            SIGABRT);
  EXPECT_EQ(Crashed(), "ctr/8+");
}

TEST_F(CrashPageTest, EndOfScopeRestoresOuterMark) {
  EXPECT_EQ(SignalOf([] {
              const CrashRow outer("outer", 1);
              const CrashRow inner("inner", 2);
              const auto loading = CrashScope::Loading(outer);
              { const auto running = CrashScope::Running(inner); }
              Fault();
            }),
            SIGSEGV);
  EXPECT_EQ(Crashed(), "outer/1+");
}

TEST_F(CrashPageTest, ThreadOutsideScopesNamesNoVersion) {
  EXPECT_EQ(SignalOf([] {
              const CrashRow row("ctr", 7);
              { const auto running = CrashScope::Running(row); }
              Fault();
            }),
            SIGSEGV);
  EXPECT_EQ(Crashed(), "none");
}

TEST_F(CrashPageTest, ThreadWithoutSlotIsUnknown) {
  EXPECT_EQ(SignalOf([] { Fault(); }), SIGSEGV);
  EXPECT_NE(page_->header.crashed_thread_id.load(), 0u);
  EXPECT_EQ(Crashed(), "unknown");
}

TEST_F(CrashPageTest, SignalOfOtherProcessIsFromOutside) {
  const int signal = SignalOf([] {
    const pid_t victim = getpid();
    if (fork() == 0) {
      kill(victim, SIGSEGV);
      _exit(0);
    }
    for (;;) pause();
  });
  EXPECT_EQ(signal, SIGSEGV);
  EXPECT_EQ(page_->header.crashed_thread_id.load(), kCrashFromOutside);
}

int handler_pipe[2];
void WriteAndLeave(int /*signal*/) {
  static_cast<void>(!write(handler_pipe[1], "x", 1));
  _exit(42);
}

TEST_F(CrashPageTest, HandlerBeforeStillRuns) {
  ASSERT_EQ(pipe(handler_pipe), 0);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, &WriteAndLeave);
    if (OpenCrashPage(process_.descriptor()).ok()) Fault();
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_NE(page_->header.crashed_thread_id.load(), 0u);
}

TEST_F(CrashPageTest, EndedThreadsReturnTheirSlots) {
  EXPECT_EQ(SignalOf([this] {
              const CrashRow row("ctr", 7);
              for (uint32_t i = 0; i < 2 * kCrashThreadCount; ++i) {
                std::thread([&] { const auto running = CrashScope::Running(row); }).join();
              }
              if (page_->slots[1].thread_id.load() != 0) _exit(2);
              _exit(0);
            }),
            0);
}

TEST_F(CrashPageTest, FreedRowsAreUsedAgain) {
  EXPECT_EQ(SignalOf([] {
              for (uint32_t i = 0; i < 2 * kCrashRowCount; ++i) {
                if (CrashRow("ctr", i).mark() != 1) _exit(2);
              }
              _exit(0);
            }),
            0);
}

TEST_F(CrashPageTest, RowsBeyondLastAreEmpty) {
  EXPECT_EQ(SignalOf([] {
              std::vector<std::unique_ptr<CrashRow>> rows;
              for (uint32_t i = 0; i < kCrashRowCount; ++i) {
                rows.push_back(std::make_unique<CrashRow>("ctr", i));
                if (rows.back()->mark() != i + 1) _exit(2);
              }
              _exit(CrashRow("ctr", 1).mark() == 0 ? 0 : 3);
            }),
            0);
}

TEST_F(CrashPageTest, PageOfOtherReleaseIsRefused) {
  page_->header.row_count = 1;
  EXPECT_EQ(SignalOf([] { _exit(0); }), -1);
}

TEST(CrashRowTest, WithoutPageRowsAreEmpty) {
  const CrashRow row("ctr", 7);
  EXPECT_EQ(row.mark(), 0u);
  const auto running = CrashScope::Running(row);
}

}  // namespace
}  // namespace millpond::base
