#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace millpond::pjrt {

// A thread of the server's own priority that makes long calls of a plugin, one at a time. The
// threads that want them may have a lower one: a thread that loses its core inside the driver, with
// the driver's locks, keeps all runs waiting.
//
// Thread: any. It has the priority of the thread that makes the object. Owner: an Accelerator, for
// its uploads, because two would share the link and both be late; PinnedMemory, for its pins.
class DriverThread {
 public:
  class Task {
   public:
    virtual void Run() = 0;

   protected:
    ~Task() = default;
  };

  // `name` has 15 letters at most.
  explicit DriverThread(const std::string& name);
  // Drops what waits, and waits for the task under way and for callers of Perform.
  ~DriverThread();
  DriverThread(const DriverThread&) = delete;
  DriverThread& operator=(const DriverThread&) = delete;

  // Runs `task` soon, once for all requests until it begins. Returns at once.
  void Request(Task* task);
  // Runs `task`, and waits until it has ended. Returns false if it was not run, because the thread
  // ends. A crash of the task is one of the caller's version (CrashScope).
  [[nodiscard]] bool Perform(Task* task) { return PerformFor(Borrowed(task), kNoLimit); }
  // The way with a task that has not begun in time.
  enum class IfLate { kDropped, kRunLater };
  // The same, but waits for `limit_ns` at most, because a driver may hang. Returns false then too:
  // if the task has begun, it goes on, and is kept until it ends. The crash of a task that is run
  // later is no version's.
  [[nodiscard]] bool PerformFor(const std::shared_ptr<Task>& task, int64_t limit_ns,
                                IfLate if_late = IfLate::kDropped);
  // Waits until nothing is under way or to come.
  void AwaitAll();
  // `task` is not run any more. Waits if it runs now.
  void Forget(Task* task);
  // The tasks that wait now.
  size_t waiting_count() const;

 private:
  static constexpr int64_t kNoLimit = -1;

  struct Entry {
    std::shared_ptr<Task> task;
    uint32_t crash_mark = 0;
    std::shared_ptr<bool> has_ended;  // of a caller of Perform; null for a Request
  };

  static std::shared_ptr<Task> Borrowed(Task* task) { return {std::shared_ptr<Task>(), task}; }
  void Run();
  void Leave(const std::shared_ptr<bool>& has_ended, IfLate if_late);
  bool IsWaiting(const Task* task) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by `mutex_`.
  std::deque<Entry> waiting_;
  Task* current_ = nullptr;
  int performing_count_ = 0;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace millpond::pjrt
