#include "native/base/giving_way.h"

#include <gtest/gtest.h>

#include <atomic>
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

}  // namespace
}  // namespace millpond::base
