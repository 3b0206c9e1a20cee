#pragma once

#include <climits>

namespace millpond::tf {

// While the scope lives, the kernels of this thread use at most a run's fair share of the cores.
// That is the number of cores divided by the runs of requests under way, at least 1. So a request
// that is alone may use all cores, and on a busy server each request runs on its own thread and
// wakes no other thread (docs/figures.md, "Shares of the cores"). The share is `cores_max` at most,
// because waking other threads takes longer than a small run (RunCost).
//
// A load (LoadScope), and any thread of lowered priority, has a share of 1 and is not counted,
// because on the pool its kernels would have the priority of requests.
//
// TensorFlow's limit of a thread (SetPerThreadMaxParallelism) reaches Shard. ServableDevice does
// the rest: it gives Eigen, oneDNN and kernels that schedule tasks themselves as many threads.
class CoreShareScope {
 public:
  explicit CoreShareScope(int cores_max = INT_MAX);
  ~CoreShareScope();
  CoreShareScope(const CoreShareScope&) = delete;
  CoreShareScope& operator=(const CoreShareScope&) = delete;

  // If this thread's run gives way (base::GivesWay), takes one core as its share from now on, and
  // does not count for the shares of others, because it leaves them its core. It also takes its
  // memory from the arena of the background threads, so that no request waits for a mutex of malloc
  // that it holds. Cost: about 1 ns otherwise.
  static void GiveWay();

  int cores() const { return cores_; }
  // True for the run of a request that has not given way.
  bool is_counted() const { return has_share_; }

 private:
  void GiveUpShare();

  bool has_share_;  // counts for the shares of others
  const int cores_;
  const int outer_;
  CoreShareScope* const outer_scope_;
};

// Returns the cores that the kernels of this thread may use: 1 or more, and more than any machine
// has outside a scope.
int CurrentCoreShare();

// Returns true if a request runs, or began to run within the last second.
bool AreRequestsComing();

}  // namespace millpond::tf
