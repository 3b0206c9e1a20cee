#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace millpond::tests {

// The work of a fake accelerator, which is done as late as the PJRT C API permits: most steps wait
// until somebody waits for them, or for a step that comes after them. So memory that its owner
// takes back too early is read or written afterwards, and a test sees that. Some steps, drawn by a
// seed, are done at once.
//
// Thread: any. Each lane has a thread of its own, which does its steps in order.
class LateDevice {
 public:
  // The copies to the device, its computations, and the copies back.
  enum class Lane { kIn, kRun, kOut };

  // A part of the host's memory that a step, or the host, reads or writes.
  struct HostMemory {
    const char* begin = nullptr;
    size_t bytes = 0;
    bool is_written = false;
  };

  class Step;
  using StepPtr = std::shared_ptr<Step>;
  // Returns an error; "" if there is none.
  using Work = std::function<std::string()>;

  explicit LateDevice(uint32_t seed) : random_(seed) {}
  // Does all steps.
  ~LateDevice();
  LateDevice(const LateDevice&) = delete;
  LateDevice& operator=(const LateDevice&) = delete;

  // Adds a step that begins after the steps `after`, and fails with them. `work` is destroyed once
  // it is done; `host` is what it reads or writes of the host's memory, if any.
  StepPtr Add(Lane lane, std::vector<StepPtr> after, Work work, HostMemory host);
  // Waits for the end of a step, and returns its error.
  std::string Await(const StepPtr& step);
  bool IsDone(const StepPtr& step) const;
  // True if a step that is not done is in conflict with this use of `host`: both have a byte, and
  // one of them writes.
  bool IsInConflict(HostMemory host) const;
  // True once in `one_in`, by the seed; never if that is 0.
  bool Draw(uint32_t one_in);

 private:
  struct Queue {
    std::deque<StepPtr> steps;
    std::thread thread;
  };

  void Demand(const StepPtr& step);
  void DoSteps(Queue* queue);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by the mutex.
  std::mt19937 random_;
  std::array<Queue, 3> queues_;
  bool is_stopping_ = false;
};

class LateDevice::Step {
 public:
  Step(Lane lane, std::vector<StepPtr> after, Work work, HostMemory host)
      : lane_(lane), after_(std::move(after)), work_(std::move(work)), host_(host) {}

 private:
  friend class LateDevice;

  const Lane lane_;
  // All guarded by the mutex of the device; `work_` belongs to the lane's thread.
  std::vector<StepPtr> after_;
  Work work_;
  const HostMemory host_;
  bool is_demanded_ = false;
  bool is_done_ = false;
  std::string error_;
};

}  // namespace millpond::tests
