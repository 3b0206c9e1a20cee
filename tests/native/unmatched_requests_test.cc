#include "native/metrics/unmatched_requests.h"

#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace millpond::metrics {
namespace {

void Refuse(RequestRecorder& recorder) {
  recorder.Of(Method::kPredict).Record(base::Code::kNotFound, PhaseTimes::OfTotal(1'000));
}

int64_t CountOf(const RequestRecorder& recorder) {
  return recorder.Of(Method::kPredict).Snapshot().count();
}

TEST(UnmatchedRequests, KnownModelsHaveRecordersOfTheirOwn) {
  UnmatchedRequests unmatched;
  unmatched.Add({"a", "b"});
  Refuse(unmatched.Of("a"));
  Refuse(unmatched.Of("unknown"));
  Refuse(unmatched.Of(""));
  EXPECT_EQ(CountOf(unmatched.Of("a")), 1);
  EXPECT_EQ(CountOf(unmatched.Of("b")), 0);
  EXPECT_EQ(CountOf(*unmatched.common()), 2);
}

TEST(UnmatchedRequests, ModelThatIsAddedAgainKeepsItsRecorder) {
  UnmatchedRequests unmatched;
  unmatched.Add({"a", "a", ""});
  Refuse(unmatched.Of("a"));
  unmatched.Add({"b", "a"});
  EXPECT_EQ(CountOf(unmatched.Of("a")), 1);
  EXPECT_EQ(&unmatched.Of(""), unmatched.common().get());
}

TEST(UnmatchedRequests, ModelIsTakenOnceItHasHadRequests) {
  UnmatchedRequests unmatched;
  unmatched.Add({"a", "b"});
  EXPECT_TRUE(unmatched.TakeNew().empty());
  Refuse(unmatched.Of("b"));
  const auto taken = unmatched.TakeNew();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].name, "b");
  EXPECT_EQ(CountOf(*taken[0].recorder), 1);
  EXPECT_TRUE(unmatched.TakeNew().empty());
}

TEST(UnmatchedRequests, ThousandsOfModelsShareBuckets) {
  UnmatchedRequests unmatched;
  std::vector<std::string> names;
  for (int i = 0; i < 5'000; ++i) names.push_back("model-" + std::to_string(i));
  unmatched.Add(names);
  for (const std::string& name : names) Refuse(unmatched.Of(name));
  for (const std::string& name : names) EXPECT_EQ(CountOf(unmatched.Of(name)), 1) << name;
}

TEST(UnmatchedRequests, RequestsAreRecordedWhileModelsAreAdded) {
  UnmatchedRequests unmatched;
  constexpr int kRequests = 2'000;
  unmatched.Add({"model-0"});
  std::thread requests([&] {
    for (int i = 0; i < kRequests; ++i) Refuse(unmatched.Of("model-" + std::to_string(i % 7)));
  });
  for (int i = 0; i < 7; ++i) {
    unmatched.Add({"model-" + std::to_string(i)});
    unmatched.TakeNew();
  }
  requests.join();
  int64_t sum = CountOf(*unmatched.common());
  for (int i = 0; i < 7; ++i) sum += CountOf(unmatched.Of("model-" + std::to_string(i)));
  EXPECT_EQ(sum, kRequests);
}

}  // namespace
}  // namespace millpond::metrics
