#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace millpond::pjrt {

// The stages of a run on an accelerator, in their order.
enum class RunStage { kWait, kTransferIn, kRun, kTransferOut };
inline constexpr size_t kRunStageCount = 4;

// The reasons why a run is computed on the CPU although its signature has programs.
enum class CpuReason {
  kShape,    // the request has not the shapes of the signature
  kMemory,   // the accelerator has no memory left for the run
  kFailed,   // the run failed there, and the signature was given up with it
  kLost,     // the signature was given up before
  kAway,     // the parameters are not there now, and are asked for
  kWaited,   // the runs of other models came first for too long
  kGaveWay,  // the thread gives way (native/base/giving_way.h), so it must hold up no other run
  kRefused,  // a check of the request failed: in its part on the CPU, or of its indices
  kFaster,   // the CPU is faster for so many rows (side_times.h)
};
inline constexpr size_t kCpuReasonCount = 9;

// The runs of one signature on one accelerator since its load.
struct RunFigures {
  std::string signature;
  std::string device;               // the accelerator's name
  std::vector<int64_t> sizes;       // the rows of each program, ascending
  std::vector<int64_t> run_counts;  // the runs of each program, in the order of `sizes`
  std::vector<int64_t> row_counts;  // the rows that these runs were asked for, without padding
  int64_t timed_run_count = 0;      // the runs whose stages are timed
  std::array<int64_t, kRunStageCount> stage_ns{};         // of all timed runs together
  std::array<int64_t, kCpuReasonCount> cpu_run_counts{};  // runs on the CPU, by reason
};

// Counts the runs of one signature. The stages of a run are only told apart by waiting for the end
// of each, which keeps a run from being queued behind its own transfer. So only the first runs and
// then one of kTimedOneOf are timed.
//
// Thread: any number at once, wait-free, once all sizes are added.
class RunCounts {
 public:
  static constexpr int64_t kTimedFirst = 8;
  // A server with 100 runs/s still times more than one of them a second, and none of the others
  // waits.
  static constexpr int64_t kTimedOneOf = 64;

  // Adds the program of `rows` rows, unless it was added before.
  void AddSize(int64_t rows);
  // Counts a run of the program of `size` rows that was asked for `rows`.
  void CountRun(int64_t size, int64_t rows);
  // Counts a run that begins. Returns true if its stages are to be timed.
  bool BeginRun();
  void AddTimes(const std::array<int64_t, kRunStageCount>& stage_ns);
  void CountCpuRun(CpuReason reason) {
    cpu_runs_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }

  RunFigures Figures(const std::string& signature) const;

 private:
  struct SizeCounts {
    std::atomic<int64_t> runs{0};
    std::atomic<int64_t> rows{0};
  };

  std::map<int64_t, std::unique_ptr<SizeCounts>> by_size_;
  std::atomic<int64_t> begun_runs_{0};
  std::atomic<int64_t> timed_runs_{0};
  std::array<std::atomic<int64_t>, kRunStageCount> stage_ns_{};
  std::array<std::atomic<int64_t>, kCpuReasonCount> cpu_runs_{};
};

}  // namespace millpond::pjrt
