#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace millpond::pjrt {

// Uploads to one accelerator, one at a time, because two share the link and would both be late.
//
// Thread: any. The queue's own thread, which the first Request starts, does what is requested.
// Owner: the Accelerator.
class UploadQueue {
 public:
  class Task {
   public:
    virtual void Upload() = 0;

   protected:
    ~Task() = default;
  };

  UploadQueue() = default;
  // Drops what waits, and waits for the upload under way.
  ~UploadQueue();
  UploadQueue(const UploadQueue&) = delete;
  UploadQueue& operator=(const UploadQueue&) = delete;

  // Returns the turn of an upload, for the caller's own thread.
  std::unique_lock<std::mutex> TakeTurn() { return std::unique_lock(turn_); }
  // Calls `task->Upload()` soon, with the turn. Returns at once.
  void Request(Task* task);
  // `task` is not called any more. Waits if it is called now.
  void Forget(Task* task);

 private:
  void Run();

  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by `mutex_`.
  std::deque<Task*> waiting_;
  Task* current_ = nullptr;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace millpond::pjrt
