#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace millpond::rpc {

// The run that holds a thread up, as the watchdog has seen it so far. Pure: the caller reads the
// clocks. Thread: one.
class LongRun {
 public:
  // A run that has held its thread up, and has since taken so much processor time, is greedy. Runs
  // that are served with a tail in mind end before, because a lowered run ends late beside requests
  // that leave no core free. On two cores eight runs take 200 ms to become greedy.
  static constexpr int64_t kGreedyNs = 50'000'000;

  // Looks at the run that began at `begin_ns`, on a thread that has used `cpu_ns` in its life.
  // Returns true if the run is greedy. A run that waits, such as one that sleeps or calls another
  // server, is not.
  bool IsGreedy(int64_t begin_ns, int64_t cpu_ns) {
    if (begin_ns != begin_ns_) {
      begin_ns_ = begin_ns;
      first_cpu_ns_ = cpu_ns;
    }
    return cpu_ns - first_cpu_ns_ >= kGreedyNs;
  }

 private:
  int64_t begin_ns_ = 0;
  int64_t first_cpu_ns_ = 0;  // when the watchdog first saw the run
};

// The runs that must give way: greedy ones, as long as there are modest ones. If all runs of a
// server are greedy, none is better than another, and a lower priority would only let other
// processes pass.
inline bool MustGiveWay(bool is_greedy, int64_t modest_ns, int64_t now_ns) {
  constexpr int64_t kRememberedNs = 10'000'000'000;
  return is_greedy && now_ns - modest_ns <= kRememberedNs;
}

// Returns by how many steps of nice a run is lowered that gives way beside `lowered_count` others.
// A step takes a fifth of its share (base::LowerThread). So alone it has a tenth of the share of a
// usual thread, and the n-th run has about the n-th part of that. All together leave the cores to
// modest runs, and each has at least 1.4 %. With SCHED_IDLE they would end late or never beside
// other processes that compute.
inline int StepsOfLowering(size_t lowered_count) {
  constexpr std::array<int, 7> kSteps = {10, 13, 15, 16, 17, 18, 19};
  return kSteps[std::min(lowered_count, kSteps.size() - 1)];
}

}  // namespace millpond::rpc
