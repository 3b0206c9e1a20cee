#include "native/servable/record_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/native/queued_records.h"
#include "tests/native/threads.h"

namespace millpond::servable {
namespace {

constexpr size_t kCapacity = 1024;
constexpr size_t kHeadBytes = 8;

bool Put(RecordQueue& queue, const std::string& record) {
  char* const room = queue.Begin(record.size());
  if (room == nullptr) return false;
  record.copy(room, record.size());
  queue.Commit(room, record.size());
  return true;
}

std::vector<std::string> Taken(RecordQueue& queue) {
  std::vector<std::string> records;
  testing::TakeAll(queue, [&](std::string_view record) { records.emplace_back(record); });
  return records;
}

TEST(RecordQueueTest, RecordsComeInTheirOrderOnce) {
  RecordQueue queue(kCapacity);
  for (const char* const record : {"one", "", "three"}) ASSERT_TRUE(Put(queue, record));
  EXPECT_EQ(Taken(queue), (std::vector<std::string>{"one", "", "three"}));
  EXPECT_TRUE(Taken(queue).empty());
  EXPECT_EQ(queue.used_bytes(), 0);
}

TEST(RecordQueueTest, FullQueueRefusesUntilRecordsAreTaken) {
  RecordQueue queue(kCapacity);
  const std::string record(queue.record_bytes_max() - kHeadBytes, 'r');
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Put(queue, record));
  EXPECT_EQ(queue.used_bytes(), kCapacity);
  EXPECT_FALSE(Put(queue, ""));
  EXPECT_EQ(Taken(queue).size(), 4);
  EXPECT_TRUE(Put(queue, record));
}

TEST(RecordQueueTest, RecordLargerThanAQuarterIsRefused) {
  RecordQueue queue(kCapacity);
  EXPECT_TRUE(Put(queue, std::string(queue.record_bytes_max(), 'r')));
  EXPECT_FALSE(Put(queue, std::string(queue.record_bytes_max() + 1, 'r')));
}

TEST(RecordQueueTest, ReaderStopsBeforeAnIncompleteRecord) {
  RecordQueue queue(kCapacity);
  ASSERT_TRUE(Put(queue, "first"));
  char* const second = queue.Begin(6);
  ASSERT_TRUE(Put(queue, "third"));
  EXPECT_EQ(Taken(queue), std::vector<std::string>{"first"});
  std::memcpy(second, "second", 6);
  queue.Commit(second, 6);
  EXPECT_EQ(Taken(queue), (std::vector<std::string>{"second", "third"}));
}

TEST(RecordQueueTest, RecordsStayUntilTheyAreRemoved) {
  RecordQueue queue(kCapacity);
  ASSERT_TRUE(Put(queue, "first"));
  const uint64_t end = queue.FindEnd(SIZE_MAX);
  ASSERT_TRUE(Put(queue, "second"));
  const auto visited = [&] {
    std::vector<std::string> records;
    queue.VisitUpTo(end, [&](std::string_view record) { records.emplace_back(record); });
    return records;
  };
  EXPECT_EQ(visited(), std::vector<std::string>{"first"});
  EXPECT_EQ(visited(), std::vector<std::string>{"first"});
  queue.RemoveUpTo(end);
  EXPECT_EQ(Taken(queue), std::vector<std::string>{"second"});
}

TEST(RecordQueueTest, EndIsBehindTheRecordThatFillsTheBytes) {
  RecordQueue queue(kCapacity);
  const std::string record(2 * kHeadBytes, 'r');
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Put(queue, record));
  const size_t entry_bytes = kHeadBytes + record.size();
  EXPECT_EQ(queue.FindEnd(1), entry_bytes);
  EXPECT_EQ(queue.FindEnd(entry_bytes), entry_bytes);
  EXPECT_EQ(queue.FindEnd(entry_bytes + 1), 2 * entry_bytes);
  EXPECT_EQ(queue.FindEnd(SIZE_MAX), 3 * entry_bytes);
}

