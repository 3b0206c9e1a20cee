#include "native/pjrt/driver_thread.h"

#include <pthread.h>

#include <algorithm>

namespace millpond::pjrt {

DriverThread::DriverThread(const std::string& name) : thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), name.c_str());
}

DriverThread::~DriverThread() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

void DriverThread::Request(Task* task) {
  const std::lock_guard lock(mutex_);
  if (std::find(waiting_.begin(), waiting_.end(), task) != waiting_.end()) return;
  waiting_.push_back(task);
  changed_.notify_all();
}

void DriverThread::Perform(Task* task) {
  Request(task);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return current_ != task && std::find(waiting_.begin(), waiting_.end(), task) == waiting_.end();
  });
}

void DriverThread::Forget(Task* task) {
  std::unique_lock lock(mutex_);
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), task), waiting_.end());
  changed_.wait(lock, [&] { return current_ != task; });
}

void DriverThread::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    current_ = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    current_->Run();
    lock.lock();
    current_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace millpond::pjrt
