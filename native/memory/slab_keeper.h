#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "native/memory/slab_pool.h"

namespace millpond::memory {

// The thread that pre-faults a pool's spares and returns its surplus, step by step. Once nothing of
// that is left, it performs the steps of `idle_step`, if there is one. Each returns how long to
// rest after it, or nullopt if there is nothing to do until the pool has work again.
//
// Thread: starts one. `on_thread_start` runs on it first and sets its name and priority.
// Owner: the composition root, declared after the pool, which it borrows.
class SlabKeeper {
 public:
  using Step = std::function<std::optional<int64_t>()>;

  SlabKeeper(SlabPool* pool, std::function<void()> on_thread_start, Step idle_step = nullptr);
  SlabKeeper(const SlabKeeper&) = delete;
  SlabKeeper& operator=(const SlabKeeper&) = delete;
  ~SlabKeeper() { Stop(); }

  // Ends the thread after its current step. A second call does nothing.
  void Stop();

  // Waits until all work is done. Returns false if `timeout_ns` passes first, or if the keeper is
  // stopped before.
  bool WaitUntilIdle(int64_t timeout_ns);

 private:
  void Run();
  void Wake();
  bool TakeUpWork();
  void FinishWork();
  std::optional<int64_t> PerformStep();
  bool Rest(int64_t pause_ns);
  bool IsIdle() const { return !has_work_ && !is_at_work_; }  // Under the mutex.

  SlabPool* const pool_;
  const std::function<void()> on_thread_start_;
  const Step idle_step_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_work_ = true;  // Set by the pool, cleared when the keeper looks.
  bool is_at_work_ = false;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace millpond::memory
