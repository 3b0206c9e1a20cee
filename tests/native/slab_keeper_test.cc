#include "native/memory/slab_keeper.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "native/memory/slab_pool.h"
#include "tests/native/units.h"

namespace millpond::memory {
namespace {

using testing::kMiB;
constexpr int64_t kLongNs = 60'000'000'000;  // A passing test never waits this long.

SlabPoolOptions ShortPauses() {
  SlabPoolOptions options;
  options.step_pause_ns = 1'000;
  return options;
}

void ExpectAll(SlabPool* pool, const std::string& owner, size_t bytes) {
  pool->Expect(owner, {bytes, bytes, bytes});
  pool->Refill(SIZE_MAX);
}

TEST(SlabKeeper, DoesTheWorkThatIsThereAndThatComes) {
  SlabPool pool(ShortPauses());
  ExpectAll(&pool, "a", 4 * kMiB);
  SlabKeeper keeper(&pool, nullptr);
  ASSERT_TRUE(keeper.WaitUntilIdle(kLongNs));
  EXPECT_EQ(pool.Statistics().spare_resident_bytes, 4 * kMiB);
  ExpectAll(&pool, "a", 6 * kMiB);
  ASSERT_TRUE(keeper.WaitUntilIdle(kLongNs));
  EXPECT_EQ(pool.Statistics().spare_resident_bytes, 6 * kMiB);
}

TEST(SlabKeeper, PerformsIdleStepsOnceThePoolHasWhatItNeeds) {
  SlabPool pool(ShortPauses());
  ExpectAll(&pool, "a", 4 * kMiB);
  int step_count = 0;
  int64_t resident_bytes = 0;
  const auto step = [&]() -> std::optional<int64_t> {
    if (++step_count == 1) resident_bytes = pool.Statistics().spare_resident_bytes;
    return step_count < 5 ? std::optional<int64_t>(1) : std::nullopt;
  };
  SlabKeeper keeper(&pool, nullptr, step);
  ASSERT_TRUE(keeper.WaitUntilIdle(kLongNs));
  EXPECT_EQ(step_count, 5);
  EXPECT_EQ(resident_bytes, 4 * kMiB);
}

TEST(SlabKeeper, RunsTheStartFunctionOnItsOwnThread) {
  SlabPool pool(ShortPauses());
  std::thread::id keepers_id;
  SlabKeeper keeper(&pool, [&] { keepers_id = std::this_thread::get_id(); });
  ASSERT_TRUE(keeper.WaitUntilIdle(kLongNs));
  EXPECT_NE(keepers_id, std::thread::id());
  EXPECT_NE(keepers_id, std::this_thread::get_id());
}

TEST(SlabKeeper, WaitEndsAtItsTimeoutWhileThereIsWork) {
  SlabPoolOptions options;
  options.step_pause_ns = kLongNs;
  SlabPool pool(options);
  ExpectAll(&pool, "a", 4 * kMiB);
  SlabKeeper keeper(&pool, nullptr);
  EXPECT_FALSE(keeper.WaitUntilIdle(1'000'000));
}

TEST(SlabKeeper, StopsInTheMiddleOfAPauseAndAStoppedPoolCanBeUsed) {
  SlabPoolOptions options;
  options.step_pause_ns = kLongNs;
  SlabPool pool(options);
  ExpectAll(&pool, "a", 4 * kMiB);
  SlabKeeper keeper(&pool, nullptr);
  keeper.Stop();
  keeper.Stop();
  pool.GiveBack(std::move(pool.Take("a", 2 * kMiB, 2 * kMiB).value()));
  EXPECT_LE(pool.Statistics().spare_resident_bytes, 2 * kMiB);
}

}  // namespace
}  // namespace millpond::memory
