#pragma once

#include <cstddef>
#include <vector>

namespace millpond::rpc {

// A group of request threads before they start.
struct GroupPlan {
  size_t thread_count = 1;
  // A core for each thread, if the server has as many threads as cores. All are of one NUMA node.
  std::vector<int> cores = {};
  std::vector<int> node_cores = {};  // all that the process may use of that node
  // Threads beside `thread_count`, which serve while some of those wait for an accelerator.
  size_t spare_count = 0;

  size_t all_count() const { return thread_count + spare_count; }
};

// Groups `thread_count` threads over `nodes`: the cores of each NUMA node that the process may use.
// Up to 16 cores of a node have one group, because they share few enough counts and locks. More are
// cut into even groups of 8 to 12 cores. With `forced_count` there are so many groups, but at least
// one for each node. No group is without a thread. Pure.
std::vector<GroupPlan> PlanGroups(const std::vector<std::vector<int>>& nodes, size_t thread_count,
                                  size_t forced_count = 0);

// Gives each group as many spare threads as it has others, as long as all groups together have no
// more than `count_max` threads. Pure.
void AddSpareThreads(size_t count_max, std::vector<GroupPlan>* groups);

}  // namespace millpond::rpc
