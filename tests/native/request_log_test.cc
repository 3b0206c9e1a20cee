#include "native/servable/request_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/native/queued_records.h"
#include "tests/native/threads.h"

namespace millpond::servable {
namespace {

constexpr int64_t kRequests = 100'000;

RequestLogSettings SettingsOf(double sampling_rate) {
  RequestLogSettings settings;
  settings.sampling_rate = sampling_rate;
  settings.inputs.are_all = settings.outputs.are_all = true;
  return settings;
}

void PutText(RequestLog& log, const std::string& text, const LoggedRequest& request = {}) {
  log.Put(request, text.size(), [&](char* to) { text.copy(to, text.size()); });
}

class RequestLogTest : public ::testing::Test {
 protected:
  std::shared_ptr<RecordQueue> queue_ = std::make_shared<RecordQueue>(4096);
  RequestLog log_{queue_, 7};
};

TEST_F(RequestLogTest, NewLogTakesNothing) { EXPECT_EQ(log_.Sample(), nullptr); }

TEST_F(RequestLogTest, RateOneTakesEveryRequestAndRateZeroNone) {
  log_.Set(SettingsOf(1));
  for (int i = 0; i < 1'000; ++i) ASSERT_NE(log_.Sample(), nullptr);
  log_.Set(SettingsOf(0));
  for (int i = 0; i < 1'000; ++i) ASSERT_EQ(log_.Sample(), nullptr);
}

TEST_F(RequestLogTest, RateIsTheShareOfTheRequests) {
  for (const double rate : {0.01, 0.1, 0.7}) {
    log_.Set(SettingsOf(rate));
    int64_t count = 0;
    for (int64_t i = 0; i < kRequests; ++i) count += log_.Sample() != nullptr ? 1 : 0;
    // Five standard deviations are at most 800.
    EXPECT_NEAR(count, rate * kRequests, 800) << rate;
  }
}

TEST_F(RequestLogTest, SettingsOfARequestOutliveTheirReplacement) {
  log_.Set(SettingsOf(1));
  const RequestLogSettings* const sampled = log_.Sample();
  log_.Set(SettingsOf(0));
  log_.Set(SettingsOf(0.5));
  EXPECT_EQ(sampled->sampling_rate, 1);
}

TEST_F(RequestLogTest, NamesAreAnAllowList) {
  LoggedNames names;
  EXPECT_FALSE(names.Contains("x"));
  names.names = {"x"};
  EXPECT_TRUE(names.Contains("x"));
  EXPECT_FALSE(names.Contains("xx"));
  names.are_all = true;
  EXPECT_TRUE(names.Contains("xx"));
}

TEST_F(RequestLogTest, RecordHasItsHeadAndItsLog) {
  LoggedRequest request;
  request.received_ns = 1;
  request.latency_ns = 2;
  request.version = 3;
  PutText(log_, "a log", request);
  std::vector<std::string> records;
  testing::TakeAll(*queue_, [&](std::string_view record) { records.emplace_back(record); });
  ASSERT_EQ(records.size(), 1);
  LoggedRequest head;
  ASSERT_EQ(records[0].size(), sizeof head + 5);
  std::memcpy(&head, records[0].data(), sizeof head);
  EXPECT_EQ(head.received_ns, 1);
  EXPECT_EQ(head.latency_ns, 2);
  EXPECT_EQ(head.version, 3);
  EXPECT_EQ(head.log_id, 7);
  EXPECT_EQ(records[0].substr(sizeof head), "a log");
}

TEST_F(RequestLogTest, RecordWithoutRoomIsCountedAsDropped) {
  const std::string text(queue_->record_bytes_max() - sizeof(LoggedRequest), 't');
  for (int i = 0; i < 9; ++i) PutText(log_, text);
  PutText(log_, text + "t");
  size_t taken_count = 0;
  testing::TakeAll(*queue_, [&](std::string_view) { ++taken_count; });
  EXPECT_GT(taken_count, 0);
  const RequestLogStatistics statistics = log_.Statistics();
  EXPECT_EQ(statistics.sampled_count, 10);
  EXPECT_EQ(statistics.dropped_count, 10 - taken_count);
}

// Every sampled request is either taken from the queue or counted as dropped, while an operator
// changes the settings.
TEST_F(RequestLogTest, TakenAndDroppedAreWhatWasSampled) {
  constexpr int kRequestThreads = 3;
  std::atomic<int> running_count{kRequestThreads};
  std::atomic<int64_t> put_count{0};
  int64_t taken_count = 0;
  const auto take = [&] { testing::TakeAll(*queue_, [&](std::string_view) { ++taken_count; }); };
  testing::RunTogether(kRequestThreads + 2, [&](int thread) {
    if (thread == kRequestThreads) {
      while (running_count.load() > 0) take();
    } else if (thread > kRequestThreads) {
      for (int i = 0; running_count.load() > 0 && i < 1'000; ++i) log_.Set(SettingsOf(i % 3 / 2.0));
    } else {
      for (int i = 0; i < 20'000; ++i) {
        const RequestLogSettings* const settings = log_.Sample();
        if (settings == nullptr) continue;
        ASSERT_GT(settings->sampling_rate, 0);
        PutText(log_, std::string(i % 100, 't'));
        put_count += 1;
      }
      running_count -= 1;
    }
  });
  take();
  const RequestLogStatistics statistics = log_.Statistics();
  EXPECT_EQ(statistics.sampled_count, put_count.load());
  EXPECT_EQ(statistics.sampled_count, taken_count + statistics.dropped_count);
}

}  // namespace
}  // namespace millpond::servable