// Puts and takes records of random sizes, and compares with a queue that has no ring. Some reads
// fail before the records are removed.
// A reader that found padding alone would take the queue for empty.
TEST(RecordQueueTest, PaddingHidesNoRecord) {
  RecordQueue queue(kCapacity);
  const std::string large(queue.record_bytes_max() - kHeadBytes, 'r');
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Put(queue, large));
  ASSERT_TRUE(Put(queue, "small"));  // the next large record does not fit before the ring's end
  EXPECT_EQ(Taken(queue).size(), 4);
  ASSERT_TRUE(Put(queue, large));
  const uint64_t end = queue.FindEnd(/*bytes_max=*/1);
  std::vector<std::string> found;
  queue.VisitUpTo(end, [&](std::string_view record) { found.emplace_back(record); });
  EXPECT_EQ(found, std::vector<std::string>{large});
}

TEST(RecordQueueTest, RingKeepsEveryRecordOverManyRounds) {
  RecordQueue queue(kCapacity);
  std::deque<std::string> expected;
  std::mt19937 random(5);
  size_t put_count = 0;
  for (int step = 0; step < 20'000; ++step) {
    const std::string record(random() % (queue.record_bytes_max() + 1),
                             static_cast<char>('a' + step % 26));
    if (Put(queue, record)) {
      expected.push_back(record);
      ++put_count;
    }
    if (random() % 4 > 0) continue;
    const uint64_t end = queue.FindEnd(random() % kCapacity);
    size_t visited_count = 0;
    queue.VisitUpTo(end, [&](std::string_view visited) {
      ASSERT_LT(visited_count, expected.size());
      ASSERT_EQ(visited, expected[visited_count++]);
    });
    if (random() % 8 == 0) continue;
    queue.RemoveUpTo(end);
    expected.erase(expected.begin(), expected.begin() + static_cast<int64_t>(visited_count));
  }
  EXPECT_EQ(Taken(queue), std::vector<std::string>(expected.begin(), expected.end()));
  EXPECT_GT(put_count, 5'000);
}

// The record says who wrote it and which number it has, in all of its words.
std::string RecordOf(uint64_t thread, uint64_t number) {
  const uint64_t word = thread << 32 | number;
  std::string record;
  for (uint64_t i = 0; i <= number % 9; ++i) {
    record.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  return record;
}

TEST(RecordQueueTest, WritersAtOnceLoseAndMixNothing) {
  constexpr int kWriters = 4;
  constexpr uint64_t kRecords = 20'000;
  RecordQueue queue(kCapacity);
  std::atomic<int> writing_count{kWriters};
  std::atomic<uint64_t> refused_count{0};
  std::vector<uint64_t> next(kWriters);  // the smallest number that may come from each writer
  uint64_t taken_count = 0;
  const auto check = [&](std::string_view record) {
    uint64_t word = 0;
    ASSERT_GE(record.size(), sizeof word);
    std::memcpy(&word, record.data(), sizeof word);
    const uint64_t thread = word >> 32;
    const uint64_t number = word & UINT32_MAX;
    ASSERT_LT(thread, kWriters);
    ASSERT_EQ(record, RecordOf(thread, number));
    ASSERT_GE(number, next[thread]);
    next[thread] = number + 1;
    ++taken_count;
  };
  testing::RunTogether(kWriters + 1, [&](int thread) {
    if (thread == kWriters) {
      while (writing_count.load() > 0) testing::TakeAll(queue, check);
      return;
    }
    for (uint64_t number = 0; number < kRecords; ++number) {
      if (!Put(queue, RecordOf(thread, number))) refused_count += 1;
    }
    writing_count -= 1;
  });
  testing::TakeAll(queue, check);
  EXPECT_EQ(taken_count + refused_count.load(), kWriters * kRecords);
  EXPECT_GT(taken_count, 0);
}

}  // namespace
}  // namespace millpond::servable
