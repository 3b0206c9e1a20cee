#include "native/rpc/group_plan.h"

#include <algorithm>
#include <cstddef>

namespace millpond::rpc {
namespace {

constexpr size_t kCoresOfOneGroup = 16;
constexpr size_t kCoresPerGroup = 12;

size_t RoundedQuotient(size_t dividend, size_t divisor) {
  return (dividend + divisor / 2) / divisor;
}

size_t GroupCountOf(size_t core_count) {
  if (core_count <= kCoresOfOneGroup) return 1;
  return (core_count + kCoresPerGroup - 1) / kCoresPerGroup;
}

// Appends `group_count` even groups of `thread_count` threads on `cores`.
void AddGroups(const std::vector<int>& cores, size_t thread_count, size_t group_count,
               std::vector<GroupPlan>* groups) {
  group_count = std::min(group_count, thread_count);
  const auto core = [&](size_t group) {
    return cores.begin() + static_cast<std::ptrdiff_t>(group * cores.size() / group_count);
  };
  for (size_t i = 0; i < group_count; ++i) {
    const size_t end = (i + 1) * thread_count / group_count;
    groups->push_back({end - i * thread_count / group_count, {core(i), core(i + 1)}, cores});
  }
}

}  // namespace

std::vector<GroupPlan> PlanGroups(const std::vector<std::vector<int>>& nodes, size_t thread_count,
                                  size_t forced_count) {
  size_t core_count = 0;
  for (const auto& cores : nodes) core_count += cores.size();
  std::vector<GroupPlan> groups;
  size_t cores_before = 0;
  for (const auto& cores : nodes) {
    if (cores.empty()) continue;
    // The threads lie evenly over all cores.
    const auto threads_before = [&](size_t count) {
      return RoundedQuotient(count * thread_count, core_count);
    };
    const size_t own_count =
        threads_before(cores_before + cores.size()) - threads_before(cores_before);
    const size_t group_count =
        forced_count > 0
            ? std::max<size_t>(1, RoundedQuotient(forced_count * cores.size(), core_count))
            : GroupCountOf(cores.size());
    AddGroups(cores, own_count, group_count, &groups);
    cores_before += cores.size();
  }
  // The kernel does not tell the cores.
  if (groups.empty()) AddGroups({}, thread_count, std::max<size_t>(forced_count, 1), &groups);
  return groups;
}

void AddSpareThreads(size_t count_max, std::vector<GroupPlan>* groups) {
  size_t count = 0;
  for (const GroupPlan& group : *groups) count += group.all_count();
  for (GroupPlan& group : *groups) {
    group.spare_count = std::min(group.thread_count, count_max - std::min(count_max, count));
    count += group.spare_count;
  }
}

}  // namespace millpond::rpc
