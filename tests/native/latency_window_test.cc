#include "native/servable/latency_window.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "tests/native/fake_servable.h"
#include "tests/native/serving_maps.h"

namespace millpond::servable {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kMsNs = 1'000'000;

class LatencyWindowTest : public ::testing::Test {
 protected:
  std::shared_ptr<ServableEntry> Publish(const char* name, int64_t version) {
    std::shared_ptr<ServableEntry> entry = MakeFakeEntry(name, version);
    EXPECT_TRUE(PublishHighest(map_, entry).ok());
    return entry;
  }
  static void Answer(ServableEntry& entry, int64_t latency_ns, int count = 100) {
    auto& requests = entry.requests().Of(metrics::Method::kPredict);
    for (int i = 0; i < count; ++i) {
      requests.Record(base::Code::kOk, metrics::PhaseTimes::OfTotal(latency_ns));
    }
  }
  // In ms, to which the histogram's error rounds away.
  int64_t SinceStartMs() { return (window_.ValueSinceStart(0.99) + kMsNs / 2) / kMsNs; }
  int64_t LastSecondMs(double at_seconds) {
    const auto now_ns = static_cast<int64_t>(at_seconds * kSecondNs);
    return (window_.ValueOfLastSecond(0.99, now_ns) + kMsNs / 2) / kMsNs;
  }

  ServingMap map_;
  LatencyWindow window_{&map_};
};

TEST_F(LatencyWindowTest, WithoutVersionsOrRequestsThereIsNothing) {
  EXPECT_EQ(SinceStartMs(), 0);
  EXPECT_EQ(LastSecondMs(1), 0);
  Publish("m", 1);
  EXPECT_EQ(SinceStartMs(), 0);
  EXPECT_EQ(LastSecondMs(1.1), 0);
}

TEST_F(LatencyWindowTest, SinceStartIsOverAllPublishedVersions) {
  Answer(*Publish("m", 1), 5 * kMsNs, 9'000);
  Answer(*Publish("other", 1), 50 * kMsNs, 1'000);
  EXPECT_EQ(SinceStartMs(), 50);
}

TEST_F(LatencyWindowTest, EveryMethodThatRunsTheModelCounts) {
  const auto entry = Publish("m", 1);
  for (const metrics::Method method :
       {metrics::Method::kRestPredict, metrics::Method::kRestModelInfer,
        metrics::Method::kModelInfer, metrics::Method::kClassify, metrics::Method::kSessionRun}) {
    entry->requests().Of(method).Record(base::Code::kOk, metrics::PhaseTimes::OfTotal(7 * kMsNs));
  }
  entry->requests()
      .Of(metrics::Method::kGetModelMetadata)
      .Record(base::Code::kOk, metrics::PhaseTimes::OfTotal(90 * kMsNs));
  EXPECT_EQ(SinceStartMs(), 7);
}

TEST_F(LatencyWindowTest, TheLastSecondForgetsWhatCameBefore) {
  const auto entry = Publish("m", 1);
  Answer(*entry, 90 * kMsNs);
  EXPECT_EQ(LastSecondMs(10.0), 0);
  Answer(*entry, 5 * kMsNs);
  EXPECT_EQ(LastSecondMs(10.5), 5);
  Answer(*entry, 20 * kMsNs);
  EXPECT_EQ(LastSecondMs(11.0), 20);
  EXPECT_EQ(LastSecondMs(11.4), 20);  // since 10.5
  EXPECT_EQ(LastSecondMs(12.3), 0);   // since 11.4, when nothing came
}

TEST_F(LatencyWindowTest, RetiredVersionIsForgottenNewOneStartsAtFirstLook) {
  const auto old_entry = Publish("m", 1);
  LastSecondMs(1.0);
  Answer(*old_entry, 70 * kMsNs);
  ASSERT_TRUE(RetireVersion(map_, "m", 1).ok());
  const auto new_entry = Publish("m", 2);
  EXPECT_EQ(LastSecondMs(1.1), 0);
  Answer(*new_entry, 3 * kMsNs);
  EXPECT_EQ(LastSecondMs(1.2), 3);
  EXPECT_EQ(SinceStartMs(), 3);
}

}  // namespace
}  // namespace millpond::servable
