#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "xla/tsl/platform/threadpool_interface.h"

namespace millpond::tf {

// The bytes that the tasks of one run have allocated on threads of a pool, less the bytes that they
// have freed there.
using PoolUsageBytes = std::atomic<int64_t>;

// Counts tasks in a PoolUsageBytes of its own while the scope lives: the tasks that this thread
// schedules on a RunPool, and the tasks that these tasks schedule. A task counts once it has ended,
// which is shortly after the kernel that waits for it continues.
class PoolUsageScope {
 public:
  // Counts nothing if `is_counted` is false, and hides the scope around it.
  explicit PoolUsageScope(bool is_counted);
  ~PoolUsageScope();
  PoolUsageScope(const PoolUsageScope&) = delete;
  PoolUsageScope& operator=(const PoolUsageScope&) = delete;

  int64_t bytes() const { return usage_ == nullptr ? 0 : usage_->load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<PoolUsageBytes> usage_;  // null until a task is scheduled
  std::shared_ptr<PoolUsageBytes>* const outer_;
};

// Wraps another pool, so that its tasks count for the run that schedules them.
// Cost: one allocation a task, in a scope that counts.
class RunPool final : public tsl::thread::ThreadPoolInterface {
 public:
  // Borrows `pool`.
  explicit RunPool(Eigen::ThreadPoolInterface* pool) : pool_(pool) {}

  void Schedule(std::function<void()> task) override;
  void ScheduleWithHint(std::function<void()> task, int start, int end) override;
  void Cancel() override { pool_->Cancel(); }
  int NumThreads() const override { return pool_->NumThreads(); }
  int CurrentThreadId() const override { return pool_->CurrentThreadId(); }

 private:
  Eigen::ThreadPoolInterface* const pool_;
};

}  // namespace millpond::tf
