#include "native/metrics/request_statistics.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/native/threads.h"
#include "tests/native/units.h"

namespace millpond::metrics {
namespace {

using base::Code;

using testing::kMs;
using testing::kSecond;
constexpr int64_t kStartNs = 1'000 * kSecond;

class RequestStatisticsTest : public ::testing::Test {
 protected:
  std::shared_ptr<RequestRecorder> Load(const std::string& model, int64_t version) {
    auto recorder = std::make_shared<RequestRecorder>();
    statistics_.AddVersion(
        model, version, recorder, [] { return 3; }, now_ns_);
    return recorder;
  }
  static void Answer(RequestRecorder& recorder, int count, int64_t latency_ns = kMs,
                     Code code = Code::kOk) {
    for (int i = 0; i < count; ++i) {
      recorder.Of(Method::kPredict)
          .Record(code, {{1'000, 2'000, PhaseTimes::kNone, latency_ns - 6'000, 3'000, latency_ns}});
    }
  }
  void PassSeconds(int count) {
    for (int second = 0; second < count; ++second) statistics_.Sample(now_ns_ += kSecond);
  }
  void End(RequestRecorder& recorder) {
    recorder.MarkEnded(now_ns_);
    PassSeconds(1);
  }
  // Returns the statistics of one method; nullopt if it has no entry.
  std::optional<MethodStatistics> Find(const std::string& model, int64_t version,
                                       const std::string& method = "Predict") {
    return FindIn(statistics_.Methods(), {model, version, method});
  }
  MethodStatistics OfModel(const std::string& model) {
    return *FindIn(statistics_.ModelMethods(), {model, 0, "Predict"});
  }
  static std::optional<MethodStatistics> FindIn(std::vector<MethodStatistics> all, MethodKey key) {
    std::optional<MethodStatistics> found;
    for (auto& one : all) {
      if (one.key < key || key < one.key) continue;
      EXPECT_FALSE(found) << "two series of " << key.model;
      found = std::move(one);
    }
    return found;
  }
  int64_t LastPointCount(const std::optional<std::string>& model) {
    return statistics_.History(model, 0).back().count;
  }

