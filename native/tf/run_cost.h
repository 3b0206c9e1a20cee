#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace millpond::tf {

// The time that the runs of one signature take on one thread, learned from the runs themselves, for
// each size of their inputs. It decides if a run may use the threads of TensorFlow's pool, because
// waking them takes longer than a small run: one row of the CTR model took 351 µs of processor time
// with the pool, and 216 µs when its threads did not spin (docs/figures.md, "Shares of the cores").
//
// Thread: any number of threads at the same time; wait-free. Two runs that record at the same time
// may lose one of their records. Memory: 0.5 KiB.
class RunCost {
 public:
  // The least time on one thread for which other threads are woken.
  static constexpr int64_t kWorthSharingNs = 2'000'000;

  // Returns true if a run whose inputs have `element_count` elements is expected to take
  // kWorthSharingNs or more, or if no run of about that size is known. A wrong guess costs a small
  // run little, and would cost a long run much.
  bool IsWorthSharing(int64_t element_count) const;

  // Takes account of a run that took `run_ns` on `core_count` cores.
  void Record(int64_t element_count, int core_count, int64_t run_ns);

 private:
  // One class for each power of two of the number of elements.
  std::array<std::atomic<int64_t>, 64> thread_ns_{};  // 0: no run yet
};

}  // namespace millpond::tf
