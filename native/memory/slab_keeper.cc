#include "native/memory/slab_keeper.h"

#include <pthread.h>

#include <chrono>
#include <optional>
#include <utility>

namespace millpond::memory {

SlabKeeper::SlabKeeper(SlabPool* pool, std::function<void()> on_thread_start, Step idle_step)
    : pool_(pool), on_thread_start_(std::move(on_thread_start)), idle_step_(std::move(idle_step)) {
  pool_->NotifyOfWork([this] { Wake(); });
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "slab-keeper");
}

void SlabKeeper::Stop() {
  pool_->NotifyOfWork(nullptr);
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool SlabKeeper::WaitUntilIdle(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                    [this] { return IsIdle() || is_stopping_; });
  return IsIdle();
}

void SlabKeeper::Run() {
  if (on_thread_start_) on_thread_start_();
  while (TakeUpWork()) {
    std::optional<int64_t> pause_ns = PerformStep();
    while (pause_ns && Rest(*pause_ns)) pause_ns = PerformStep();
    FinishWork();
  }
}

std::optional<int64_t> SlabKeeper::PerformStep() {
  const std::optional<int64_t> pause_ns = pool_->KeepStep();
  return pause_ns || !idle_step_ ? pause_ns : idle_step_();
}

// Waits for work. Returns false if Stop was called.
bool SlabKeeper::TakeUpWork() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return has_work_ || is_stopping_; });
  is_at_work_ = true;
  has_work_ = false;
  return !is_stopping_;
}

void SlabKeeper::FinishWork() {
  {
    const std::lock_guard lock(mutex_);
    is_at_work_ = false;
  }
  changed_.notify_all();
}

// Waits for `pause_ns`. Returns false if Stop was called.
bool SlabKeeper::Rest(int64_t pause_ns) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(pause_ns), [this] { return is_stopping_; });
  return !is_stopping_;
}

void SlabKeeper::Wake() {
  {
    const std::lock_guard lock(mutex_);
    has_work_ = true;
  }
  changed_.notify_all();
}

}  // namespace millpond::memory
