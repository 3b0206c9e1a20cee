#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "xla/tsl/platform/threadpool_interface.h"

namespace millpond::tf {

// Bytes that the tasks of one run have allocated on threads of a pool, less those that they have
// freed there.
using PoolUsageBytes = std::atomic<int64_t>;

// While it lives, tasks that this thread schedules on a RunPool count in a PoolUsageBytes of its
// own, and so do tasks that those tasks schedule. A task counts once it has ended, which is a
// moment after the kernel that waits for it goes on.
class PoolUsageScope {
 public:
  // Counts nothing if not `is_counted`, and hides the scope outside of it.
  explicit PoolUsageScope(bool is_counted);
  ~PoolUsageScope();
  PoolUsageScope(const PoolUsageScope&) = delete;
  PoolUsageScope& operator=(const PoolUsageScope&) = delete;

  int64_t bytes() const { return usage_ == nullptr ? 0 : usage_->load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<PoolUsageBytes> usage_;  // null until a task is scheduled
  std::shared_ptr<PoolUsageBytes>* const outer_;
};

// Another pool, whose tasks count for the run that schedules them.
// Cost: one allocation a task, in a scope that counts.
class RunPool final : public tsl::thread::ThreadPoolInterface {
 public:
  // Borrows it.
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
