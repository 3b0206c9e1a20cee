#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace millpond::pjrt {

// The two places that can compute a signature with programs.
enum class Side { kCpu, kAccelerator };
inline constexpr size_t kSideCount = 2;

// The side of one run, and whether its time is to be added.
struct SidePlan {
  Side side = Side::kAccelerator;
  bool is_timed = false;
  bool is_probe = false;  // a run on the side that is not chosen, to see how fast it is now
};

// The times of runs of up to `rows` rows, and the side that takes them.
struct SizeTimes {
  int64_t rows = 0;
  int64_t cpu_ns = 0;          // the median of the last runs; 0: too few
  int64_t accelerator_ns = 0;  // the same, without the wait for the accelerator's turn
  bool is_on_accelerator = true;
};

// Which side takes the runs of a signature, by their rows, and how long runs take on each side.
// All sizes begin on the accelerator. The control plane decides; some runs are timed for it:
// one of kTimedOneOf on the chosen side, and rare probes on the other one.
//
// Thread: any number at once, wait-free.
class SideTimes {
 public:
  // A median is of so many of the last runs at most, and of kSamplesMin at least.
  static constexpr size_t kSamplesMax = 9;
  static constexpr size_t kSamplesMin = 3;
  // Not RunCounts::kTimedOneOf, whose runs are slower, because they wait for each stage.
  static constexpr int64_t kTimedOneOf = 61;
  static constexpr int64_t kNoProbes = 0;

  // `sizes` are the rows of the signature's programs; one or more.
  explicit SideTimes(const std::vector<int64_t>& sizes);

  // Plans the next run of `rows` rows. Runs of more rows than the largest size take its side,
  // untimed.
  SidePlan Plan(int64_t rows) const;
  // Adds the time of a run that was planned as timed.
  void Add(int64_t rows, Side side, int64_t ns);
  // Sends the runs of the size `size` to `side` from now on, and one of `probe_one_of` to the other
  // side. Returns false if there is no such size.
  bool Choose(int64_t size, Side side, int64_t probe_one_of);
  // Times each run, if `times_all`: while both sides are measured.
  void TimeAll(bool times_all) { times_all_.store(times_all, std::memory_order_relaxed); }

  std::vector<SizeTimes> Times() const;
  std::vector<int64_t> sizes() const;

 private:
  // The last times of runs on one side.
  class Samples {
   public:
    void Add(int64_t ns) {
      const size_t index = count_.fetch_add(1, std::memory_order_relaxed);
      last_ns_[index % kSamplesMax].store(ns, std::memory_order_relaxed);
    }
    int64_t MedianNs() const;

   private:
    std::atomic<size_t> count_{0};
    std::array<std::atomic<int64_t>, kSamplesMax> last_ns_{};
  };
  struct Size {
    std::atomic<Side> side{Side::kAccelerator};
    std::atomic<int64_t> probe_one_of{kNoProbes};
    mutable std::atomic<int64_t> run_count{0};
    std::array<Samples, kSideCount> samples;
  };

  std::map<int64_t, Size> by_size_;
  std::atomic<bool> times_all_{false};
};

}  // namespace millpond::pjrt
