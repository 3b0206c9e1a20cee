#include "native/servable/batch_registry.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "native/servable/batching_servable.h"
#include "native/servable/serving_map.h"
#include "tests/native/row_servable.h"
#include "tests/native/serving_maps.h"

namespace millpond::servable {
namespace {

constexpr BatchKey kKey = 5;

class BatchRegistryTest : public ::testing::Test {
 protected:
  // Returns true if a queue of `waiting_count` requests, `of_key` of them of `key`, takes no more.
  bool IsFull(size_t waiting_count, int64_t of_key, BatchKey key = kKey) const {
    return registry_.IsFull(key, waiting_count, [&] { return of_key; });
  }

  BatchRegistry registry_;
};

TEST_F(BatchRegistryTest, LimitHoldsForItsKeysWhileTheVersionIsThere) {
  EXPECT_FALSE(IsFull(100, 100));
  registry_.Add({{kKey, kKey + 1}, 3});
  EXPECT_FALSE(IsFull(2, 2));
  EXPECT_FALSE(IsFull(100, 2));
  EXPECT_TRUE(IsFull(3, 3));
  EXPECT_TRUE(IsFull(3, 3, kKey + 1));
  EXPECT_FALSE(IsFull(100, 100, kKey + 2));
  EXPECT_FALSE(IsFull(100, 100, kNoBatchKey));
  registry_.Remove({{kKey, kKey + 1}, 3});
  EXPECT_FALSE(IsFull(100, 100));
}

TEST_F(BatchRegistryTest, LimitOfTheLastVersionHolds) {
  registry_.Add({{kKey}, 3});
  registry_.Add({{kKey}, 5});
  EXPECT_FALSE(IsFull(4, 4));
  EXPECT_TRUE(IsFull(5, 5));
  registry_.Remove({{kKey}, 5});
  EXPECT_TRUE(IsFull(3, 3));
}

TEST_F(BatchRegistryTest, ZeroIsNoLimit) {
  registry_.Add({{kKey}, 0});
  EXPECT_FALSE(IsFull(1'000'000, 1'000'000));
}

TEST_F(BatchRegistryTest, IsEmptyWithoutAVersion) {
  EXPECT_TRUE(registry_.is_empty());
  registry_.Add({{kKey}, 0});
  registry_.Add({{kKey}, 7});
  registry_.Remove({{kKey}, 0});
  EXPECT_FALSE(registry_.is_empty());
  registry_.Remove({{kKey}, 7});
  EXPECT_TRUE(registry_.is_empty());
}

TEST_F(BatchRegistryTest, QueuesAskWhileVersionsComeAndGo) {
  registry_.Add({{kKey}, 3});
  std::thread control([this] {
    for (int i = 0; i < 1'000; ++i) {
      registry_.Add({{kKey, kKey + 1}, 2});
      registry_.Remove({{kKey, kKey + 1}, 2});
    }
  });
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_FALSE(IsFull(1, 1));
    EXPECT_FALSE(registry_.is_empty());
  }
  control.join();
  EXPECT_TRUE(IsFull(3, 3));
}

TEST(ServingMapBatches, HasAVersionFromItsPublishingToItsRetirement) {
  ServingMap map;
  BatchSettings settings;
  settings.waiting_requests_max = 2;
  const auto entry = std::make_shared<ServableEntry>(
      std::make_unique<BatchingServable>(std::make_unique<testing::RowServable>(), settings));
  EXPECT_TRUE(map.batches().is_empty());
  ASSERT_TRUE(PublishHighest(map, entry).ok());
  for (const BatchKey key : {BatchKeyOf("m", "other"), BatchKeyOfSeveral("m")}) {
    EXPECT_TRUE(map.batches().IsFull(key, 2, [] { return 2; }));
  }
  ASSERT_TRUE(RetireVersion(map, "m", 7).ok());
  EXPECT_TRUE(map.batches().is_empty());
}

}  // namespace
}  // namespace millpond::servable
