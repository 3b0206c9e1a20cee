#include "native/servable/left_right.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "tests/native/threads.h"

namespace millpond::servable {
namespace {

// `first` and `second` differ only after destruction.
struct Counted {
  explicit Counted(int64_t value) : first(value), second(value) { alive_count.fetch_add(1); }
  ~Counted() {
    first = -1;
    second = -2;
    destroyed_by = std::this_thread::get_id();
    alive_count.fetch_sub(1);
  }

  int64_t first;
  int64_t second;

  static std::atomic<int> alive_count;
  static std::thread::id destroyed_by;  // read after the writer was joined, or by the writer
};
std::atomic<int> Counted::alive_count{0};
std::thread::id Counted::destroyed_by;

TEST(LeftRight, ReadsTheValueItWasMadeWithAndThenTheLastOneWritten) {
  LeftRight<Counted> value(std::make_unique<Counted>(1));
  EXPECT_EQ(value.Read([](const Counted& counted) { return counted.first; }), 1);
  value.Write(std::make_unique<Counted>(2));
  EXPECT_EQ(value.Read([](const Counted& counted) { return counted.first; }), 2);
}

TEST(LeftRight, FreesTheOldValueInWriteAndTheLastOneWithItself) {
  {
    LeftRight<Counted> value(std::make_unique<Counted>(1));
    for (int write = 0; write < 5; ++write) value.Write(std::make_unique<Counted>(write));
    EXPECT_EQ(Counted::alive_count.load(), 1);
  }
  EXPECT_EQ(Counted::alive_count.load(), 0);
}

TEST(LeftRight, ConcurrentReadersSeeWholeValuesThatNeverGoBack) {
  constexpr int64_t kWriteCount = 3'000;
  LeftRight<Counted> value(std::make_unique<Counted>(0));
  // Thread 0 writes; the readers are more than the shards, so some share one.
  testing::RunTogether(4, [&](int thread) {
    for (int64_t write = 1; thread == 0 && write <= kWriteCount; ++write) {
      value.Write(std::make_unique<Counted>(write));
    }
    int64_t last = 0;
    while (thread != 0 && last < kWriteCount) {
      value.Read([&](const Counted& counted) {
        ASSERT_EQ(counted.first, counted.second);
        ASSERT_GE(counted.first, last);
        last = counted.first;
      });
      // Yields, so that the reader is not preempted inside Read.
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(Counted::alive_count.load(), 1);
}

TEST(LeftRight, WriteKeepsTheOldValueForItsReadersOnly) {
  LeftRight<Counted> value(std::make_unique<Counted>(1));
  std::atomic<bool> is_reading{false};
  std::atomic<bool> may_leave{false};
  std::atomic<bool> has_written{false};
  std::thread reader([&] {
    value.Read([&](const Counted& counted) {
      is_reading = true;
      while (!may_leave) std::this_thread::yield();
      EXPECT_FALSE(has_written.load());
      EXPECT_EQ(counted.first, 1);
    });
  });
  while (!is_reading) std::this_thread::yield();
  std::thread writer([&] {
    value.Write(std::make_unique<Counted>(2));
    has_written = true;
  });
  // A reader is not delayed by a writer that waits for another reader.
  const auto read = [&] {
    return value.Read([](const Counted& counted) { return counted.first; });
  };
  while (read() != 2) std::this_thread::yield();
  EXPECT_EQ(Counted::alive_count.load(), 2);
  may_leave = true;
  const std::thread::id writer_id = writer.get_id();
  writer.join();
  reader.join();
  EXPECT_EQ(Counted::alive_count.load(), 1);
  EXPECT_EQ(Counted::destroyed_by, writer_id);
}

}  // namespace
}  // namespace millpond::servable