  int64_t now_ns_ = kStartNs;
  RequestStatistics statistics_{kStartNs};
};

TEST_F(RequestStatisticsTest, HasPredictAndMetadataWithoutRequests) {
  const auto version = Load("m", 7);
  for (const char* method : {"Predict", "GetModelMetadata"}) {
    const auto found = Find("m", 7, method);
    ASSERT_TRUE(found) << method;
    EXPECT_EQ(found->figures.since_start.count(), 0);
    EXPECT_EQ(found->in_flight_count, 3);
    EXPECT_FALSE(found->ended_ns);
  }
  EXPECT_EQ(statistics_.Methods().size(), 4);  // and of the requests that found no version
}

TEST_F(RequestStatisticsTest, HasARarerMethodFromItsFirstRequestOn) {
  const auto version = Load("m", 7);
  EXPECT_FALSE(Find("m", 7, "Classify"));
  version->Of(Method::kClassify).Record(Code::kOk, PhaseTimes::OfTotal(kMs));
  ASSERT_TRUE(Find("m", 7, "Classify"));
  EXPECT_EQ(Find("m", 7, "Classify")->figures.since_start.count(), 1);
  End(*version);
  EXPECT_TRUE(Find("m", 7, "Classify"));
  EXPECT_FALSE(Find("m", 7, "Regress"));
}

TEST_F(RequestStatisticsTest, RecordsAreVisibleAtOnceByCodeAndPhase) {
  const auto version = Load("m", 7);
  Answer(*version, 5);
  Answer(*version, 2, 40 * kMs, Code::kDeadlineExceeded);
  const MethodSnapshot since_start = Find("m", 7)->figures.since_start;
  EXPECT_EQ(since_start.by_code.at(Code::kOk).count(), 5);
  EXPECT_EQ(since_start.by_code.at(Code::kDeadlineExceeded).max_ns(), 40 * kMs);
  EXPECT_EQ(since_start.phase(Phase::kEncode).sum_ns(), 7 * 3'000);
  EXPECT_EQ(OfModel("m").figures.since_start.count(), 7);
}

TEST_F(RequestStatisticsTest, WindowsAreOfTheLastSeconds) {
  const auto version = Load("m", 7);
  Answer(*version, 1, 90 * kMs);
  PassSeconds(1);
  for (int second = 0; second < 59; ++second) {
    Answer(*version, 2);
    PassSeconds(1);
  }
  const auto counts = [&](Phase phase) {
    std::vector<int64_t> by_window;
    for (const int64_t window_ns : {kSecond, 10 * kSecond, 60 * kSecond}) {
      by_window.push_back(Find("m", 7)->Within(phase, window_ns).count());
    }
    return by_window;
  };
  EXPECT_EQ(counts(Phase::kTotal), (std::vector<int64_t>{2, 20, 119}));
  EXPECT_EQ(counts(Phase::kRun), counts(Phase::kTotal));
  EXPECT_EQ(Find("m", 7)->Within(Phase::kTotal, 60 * kSecond).max_ns(), 90 * kMs);
  PassSeconds(1);
  EXPECT_EQ(counts(Phase::kTotal), (std::vector<int64_t>{0, 18, 118}));
  EXPECT_EQ(OfModel("m").Within(Phase::kTotal, 60 * kSecond).count(), 118);
}

TEST_F(RequestStatisticsTest, ASecondThatEndsLateIsTheLastWindowWhole) {
  const auto version = Load("m", 7);
  Answer(*version, 4);
  statistics_.Sample(now_ns_ += 25 * kSecond);
  EXPECT_EQ(Find("m", 7)->Within(Phase::kTotal, kSecond).count(), 4);
  EXPECT_EQ(LastPointCount("m"), 4);
  EXPECT_EQ(statistics_.History("m", 0).back().at_ns, now_ns_);
}

TEST_F(RequestStatisticsTest, EndedVersionsStayForTenMinutes) {
  const auto version = Load("m", 7);
  Answer(*version, 5);
  version->MarkEnded(now_ns_);
  EXPECT_EQ(Find("m", 7)->ended_ns, now_ns_);  // before any second has ended, too
  PassSeconds(599);
  ASSERT_TRUE(Find("m", 7));
  EXPECT_EQ(now_ns_ - *Find("m", 7)->ended_ns, 599 * kSecond);
  EXPECT_EQ(Find("m", 7)->figures.since_start.count(), 5);
  EXPECT_EQ(Find("m", 7)->in_flight_count, 0);
  PassSeconds(1);
  EXPECT_FALSE(Find("m", 7));
  EXPECT_EQ(OfModel("m").figures.since_start.count(), 5);
}

TEST_F(RequestStatisticsTest, AVersionThatHasEndedKeepsNoRecorder) {
  auto version = Load("m", 7);
  const std::weak_ptr<RequestRecorder> watched = version;
  version->MarkEnded(now_ns_);
  version.reset();
  EXPECT_FALSE(watched.expired());
  PassSeconds(1);
  EXPECT_TRUE(watched.expired());
}

TEST_F(RequestStatisticsTest, ModelTotalsNeverGoDown) {
  int64_t before_count = 0;
  for (int round = 0; round < 5; ++round) {
    const auto version = Load("m", round % 2);
    Answer(*version, 10);
    Answer(*version, 1, kMs, Code::kInternal);
    EXPECT_EQ(OfModel("m").figures.since_start.count(), before_count += 11);
    version->MarkEnded(now_ns_);
    EXPECT_EQ(OfModel("m").figures.since_start.count(), before_count);
    PassSeconds(round * 200);
    EXPECT_EQ(OfModel("m").figures.since_start.count(), before_count);
    EXPECT_EQ(OfModel("m").figures.since_start.by_code.at(Code::kInternal).count(), round + 1);
  }
}

TEST_F(RequestStatisticsTest, AVersionThatIsLoadedAgainBeginsAnewAndWindowsGoOn) {
  const auto first = Load("m", 7);
  Answer(*first, 5);
  first->MarkEnded(now_ns_);  // no second has ended since
  now_ns_ += kMs;
  const auto second = Load("m", 7);
  Answer(*second, 2);
  EXPECT_EQ(Find("m", 7)->figures.since_start.count(), 2);
  EXPECT_FALSE(Find("m", 7)->ended_ns);
  PassSeconds(1);
  EXPECT_EQ(OfModel("m").Within(Phase::kTotal, 10 * kSecond).count(), 7);
  EXPECT_EQ(LastPointCount("m"), 7);
}

TEST_F(RequestStatisticsTest, TwoRecordersOfAVersionAreOneSeries) {
  const auto first = Load("m", 7);
  const auto second = Load("m", 7);
  Answer(*first, 5);
  Answer(*second, 2);
  EXPECT_EQ(Find("m", 7)->figures.since_start.count(), 7);
  End(*first);
  EXPECT_FALSE(Find("m", 7)->ended_ns);
  End(*second);
  EXPECT_TRUE(Find("m", 7)->ended_ns);
}

TEST_F(RequestStatisticsTest, OfManyThatEndedTheLatestAreKept) {
  constexpr int kMax = RequestStatistics::kEndedVersionCountMax;
  for (int version = 1; version <= kMax + 3; ++version) {
    const auto recorder = Load("m", version);
    Answer(*recorder, 1);
    End(*recorder);
  }
  EXPECT_FALSE(Find("m", 3));
  EXPECT_TRUE(Find("m", 4));
  EXPECT_TRUE(Find("m", kMax + 3));
  EXPECT_EQ(OfModel("m").figures.since_start.count(), kMax + 3);
}

TEST_F(RequestStatisticsTest, AMethodWithoutModelIsOneSeriesAndInNoHistory) {
  const auto recorder = statistics_.MethodWithoutModel("GetModelStatus");
  EXPECT_EQ(statistics_.MethodWithoutModel("GetModelStatus"), recorder);
  recorder->Record(Code::kOk, PhaseTimes::OfTotal(kMs));
  Answer(*statistics_.unmatched(), 2, kMs, Code::kNotFound);
  PassSeconds(1);
  EXPECT_EQ(Find("", 0, "GetModelStatus")->figures.since_start.count(), 1);
  EXPECT_EQ(Find("", 0)->figures.since_start.failed_count(), 2);
  EXPECT_EQ(LastPointCount({}), 2);
  EXPECT_EQ(LastPointCount(""), 2);
}

TEST_F(RequestStatisticsTest, VersionlessRequestsCountForTheirKnownModel) {
  statistics_.AddModels({"m"});
  Answer(statistics_.Unmatched("m"), 2, kMs, Code::kNotFound);
  Answer(statistics_.Unmatched("unknown"), 1, kMs, Code::kNotFound);
  PassSeconds(1);
  EXPECT_EQ(LastPointCount("m"), 2);
  EXPECT_EQ(LastPointCount(""), 1);
  EXPECT_EQ(LastPointCount({}), 3);
  EXPECT_EQ(Find("m", RequestStatistics::kNoVersion)->figures.since_start.failed_count(), 2);
  EXPECT_EQ(OfModel("m").figures.since_start.count(), 2);
  Answer(*Load("m", 1), 5);
  PassSeconds(1);
  EXPECT_EQ(OfModel("m").figures.since_start.count(), 7);
}

TEST_F(RequestStatisticsTest, RequestsWithoutAVersionCountBeforeTheSecondEnds) {
  statistics_.AddModels({"m", "other"});
  Answer(statistics_.Unmatched("m"), 2, kMs, Code::kNotFound);
  EXPECT_EQ(Find("m", RequestStatistics::kNoVersion)->figures.since_start.count(), 2);
  Answer(statistics_.Unmatched("other"), 3, kMs, Code::kNotFound);
  EXPECT_EQ(OfModel("other").figures.since_start.count(), 3);
  PassSeconds(1);
  EXPECT_EQ(LastPointCount({}), 5);
}

TEST_F(RequestStatisticsTest, HistoryHasEverySecondOfOneModelAndOfAll) {
  const auto m = Load("m", 1);
  const auto next = Load("m", 2);
  const auto other = Load("other", 1);
  for (int second = 0; second < 3; ++second) {
    Answer(*m, 2);
    Answer(*next, 1, kMs, Code::kInternal);
    if (second == 1) Answer(*other, 5);
    PassSeconds(1);
  }
  const auto counts = [&](const std::optional<std::string>& model, int64_t since_ns) {
    std::vector<int64_t> of_seconds;
    for (const HistoryPoint& point : statistics_.History(model, since_ns)) {
      of_seconds.push_back(point.count);
    }
    return of_seconds;
  };
  EXPECT_EQ(counts("m", 0), (std::vector<int64_t>{3, 3, 3}));
  EXPECT_EQ(counts("other", 0), (std::vector<int64_t>{0, 5, 0}));
  EXPECT_EQ(counts({}, 0), (std::vector<int64_t>{3, 8, 3}));
  EXPECT_EQ(counts("m", kStartNs + kSecond), (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(counts("nobody", now_ns_ - kSecond), (std::vector<int64_t>{0}));
  EXPECT_EQ(statistics_.History("m", 0).back().failed_count, 1);
  EXPECT_EQ(statistics_.History("m", 0).back().latency.count, 9);
  PassSeconds(1'000);
  EXPECT_EQ(counts("m", 0), std::vector<int64_t>(900, 0));
}

TEST_F(RequestStatisticsTest, TwoCutsEncloseTheAnswersBetweenThem) {
  const auto version = Load("m", 7);
  Answer(*version, 1, 50 * kMs);
  const int64_t from_ns = statistics_.Cut(now_ns_ += 300 * kMs);
  Answer(*version, 100, 2 * kMs);
  statistics_.Sample(now_ns_ += 700 * kMs);
  Answer(*version, 20, 4 * kMs);
  const int64_t to_ns = statistics_.Cut(now_ns_ += 10);
  Answer(*version, 7, 60 * kMs);
  statistics_.Sample(now_ns_ += kSecond);
  EXPECT_EQ(statistics_.Between("m", from_ns, to_ns).count(), 120);
  // The window's maximum is only known within the error, because the version had a greater one
  // before.
  EXPECT_NEAR(statistics_.Between("m", from_ns, to_ns).max_ns(), 4 * kMs, 0.008 * 4 * kMs);
  EXPECT_EQ(statistics_.Between("m", kStartNs, from_ns).count(), 1);
  EXPECT_EQ(statistics_.Between("m", to_ns, now_ns_).count(), 7);
  EXPECT_EQ(statistics_.Between("other", from_ns, to_ns).count(), 0);
  EXPECT_EQ(LastPointCount("m"), 27);
}

TEST_F(RequestStatisticsTest, LooksThatOvertakeEachOtherLoseNothing) {
  const auto version = Load("m", 7);
  const int64_t cut_ns = statistics_.Cut(now_ns_ + 5);
  Answer(*version, 3);
  EXPECT_GT(statistics_.Cut(now_ns_ + 4), cut_ns);
  statistics_.Sample(now_ns_ + 4);
  EXPECT_EQ(LastPointCount("m"), 3);
}

TEST_F(RequestStatisticsTest, CountsExactlyBesideThreadsThatRecordLoadAndLook) {
  testing::RunTogether(4, [&](int thread) {
    for (int round = 0; round < 40; ++round) {
      const auto version = Load("m", thread);
      Answer(*version, 25);
      if (thread == 0) statistics_.Sample(kStartNs + round * kSecond);
      EXPECT_FALSE(statistics_.Methods().empty());
      version->MarkEnded(kStartNs + round * kSecond);
    }
  });
  EXPECT_EQ(OfModel("m").figures.since_start.count(), 4 * 40 * 25);
  statistics_.Sample(kStartNs + 100 * kSecond);
  EXPECT_EQ(statistics_.Between("m", 0, kStartNs + 200 * kSecond).count(), 4 * 40 * 25);
}

}  // namespace
}  // namespace millpond::metrics
