#include "native/base/giving_way.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

namespace millpond::base {
namespace {

TEST(GivingWay, AThreadReadsItsOwnFlagWhileTheScopeLives) {
  std::atomic<bool> gives_way{false};
  EXPECT_FALSE(GivesWay());
  {
    const GivingWayScope scope(&gives_way);
    EXPECT_FALSE(GivesWay());
    std::thread([&] {
      gives_way = true;
      EXPECT_FALSE(GivesWay());
    }).join();
    EXPECT_TRUE(GivesWay());
  }
  EXPECT_FALSE(GivesWay());
}

// True if another thread could lower this one now.
bool CanBeLowered(std::mutex* lowering) {
  bool can = false;
  std::thread([&] { can = std::unique_lock(*lowering, std::try_to_lock).owns_lock(); }).join();
  return can;
}

TEST(KeptPriority, NobodyLowersTheThreadMeanwhile) {
  std::atomic<bool> gives_way{false};
  std::mutex lowering;
  const GivingWayScope scope(&gives_way, &lowering);
  {
    const KeptPriority kept;
    EXPECT_TRUE(kept);
    EXPECT_FALSE(CanBeLowered(&lowering));
  }
  EXPECT_TRUE(CanBeLowered(&lowering));
}

TEST(KeptPriority, AThreadThatGivesWayCannotKeepIt) {
  std::atomic<bool> gives_way{true};
  std::mutex lowering;
  {
    const GivingWayScope scope(&gives_way, &lowering);
    EXPECT_FALSE(KeptPriority());
    gives_way = false;
    EXPECT_TRUE(KeptPriority());
  }
  const std::lock_guard lock(lowering);
  std::thread([&] {
    const GivingWayScope own(&gives_way, &lowering);
    EXPECT_FALSE(KeptPriority()) << "it is being lowered";
  }).join();
}

TEST(KeptPriority, IsThatOfAThreadThatNobodyLowers) { EXPECT_TRUE(KeptPriority()); }

}  // namespace
}  // namespace millpond::base
