#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "native/base/status.h"
#include "native/pjrt/device_schedule.h"

namespace millpond::pjrt {

// The runs of an accelerator take turns here, in the order of DeviceSchedule. A turn is held from
// the first transfer of a run to the end of its last one; of a long run, to the end of its
// computation, so that one run is uploaded and one computed while the outputs of a third are
// copied.
//
// Thread: any. Owner: the Accelerator, which outlives all turns. Cost: an uncontended turn takes a
// mutex twice.
class DeviceTurns {
 public:
  static constexpr int64_t kNoDeadline = INT64_MAX;
  // The most that a run waits. If no run ends meanwhile, the accelerator is taken for lost.
  static constexpr int64_t kWaitNsMax = 10'000'000'000;

  // For so long after turns of two models, they share the accelerator.
  static constexpr int64_t kSharedNs = 1'000'000'000;

  class Turn;

  explicit DeviceTurns(int64_t wait_ns_max = kWaitNsMax) : wait_ns_max_(wait_ns_max) {}
  DeviceTurns(const DeviceTurns&) = delete;
  DeviceTurns& operator=(const DeviceTurns&) = delete;

  // Waits for the turn of a run of `model` that is expected to take `cost_ns`. Returns
  // DEADLINE_EXCEEDED if it cannot end by `deadline_ns`, as soon as that is known. After the
  // longest wait it returns UNAVAILABLE if no run has ended meanwhile, and ABORTED if only the
  // turns of others came first. If the model has no other run, its cost is no reason: it may have
  // become shorter, and only a run shows that.
  base::StatusOr<Turn> Take(const std::string& model, bool is_low, int64_t cost_ns,
                            int64_t deadline_ns);
  // The time that the runs of this priority or above, which are there now, will take.
  int64_t ExpectedWaitNs(bool is_low) const;
  // True if the turns of the last while were not all of one model. Wait-free.
  bool IsShared() const;
  // The time that ended runs took in all.
  int64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }
  // The runs that wait for their turn now.
  size_t waiting_count() const;

 private:
  struct Waiter {
    std::condition_variable begins;
    bool has_begun = false;
  };

  void BeginRuns();
  void CountEnd(const std::string& model);
  int64_t End(const std::string& model, int64_t id, int64_t began_ns);

  const int64_t wait_ns_max_;
  std::atomic<int64_t> busy_ns_{0};
  std::atomic<int64_t> model_changed_ns_{-kSharedNs};
  mutable std::mutex mutex_;
  // All guarded by the mutex.
  DeviceSchedule schedule_;
  std::map<int64_t, Waiter*> waiters_;
  std::map<std::string, int64_t, std::less<>> run_counts_;  // of models, waiting and under way
  int64_t last_id_ = 0;
  std::string last_model_;
};

// The turn of one run, which its destructor ends.
class DeviceTurns::Turn {
 public:
  Turn(DeviceTurns* turns, std::string model, int64_t id, int64_t began_ns)
      : turns_(turns), model_(std::move(model)), id_(id), began_ns_(began_ns) {}
  ~Turn() { End(); }
  Turn(Turn&& other) noexcept
      : turns_(std::exchange(other.turns_, nullptr)),
        model_(std::move(other.model_)),
        id_(other.id_),
        began_ns_(other.began_ns_) {}
  Turn& operator=(Turn&&) = delete;

  // Ends the turn, and returns the time of the accelerator that it took; 0 if it has ended before.
  int64_t End() {
    DeviceTurns* const turns = std::exchange(turns_, nullptr);
    return turns == nullptr ? 0 : turns->End(model_, id_, began_ns_);
  }

 private:
  DeviceTurns* turns_;
  std::string model_;
  int64_t id_;
  int64_t began_ns_;
};

}  // namespace millpond::pjrt
