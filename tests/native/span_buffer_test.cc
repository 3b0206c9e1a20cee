#include "native/metrics/span_buffer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace millpond::metrics {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

RequestSpan Span(const std::string& model, int64_t received_ns = 0) {
  RequestSpan span;
  span.model = model;
  span.received_ns = received_ns;
  return span;
}

std::vector<std::string> TakeModels(SpanBuffer* buffer, size_t count_max = 100) {
  std::vector<std::string> models;
  for (const RequestSpan& span : buffer->Take(count_max)) models.push_back(span.model);
  return models;
}

TEST(SpanBuffer, ReturnsTheOldestSpanFirst) {
  SpanBuffer buffer({8, 100});
  EXPECT_TRUE(buffer.Take(100).empty());
  for (const char* model : {"a", "b", "c"}) buffer.Put(Span(model));
  EXPECT_EQ(TakeModels(&buffer, 2), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(TakeModels(&buffer), (std::vector<std::string>{"c"}));
  EXPECT_TRUE(buffer.Take(100).empty());
}

TEST(SpanBuffer, DropsAndCountsOverflowThenAcceptsAgain) {
  SpanBuffer buffer({2, 100});
  for (const char* model : {"a", "b", "c", "d"}) buffer.Put(Span(model));
  EXPECT_EQ(buffer.dropped().full, 2);
  EXPECT_EQ(TakeModels(&buffer), (std::vector<std::string>{"a", "b"}));
  for (int round = 0; round < 5; ++round) {
    buffer.Put(Span("e"));
    buffer.Put(Span("f"));
    EXPECT_EQ(TakeModels(&buffer), (std::vector<std::string>{"e", "f"}));
  }
  EXPECT_EQ(buffer.dropped().full, 2);
}

TEST(SpanBuffer, AdmitsSoManyOfEachSecond) {
  SpanBuffer buffer({8, 2});
  EXPECT_TRUE(buffer.Admit(5 * kSecondNs));
  EXPECT_TRUE(buffer.Admit(5 * kSecondNs + 1));
  EXPECT_FALSE(buffer.Admit(6 * kSecondNs - 1));
  EXPECT_EQ(buffer.dropped().over_rate, 1);
  EXPECT_TRUE(buffer.Admit(6 * kSecondNs));
  EXPECT_EQ(buffer.dropped().over_rate, 1);
  EXPECT_EQ(buffer.dropped().full, 0);
}

// Each span is taken whole or counted as dropped, and a thread's spans stay in order.
TEST(SpanBuffer, LosesNothingUncountedBetweenThreads) {
  constexpr int kThreads = 4;
  constexpr int kSpansEach = 20'000;
  SpanBuffer buffer({64, 1'000'000});
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&buffer, &running, name = std::string(40, static_cast<char>('a' + i))] {
      for (int number = 0; number < kSpansEach; ++number) buffer.Put(Span(name, number));
      --running;
    });
  }
  std::map<std::string, int64_t> last;
  int64_t taken_count = 0;
  const auto take = [&] {
    for (const RequestSpan& span : buffer.Take(16)) {
      EXPECT_EQ(span.model, std::string(40, span.model.front()));
      EXPECT_GE(span.received_ns, last[span.model]);
      last[span.model] = span.received_ns + 1;
      ++taken_count;
    }
  };
  while (running > 0) take();
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 100; ++i) take();
  EXPECT_EQ(taken_count + buffer.dropped().full, kThreads * kSpansEach);
  EXPECT_GT(taken_count, 0);
}

TEST(SpanBuffer, AdmitsNoMoreBetweenThreads) {
  SpanBuffer buffer({8, 1'000});
  std::atomic<int> admitted{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int number = 0; number < 1'000; ++number) admitted += buffer.Admit(kSecondNs) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(admitted, 1'000);
  EXPECT_EQ(buffer.dropped().over_rate, 3'000);
}

}  // namespace
}  // namespace millpond::metrics
