// The groups of request threads, for machines of all sizes.

#include "native/rpc/group_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace millpond::rpc {
namespace {

using Cores = std::vector<int>;

Cores Range(int begin, int end) {
  Cores cores(end - begin);
  std::iota(cores.begin(), cores.end(), begin);
  return cores;
}

std::vector<size_t> ThreadCounts(const std::vector<GroupPlan>& groups) {
  std::vector<size_t> counts;
  for (const GroupPlan& group : groups) counts.push_back(group.thread_count);
  return counts;
}

TEST(GroupPlanTest, UpToSixteenCoresHaveOneGroup) {
  for (int count = 1; count <= 16; ++count) {
    const auto groups = PlanGroups({Range(0, count)}, count);
    ASSERT_EQ(groups.size(), 1);
    EXPECT_EQ(groups[0].cores, Range(0, count));
    EXPECT_EQ(groups[0].thread_count, count);
  }
}

TEST(GroupPlanTest, MoreCoresHaveGroupsOfNineToTwelve) {
  for (int count = 17; count <= 256; ++count) {
    int next_core = 0;
    for (const GroupPlan& group : PlanGroups({Range(0, count)}, count)) {
      const int end = next_core + static_cast<int>(group.thread_count);
      EXPECT_GE(group.thread_count, 8);
      EXPECT_LE(group.thread_count, 12);
      EXPECT_EQ(group.cores, Range(next_core, end));
      next_core = end;
    }
    EXPECT_EQ(next_core, count);
  }
}

TEST(GroupPlanTest, NoGroupHasCoresOfTwoNodes) {
  const auto groups = PlanGroups({Range(0, 4), {}, Range(100, 124)}, 28);
  ASSERT_EQ(groups.size(), 3);
  EXPECT_EQ(groups[0].cores, Range(0, 4));
  EXPECT_EQ(groups[1].cores, Range(100, 112));
  EXPECT_EQ(groups[2].cores, Range(112, 124));
  EXPECT_EQ(groups[2].node_cores, Range(100, 124));
  EXPECT_EQ(ThreadCounts(groups), (std::vector<size_t>{4, 12, 12}));
}

TEST(GroupPlanTest, FewerThreadsThanCoresLieEvenlyOverTheNodes) {
  const auto groups = PlanGroups({Range(0, 8), Range(8, 16)}, 5);
  EXPECT_EQ(ThreadCounts(groups), (std::vector<size_t>{3, 2}));
}

TEST(GroupPlanTest, AForcedNumberHoldsForAnyNumberOfCores) {
  EXPECT_EQ(ThreadCounts(PlanGroups({Range(0, 2)}, 4, 4)), (std::vector<size_t>{1, 1, 1, 1}));
  EXPECT_EQ(ThreadCounts(PlanGroups({Range(0, 16)}, 16, 4)), (std::vector<size_t>{4, 4, 4, 4}));
  EXPECT_EQ(PlanGroups({Range(0, 48), Range(48, 64)}, 64, 4).size(), 4);
  EXPECT_EQ(ThreadCounts(PlanGroups({}, 3, 2)), (std::vector<size_t>{1, 2}));
}

TEST(GroupPlanTest, NoGroupIsWithoutAThread) {
  EXPECT_EQ(ThreadCounts(PlanGroups({Range(0, 64)}, 2)), (std::vector<size_t>{1, 1}));
  EXPECT_EQ(ThreadCounts(PlanGroups({Range(0, 2)}, 1, 4)), (std::vector<size_t>{1}));
  EXPECT_EQ(ThreadCounts(PlanGroups({Range(0, 4), Range(4, 8)}, 1)), (std::vector<size_t>{1}));
}

}  // namespace
}  // namespace millpond::rpc
