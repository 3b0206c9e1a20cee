#include "native/servable/request_reservoir.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/native/threads.h"
#include "tests/native/units.h"
#include "tests/native/wire_message.h"

namespace millpond::servable {
namespace {

using testing::SegmentedBytes;

using testing::kMs;
using testing::kSecond;
constexpr int64_t kMinute = 60 * kSecond;
constexpr int64_t kStartNs = 1'000 * kMinute;
// Above the longest time between two samples, below the time between two refreshes.
constexpr int64_t kNextSampleNs = 100 * kMs;

// Returns the outputs with a set bit in `mask`, of a signature of four.
tensor::OutputSet Outputs(unsigned mask) {
  tensor::OutputSet outputs(4);
  for (size_t i = 0; i < 4; ++i) {
    if ((mask >> i & 1) != 0) outputs.Add(i);
  }
  return outputs;
}

RequestKind KindOf(unsigned mask, size_t bytes, bool has_exact_size = false) {
  return {"serving_default", Outputs(mask), bytes, has_exact_size};
}

class RequestReservoirTest : public ::testing::Test {
 protected:
  static RequestReservoirLimits Limits(size_t request_count_max, size_t bytes_max = 16 << 20) {
    RequestReservoirLimits limits;
    limits.request_count_max = request_count_max;
    limits.bytes_max = bytes_max;
    return limits;
  }

  // Records like the handler, `later_ns` after the last call.
  void Offer(RequestReservoir& reservoir, unsigned mask, const std::string& bytes,
             int64_t later_ns = kNextSampleNs) {
    now_ns_ += later_ns;
    const RequestKind kind = KindOf(mask, bytes.size(), is_compiled_);
    const SegmentedBytes segmented(bytes, {bytes.size() / 2});
    if (reservoir.Wants(kind, now_ns_)) reservoir.Take(kind, segmented.reader(), now_ns_);
  }

  std::vector<std::string> Held(RequestReservoir& reservoir) const {
    std::vector<std::string> held;
    for (auto& request : reservoir.Requests(now_ns_)) held.push_back(request.bytes);
    return held;
  }

  static size_t Count(const std::vector<std::string>& held, const std::string& bytes) {
    return std::count(held.begin(), held.end(), bytes);
  }

