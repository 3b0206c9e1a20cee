#include "native/base/thread_cores.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace millpond::base {
namespace {

// Returns the cores that a thread may run on after the test has restricted it to `cores`.
std::vector<int> AllowedAfter(const std::vector<int>& cores) {
  std::vector<int> allowed;
  std::thread([&] {
    EXPECT_TRUE(RestrictToCores(pthread_self(), cores).ok());
    allowed = AllowedCores();
  }).join();
  return allowed;
}

TEST(ThreadCores, AProcessMayRunSomewhere) { EXPECT_FALSE(AllowedCores().empty()); }

TEST(ThreadCores, ARestrictedThreadHasThoseCoresAndOthersKeepTheirs) {
  const std::vector<int> before = AllowedCores();
  EXPECT_EQ(AllowedAfter({before.back()}), std::vector<int>{before.back()});
  EXPECT_EQ(AllowedCores(), before);
}

TEST(ThreadCores, ARestrictionIsTakenBackByAllCores) {
  const std::vector<int> all = AllowedCores();
  std::vector<int> allowed;
  std::thread([&] {
    EXPECT_TRUE(RestrictToCores(pthread_self(), {all.front()}).ok());
    EXPECT_TRUE(RestrictToCores(pthread_self(), all).ok());
    allowed = AllowedCores();
  }).join();
  EXPECT_EQ(allowed, all);
}

TEST(ThreadCores, NoCoreAtAllIsInvalid) {
  const Status status = RestrictToCores(pthread_self(), {});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("0 cores"), std::string::npos);
}

}  // namespace
}  // namespace millpond::base
