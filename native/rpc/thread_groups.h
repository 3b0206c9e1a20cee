#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "native/rpc/group_plan.h"
#include "native/rpc/run_queue.h"
#include "native/rpc/thread_shares.h"
#include "native/servable/batch_registry.h"

namespace millpond::rpc {

// The part that the request threads of one group share. Threads of other groups read it rarely.
struct ThreadGroup {
  ThreadGroup(size_t number, GroupPlan its_plan, const servable::BatchRegistry& batches,
              size_t short_count, ThreadShares* shares)
      : index(number), plan(std::move(its_plan)), queue(batches, short_count, shares) {}

  const size_t index;
  const GroupPlan plan;
  RunQueue queue;
  alignas(64) std::atomic<int> idle_count{0};  // threads that wait in its epoll set
  std::atomic<int> free_count{0};              // of them, those that may run requests
  std::atomic<bool> has_surplus{false};        // of threads, because models share them no more
};

// The groups of request threads, and how a thread finds work beyond its own group.
//
// Theory of operation. On many cores the counts and locks that all threads share cost more than
// the requests: a cache line travels from core to core. So the threads form groups (PlanGroups),
// each with an epoll set, a queue and counts of its own. A connection belongs to one group. In the
// steady state a thread touches only what is its group's.
//
// The groups help one another, so that none idles while another one has too much:
//
// - Requests that are queued. A thread that queues work worth a wake-up wakes an idle thread of its
//   group; if there is none, one of another group (FindIdle). A thread looks at the queues of other
//   groups (FindQueued) only if its own queue and its own epoll set have nothing.
// - Requests that no thread has read yet. A group without an idle thread leaves its requests unread
//   until a run ends. So a thread whose group has another idle one waits in the epoll set of such
//   a group (Enter). A thread that leaves a group without an idle thread wakes one elsewhere that
//   can come (FindSpare).
//
// Promise: while a thread waits, no request that is worth a wake-up is queued in any group, unless
// a thread is about to take it. And if two threads wait in one group, then no group is without a
// thread that waits, unless one is about to come. If fewer threads are idle than there are groups,
// then a request may stay unread beside an idle thread of another group, until the first run of its
// own group ends, or the watchdog has relieved its group.
//
// Both hold by the same order. A thread counts itself as idle before it looks at the other counts
// and queues. A thread that queues a request, or goes to work, writes that before it looks for idle
// threads. So at least one sees the other: all of that is sequentially consistent. Several wake-ups
// of a group may end the wait of one thread only. So a thread that was woken takes what it runs
// next, and then looks again whom the rest is worth a wake-up (RequestThreads::PassOn).
//
// With one group nothing of this costs anything but a comparison of the number of groups.
//
// Thread: request threads and the watchdog, at once.
class ThreadGroups {
 public:
  // A queue refuses no request as too late while it holds fewer than its even share of
  // `short_count`, whatever the other queues hold. Borrows `batches`.
  ThreadGroups(std::vector<GroupPlan> plans, const servable::BatchRegistry& batches,
               size_t short_count);

  ThreadGroup& operator[](size_t index) { return *groups_[index]; }
  const ThreadGroup& operator[](size_t index) const { return *groups_[index]; }
  size_t size() const { return groups_.size(); }
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }

  // The group in which a thread waits. If a queue is not empty, it must not wait, but look and go
  // on.
  struct Place {
    ThreadGroup* group;
    bool has_queued;
  };

  // Counts a thread of `home` as idle, in its group or in another one that needs it. A thread that
  // may not run requests stays at home, and has nothing queued.
  Place Enter(ThreadGroup* home, bool can_run);
  // Returns a group with a thread that waits and may take the work of `group`: itself if possible;
  // null: there is none.
  ThreadGroup* FindIdle(ThreadGroup* group);
  // Returns a group of which a thread should be woken, because it can come to `group`, which has no
  // idle thread. Null if there is none, or if `group` has an idle thread.
  ThreadGroup* FindSpare(const ThreadGroup& group);
  // Returns a group with requests that may take a thread: `first` if possible; null: there is none.
  ThreadGroup* FindQueued(ThreadGroup* first);
  // True if a thread that may run requests waits in any group, and no spare thread would take its
  // place; asks `group` first. While only spare threads wait, a request had better join a batch:
  // there is a run for each core, or one that waits for an accelerator.
  bool HasFree(const ThreadGroup& group) const;

  // Adds to the queue of `group`. The limits of the batch registry hold for all queues together.
  RunQueue::Refused Add(ThreadGroup* group,
                        std::vector<std::shared_ptr<RunnableCall>>::iterator begin,
                        std::vector<std::shared_ptr<RunnableCall>>::iterator end, int64_t now_ns);
  // See RunQueue, for all queues.
  void SetPausedModels(const std::set<std::string>& models, int64_t now_ns);
  bool has_paused() const { return groups_.front()->queue.has_paused(); }
  int64_t refused_count() const;

  // --- How models share the threads (ThreadShares) ---

  // True while they do.
  bool is_shared() const { return shares_.is_shared(); }
  // The threads that a model may take now, while they do.
  size_t TakeableCount(const std::string& model) {
    return static_cast<size_t>(shares_.TakeableCount(ModelKeyOf(model)));
  }
  // Decides whether models share the threads, and how many each may take. The queues know more
  // models than `models`, those of long runs under way. Call it now and then, because models come
  // and go.
  void LimitThreads(const ServingThreads& threads, ActiveModels models, int64_t now_ns);
  // Releases the thread that the run of `charge` holds, if any. Returns the threads of its model if
  // requests that were held back may have one instead; otherwise null. Then call RecountHeldBack
  // before the thread waits or leaves.
  const ModelThreads* Release(RunCharge* charge);
  // Counts anew what may take a thread, in all queues that hold requests back, but for that of
  // `except`.
  void RecountHeldBack(const ThreadGroup* except = nullptr);

 private:
  // Returns a group without an idle thread if `place` has two; null: there is none.
  ThreadGroup* FindWithoutIdle(const ThreadGroup& place);

  const servable::BatchRegistry& batches_;
  ThreadShares shares_;
  std::vector<std::unique_ptr<ThreadGroup>> groups_;
};

}  // namespace millpond::rpc
