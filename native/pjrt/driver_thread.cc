#include "native/pjrt/driver_thread.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "native/base/crash_page.h"

namespace millpond::pjrt {

DriverThread::DriverThread(const std::string& name) : thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), name.c_str());
}

DriverThread::~DriverThread() {
  {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    waiting_.clear();
    changed_.notify_all();
    changed_.wait(lock, [&] { return performing_count_ == 0; });
  }
  thread_.join();
}

bool DriverThread::IsWaiting(const Task* task) const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [&](const Entry& entry) { return entry.task.get() == task; });
}

void DriverThread::Request(Task* task) {
  const std::lock_guard lock(mutex_);
  if (IsWaiting(task)) return;
  waiting_.push_back({Borrowed(task), 0, nullptr});
  changed_.notify_all();
}

bool DriverThread::PerformFor(const std::shared_ptr<Task>& task, int64_t limit_ns, IfLate if_late) {
  const auto has_ended = std::make_shared<bool>(false);
  std::unique_lock lock(mutex_);
  if (is_stopping_) return false;
  waiting_.push_back({task, base::ThisCrashMark(), has_ended});
  ++performing_count_;
  changed_.notify_all();
  const auto is_over = [&] { return *has_ended || (is_stopping_ && current_ != task.get()); };
  if (limit_ns == kNoLimit) {
    changed_.wait(lock, is_over);
  } else if (!changed_.wait_for(lock, std::chrono::nanoseconds(limit_ns), is_over)) {
    Leave(has_ended, if_late);
  }
  --performing_count_;
  changed_.notify_all();
  return *has_ended;
}

// Drops a task that has not begun, or lets it run later: as no version's, because the caller's may
// have ended by then, and its mark may be another's. Needs the lock.
void DriverThread::Leave(const std::shared_ptr<bool>& has_ended, IfLate if_late) {
  const auto entry = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Entry& other) { return other.has_ended == has_ended; });
  if (entry == waiting_.end()) return;
  if (if_late == IfLate::kDropped) {
    waiting_.erase(entry);
  } else {
    entry->crash_mark = 0;
  }
}

void DriverThread::AwaitAll() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && current_ == nullptr; });
}

void DriverThread::Forget(Task* task) {
  std::unique_lock lock(mutex_);
  const auto is_task = [&](const Entry& entry) { return entry.task.get() == task; };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_task), waiting_.end());
  changed_.wait(lock, [&] { return current_ != task; });
}

size_t DriverThread::waiting_count() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

void DriverThread::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    const Entry entry = std::move(waiting_.front());
    waiting_.pop_front();
    current_ = entry.task.get();
    lock.unlock();
    {
      const auto caller = base::CrashScope::For(entry.crash_mark);
      entry.task->Run();
    }
    lock.lock();
    current_ = nullptr;
    if (entry.has_ended != nullptr) *entry.has_ended = true;
    changed_.notify_all();
  }
}

}  // namespace millpond::pjrt
