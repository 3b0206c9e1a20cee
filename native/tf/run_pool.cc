#include "native/tf/run_pool.h"

#include <utility>

#include "native/memory/thread_usage.h"

namespace millpond::tf {
namespace {

// The usage of the run that this thread works for; null if nothing is counted.
thread_local std::shared_ptr<PoolUsageBytes>* current_usage = nullptr;

void RunCounted(std::shared_ptr<PoolUsageBytes>* usage, const std::function<void()>& task) {
  // If a pool is full, it runs the task at once on the thread that schedules it. The bytes of that
  // thread count already.
  if (current_usage != nullptr) return task();
  current_usage = usage;
  const int64_t before_bytes = memory::ThreadUsageBytes();
  task();
  (*usage)->fetch_add(memory::ThreadUsageBytes() - before_bytes, std::memory_order_relaxed);
  current_usage = nullptr;
}

std::function<void()> Counted(std::function<void()> task) {
  if (current_usage == nullptr) return task;
  if (*current_usage == nullptr) *current_usage = std::make_shared<PoolUsageBytes>(0);
  return [usage = *current_usage, task = std::move(task)]() mutable { RunCounted(&usage, task); };
}

}  // namespace

PoolUsageScope::PoolUsageScope(bool is_counted) : outer_(current_usage) {
  current_usage = is_counted ? &usage_ : nullptr;
}

PoolUsageScope::~PoolUsageScope() { current_usage = outer_; }

void RunPool::Schedule(std::function<void()> task) { pool_->Schedule(Counted(std::move(task))); }

void RunPool::ScheduleWithHint(std::function<void()> task, int start, int end) {
  pool_->ScheduleWithHint(Counted(std::move(task)), start, end);
}

}  // namespace millpond::tf
