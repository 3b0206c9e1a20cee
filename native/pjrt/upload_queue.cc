#include "native/pjrt/upload_queue.h"

#include <algorithm>

namespace millpond::pjrt {

UploadQueue::~UploadQueue() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void UploadQueue::Request(Task* task) {
  const std::lock_guard lock(mutex_);
  if (is_stopping_ || std::find(waiting_.begin(), waiting_.end(), task) != waiting_.end()) return;
  waiting_.push_back(task);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.notify_all();
}

void UploadQueue::Forget(Task* task) {
  std::unique_lock lock(mutex_);
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), task), waiting_.end());
  changed_.wait(lock, [&] { return current_ != task; });
}

void UploadQueue::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    current_ = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    {
      const auto turn = TakeTurn();
      current_->Upload();
    }
    lock.lock();
    current_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace millpond::pjrt