  int64_t now_ns_ = kStartNs;
  bool is_compiled_ = false;  // the version that answers
};

TEST_F(RequestReservoirTest, NewReservoirIsEmptyAndTakesTheFirstRequest) {
  RequestReservoir reservoir(Limits(64));
  EXPECT_TRUE(reservoir.Requests(now_ns_).empty());
  EXPECT_TRUE(reservoir.Wants(KindOf(1, 100), now_ns_));
}

TEST_F(RequestReservoirTest, TakenKindWaitsWhileOtherKindsAreWanted) {
  RequestReservoir reservoir(Limits(64));
  Offer(reservoir, 1, std::string(100, 'a'));
  EXPECT_FALSE(reservoir.Wants(KindOf(1, 100), now_ns_));
  EXPECT_FALSE(reservoir.Wants(KindOf(1, 127), now_ns_));
  EXPECT_TRUE(reservoir.Wants(KindOf(1, 128), now_ns_));
  EXPECT_TRUE(reservoir.Wants(KindOf(3, 100), now_ns_));
  EXPECT_TRUE(reservoir.Wants({"classify", Outputs(1), 100}, now_ns_));
}

// A model that is compiled for each shape is warm for the sizes only that it has run.
TEST_F(RequestReservoirTest, EachSizeOutlastsAFloodIfEachIsKept) {
  RequestReservoir reservoir(Limits(8));
  is_compiled_ = true;
  for (size_t bytes = 100; bytes < 107; ++bytes) Offer(reservoir, 1, std::string(bytes, 'a'), 0);
  for (int i = 0; i < 1'000; ++i) Offer(reservoir, 1, std::string(110, 'b'));
  const auto held = Held(reservoir);
  for (size_t bytes = 100; bytes < 107; ++bytes) {
    EXPECT_EQ(Count(held, std::string(bytes, 'a')), 1) << bytes;
  }
}

TEST_F(RequestReservoirTest, OfAFloodAboutTwentyASecondAreTaken) {
  RequestReservoir reservoir(Limits(100'000));
  for (int i = 0; i < 100'000; ++i) Offer(reservoir, 1, "flood", kMs / 10);
  const size_t taken_count = reservoir.Statistics().request_count;
  EXPECT_GT(taken_count, 10 * 15);
  EXPECT_LT(taken_count, 10 * 25);
}

TEST_F(RequestReservoirTest, TheNewestOfEachPairComesFirstThenTheSecondNewest) {
  RequestReservoir reservoir(Limits(64));
  Offer(reservoir, 1, "a1");
  Offer(reservoir, 1, "a2");
  Offer(reservoir, 1, "a3");
  Offer(reservoir, 2, "b1");
  Offer(reservoir, 2, "b2");
  EXPECT_EQ(Held(reservoir), (std::vector<std::string>{"b2", "a3", "b1", "a2", "a1"}));
}

TEST_F(RequestReservoirTest, ARequestInPiecesIsHeldWhole) {
  RequestReservoir reservoir(Limits(64));
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes += static_cast<char>(i * 7);
  Offer(reservoir, 1, bytes);
  EXPECT_EQ(Held(reservoir), std::vector<std::string>{bytes});
}

TEST_F(RequestReservoirTest, ARarePairOutlastsAFloodOfAnother) {
  RequestReservoir reservoir(Limits(8));
  Offer(reservoir, 1, "rare");
  for (int i = 0; i < 1'000; ++i) Offer(reservoir, 2, "flood");
  const auto held = Held(reservoir);
  EXPECT_EQ(held.size(), 8);
  EXPECT_EQ(Count(held, "rare"), 1);
}

TEST_F(RequestReservoirTest, EachSizeOfAPairIsHeldWithinTheLimit) {
  RequestReservoir reservoir(Limits(4));
  for (const size_t bytes : {1'000, 2'000, 4'000}) Offer(reservoir, 1, std::string(bytes, 'a'));
  for (int i = 0; i < 100; ++i) Offer(reservoir, 1, "flood");
  std::set<size_t> sizes;
  for (const auto& bytes : Held(reservoir)) sizes.insert(bytes.size());
  EXPECT_EQ(sizes, (std::set<size_t>{5, 1'000, 2'000, 4'000}));
}

TEST_F(RequestReservoirTest, PairsComeBeforeSizes) {
  RequestReservoir reservoir(Limits(3));
  for (const size_t bytes : {1'000, 2'000, 4'000}) Offer(reservoir, 1, std::string(bytes, 'a'));
  Offer(reservoir, 2, "b");
  Offer(reservoir, 3, "c");
  EXPECT_EQ(Held(reservoir), (std::vector<std::string>{"c", "b", std::string(4'000, 'a')}));
}

TEST_F(RequestReservoirTest, OldestPairLeavesForANewOneAtTheLimit) {
  RequestReservoir reservoir(Limits(2));
  Offer(reservoir, 1, "a");
  Offer(reservoir, 2, "b");
  Offer(reservoir, 3, "c");
  EXPECT_EQ(Held(reservoir), (std::vector<std::string>{"c", "b"}));
}

TEST_F(RequestReservoirTest, RequestsGoWithAge) {
  RequestReservoir reservoir(Limits(64));
  Offer(reservoir, 1, "old");
  Offer(reservoir, 2, "young", 6 * kMinute);
  now_ns_ += 4 * kMinute + 1;
  EXPECT_EQ(Held(reservoir), std::vector<std::string>{"young"});
  EXPECT_EQ(reservoir.Statistics().request_count, 1);
  now_ns_ += 6 * kMinute;
  EXPECT_TRUE(Held(reservoir).empty());
}

TEST_F(RequestReservoirTest, RareKindIsTakenAnewBeforeItIsTooOld) {
  RequestReservoir reservoir(Limits(8));
  const auto offer_rare = [&] {
    Offer(reservoir, 2, "flood");  // so that no sample is due
    Offer(reservoir, 1, "rare", 0);
  };
  offer_rare();
  for (int minute = 0; minute < 30; ++minute) {
    for (int i = 0; i < 10; ++i) Offer(reservoir, 2, "flood", 6 * kSecond);
    offer_rare();
  }
  EXPECT_GE(Count(Held(reservoir), "rare"), 1);
}

TEST_F(RequestReservoirTest, RequestsAboveAQuarterOfTheBytesAreSkipped) {
  RequestReservoir reservoir(Limits(64, 4'000));
  EXPECT_TRUE(reservoir.Wants(KindOf(1, 1'000), now_ns_));
  EXPECT_FALSE(reservoir.Wants(KindOf(1, 1'001), now_ns_));
}

TEST_F(RequestReservoirTest, LargeRequestsDisplaceEachOtherNotSmallPairs) {
  RequestReservoir reservoir(Limits(64, 4'000));
  Offer(reservoir, 1, "small");
  for (int i = 0; i < 10; ++i) {
    Offer(reservoir, 2, std::string(900, 'b'));
    Offer(reservoir, 4, std::string(900, 'c'));
    Offer(reservoir, 8, std::string(900, 'd'));
    Offer(reservoir, 6, std::string(900, 'e'));
  }
  const auto held = Held(reservoir);
  EXPECT_EQ(Count(held, "small"), 1);
  EXPECT_EQ(held.size(), 4);
}

TEST_F(RequestReservoirTest, AnySequenceKeepsBoundsAndTheNewestRequest) {
  std::mt19937 rng(2'026);
  RequestReservoir reservoir(Limits(16, 100'000));
  for (int i = 0; i < 5'000; ++i) {
    const size_t size_max = size_t{2} << rng() % 15;
    const std::string bytes(1 + rng() % size_max, static_cast<char>('a' + rng() % 26));
    Offer(reservoir, rng() % 16, bytes);
    const RequestReservoirStatistics statistics = reservoir.Statistics();
    ASSERT_LE(statistics.request_count, 16);
    ASSERT_LE(statistics.request_bytes, 100'000);
    const auto held = Held(reservoir);
    ASSERT_EQ(held.size(), statistics.request_count);
    if (bytes.size() <= 25'000) {
      ASSERT_EQ(held.front(), bytes);
    }
  }
}

TEST_F(RequestReservoirTest, CapacityZeroTakesNothing) {
  RequestReservoir reservoir(Limits(0));
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(reservoir.Wants(KindOf(i, 1), now_ns_));
    now_ns_ += kMinute;
  }
}

TEST_F(RequestReservoirTest, ManyThreadsOfferWhileOneReads) {
  RequestReservoir reservoir(Limits(16));
  testing::RunTogether(4, [&](int thread) {
    for (int i = 0; i < 2'000; ++i) {
      const int64_t now_ns = kStartNs + i * kNextSampleNs;
      if (thread == 0) {
        for (const auto& request : reservoir.Requests(now_ns)) {
          ASSERT_EQ(request.bytes, std::string(request.bytes.size(), request.bytes[0]));
        }
        continue;
      }
      const std::string bytes(1 + i % 100, static_cast<char>('a' + thread));
      const SegmentedBytes segmented(bytes);
      const RequestKind kind = KindOf(i % 5, bytes.size());
      if (reservoir.Wants(kind, now_ns)) reservoir.Take(kind, segmented.reader(), now_ns);
    }
  });
  EXPECT_GT(reservoir.Statistics().request_count, 0);
}

}  // namespace
}  // namespace millpond::servable
