#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "native/rpc/awaiting_queue.h"
#include "native/rpc/group_plan.h"
#include "native/rpc/long_run.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/runnable_call.h"
#include "native/rpc/thread_groups.h"
#include "native/servable/batch_queue.h"
#include "native/servable/batch_registry.h"

namespace millpond::rpc {

// The source of requests: the network.
class EventSource {
 public:
  virtual ~EventSource() = default;
  // Waits for up to `timeout_ms` (-1: for ever) for something to do for a group of threads, does
  // it, and appends the requests that are to be run to `to_run`. `space` belongs to the calling
  // thread. Takes 1 from `idle_count`, if it is not null, as soon as the wait is over, because the
  // thread is busy from then on. Returns true if a Wake ended the wait. Any threads, at once.
  virtual bool HandleEvents(size_t group, int timeout_ms, ReceiveSpace* space,
                            std::vector<std::shared_ptr<RunnableCall>>* to_run,
                            std::atomic<int>* idle_count) = 0;
  // Ends the wait of one thread that waits for this group.
  virtual void Wake(size_t group) = 0;
  // Ends what has lasted too long. The watchdog calls it about once a second.
  virtual void CheckTimes(int64_t now_ns) = 0;
};

// The threads that serve. Each takes what the network has, and runs requests from start to end.
//
// Theory of operation. In the steady state there are as many threads as cores, in groups
// (ThreadGroups has what follows from that). With an accelerator there are spare ones, because a
// thread sleeps while its run is there: about as long as it computes, if requests are large. The
// threads of a group wait in one epoll set; the kernel wakes the one that was busy last. A thread
// that reads one request runs it at once: nothing is handed over. A thread that reads several
// requests runs the first and queues the rest (RunQueue) for the next free thread. It wakes another
// thread only if the queue holds more work than a wake-up costs. Between two runs a thread looks at
// the network every kLookNs, so that each request that has arrived is known: admitted, queued or
// refused.
//
// A run that lasts (a big model, a batch of 30 s) holds up no other request: the connection is free
// as soon as it was read. But if all threads are in such runs, none of them reads. So a watchdog
// looks every kStallNs. If each thread of a group has been busy with one request for as long, it
// starts another of that group, up to a limit for all groups. At the limit it starts one that runs
// no request: it reads, queues, refuses, and sees cancellations, which end the runs. It leaves when
// a thread that runs requests waits beside it, because the kernel wakes one of the two, and it
// would take the wake-ups of the other. A thread that returns from a long run leaves if the others
// suffice.
//
// Long runs of one model get no more than a share of the threads. While a model has its share, the
// queue holds its other requests back, and requests to other models pass. The watchdog may come too
// late: a model may have all threads before one of its runs is long. Then one thread beyond the
// limit runs the requests of the others.
//
// Promise: endless runs of one model leave a thread to the others, whatever the limit.
//
// Runs that are not long, or not yet, may hold all threads too: they wait for an accelerator, or
// compute. So while models share the threads there are up to twice as many, as far as the limit
// allows, and each model has a share of the rest (ThreadShares has the promise). So a model finds a
// thread at once, whatever another one sends. Threads that wait for an accelerator need no core;
// runs that compute share the cores by the kernel. A run of kHeldUpNs counts no more: it has its
// thread beyond these, until its model has its share of the limit.
//
// Long runs that compute give way to the others (long_run.h): the watchdog lowers the priority of
// such a thread, and starts another one in its place, so that as many threads as cores serve at the
// priority of requests. A lowered thread serves no other request: it ends after its run, because
// the kernel lets no thread raise itself again without a privilege. Until then it may lose its core
// at any instruction. So it takes no lock that other threads wait for but those that its run and
// its answer need: of its connection (microseconds, once), of malloc's arena (its own from then on,
// tf/core_share.h). If a thread waits for one of these, it leaves its core to the lowered thread.
// It takes no turn of an accelerator: the CPU answers its request. A thread that has such a turn,
// or waits for one, is lowered after it (base::KeptPriority).
//
// Thread: the control plane calls Start, PinToCores, Stop and Join, one at a time. Any thread may
// call awaiting, refused_count and is_shared.
class RequestThreads final {
 public:
  // A run that lasts so long holds its thread up. Models that are served with a tail in mind answer
  // faster, and a health check may wait this long without harm.
  static constexpr int64_t kStallNs = 10'000'000;
  // While models share the threads, a run that lasts so long is replaced by another thread.
  static constexpr int64_t kHeldUpNs = 1'000'000'000;
  // The time from one look at the network to the next while requests run. A look takes some µs,
  // for a system call or two.
  static constexpr int64_t kLookNs = 1'000'000;
  // A thread wakes another one if at least this much work is queued, because a wake-up takes up to
  // 50 µs in a virtual machine.
  static constexpr int64_t kWakeNs = 50'000;
  // The queue refuses no request while it holds fewer than this number for each thread that may
  // run requests, however long they wait.
  static constexpr size_t kWaitingPerThread = 2;

  // Runs the threads of `groups` in the steady state, and at most `max_count` that run requests, or
  // one more if one model has them all. With `is_bound` each thread stays on the cores of its
  // group's NUMA node. Borrows `source` and `batches`.
  RequestThreads(EventSource* source, const servable::BatchRegistry& batches,
                 std::vector<GroupPlan> groups, size_t max_count, bool is_bound = false);
  ~RequestThreads();
  RequestThreads(const RequestThreads&) = delete;
  RequestThreads& operator=(const RequestThreads&) = delete;

  void Start();
  // Binds each regular thread to a core of its own if `is_pinned`, and otherwise lets it run on any
  // core again, or on any of its node if the threads are bound. Returns false and changes nothing
  // unless there is exactly one regular thread for each core that the process may use. A thread
  // that relieves another one, or is spare, is never pinned, because the thread in whose stead it
  // serves keeps its core busy.
  bool PinToCores(bool is_pinned);

  // The requests that wait for a version. One whose wait is over runs within kStallNs.
  AwaitingQueue* awaiting() { return &awaiting_; }

  // The requests that the queue refused because they would have waited too long.
  int64_t refused_count() const { return groups_.refused_count(); }
  // True while models share the threads (ThreadShares).
  bool is_shared() const { return groups_.is_shared(); }

  // Tells all threads to end. A thread ends after its request.
  void Stop();
  // Waits until all threads have ended, or `timeout_ns` has passed. Returns true if they have.
  bool Join(int64_t timeout_ns);

 private:
  struct Thread;

  enum class Role {
    kRegular,
    kRelief,    // runs requests while regular threads are held up
    kAcceptor,  // reads, queues and refuses requests, and runs none
  };

  // Gives the batches that one thread runs the requests that wait in the queue.
  class QueueOfThread final : public servable::WaitingRequests {
   public:
    // The queue of `group`, from which the first request of the batch came.
    QueueOfThread(RequestThreads* threads, Thread* self, ThreadGroup* group)
        : threads_(*threads), self_(*self), group_(*group) {}
    // A thread that only requests of other models may take is not free for the batch.
    bool HasFreeThread() const override {
      if (group_.queue.holds_back()) return false;
      return threads_.groups_.HasFree(group_);
    }
    int64_t WaitingPerThread() const override {
      return static_cast<int64_t>(group_.queue.size() / group_.plan.thread_count);
    }
    std::unique_ptr<servable::WaitingRequest> Take(servable::BatchKey key,
                                                   size_t bytes_max) override;
    void EndTaking() override;

   private:
    std::unique_ptr<servable::WaitingRequest> TakeQueued(servable::BatchKey key, size_t bytes_max);

    RequestThreads& threads_;
    Thread& self_;
    ThreadGroup& group_;
    bool has_arrived_ = false;  // requests, since EndTaking, for which no thread was woken
  };

  struct Thread {
    bool CanRun() const { return role != Role::kAcceptor; }
    // True if it serves at the priority of requests, now and after its run.
    bool IsServing() const { return CanRun() && !has_ended && !gives_way; }
    bool IsStalled(int64_t now_ns) const { return IsBusyFor(kStallNs, now_ns); }
    // True if it has run one request for `ns` and more.
    bool IsBusyFor(int64_t ns, int64_t now_ns) const {
      const int64_t since_ns = busy_since_ns;
      return since_ns != 0 && now_ns - since_ns >= ns;
    }

    std::thread thread;
    Role role = Role::kRegular;
    ThreadGroup* group = nullptr;  // whose requests it runs first
    size_t core = 0;  // a regular thread's, of those of its group; beyond them: a spare one's
    std::atomic<pid_t> id{0};
    std::atomic<bool> is_counted{false};            // its run, if its model's threads are
    std::atomic<int64_t> busy_since_ns{0};          // 0: runs no request
    std::atomic<int64_t> modest_ns{INT64_MIN / 2};  // when its last run ended that was not greedy
    std::atomic<bool> gives_way{false};             // has a lower priority, and ends after its run
    std::mutex lowering_mutex;  // held to lower the thread, or by its run to forbid that
    std::atomic<bool> has_ended{false};
    LongRun long_run;                    // only the watchdog uses it
    std::mutex call_mutex;               // held to change or read what follows
    std::shared_ptr<RunnableCall> call;  // that runs; null between two runs
    bool is_greedy = false;              // the run
    // Only the thread itself uses what follows.
    ReceiveSpace space;
    std::vector<std::shared_ptr<RunnableCall>> arrived;
    int64_t now_ns = 0;     // at its last look at the clock
    int64_t looked_ns = 0;  // when it last looked at all that the network holds
    // The longest of about its last hundred runs, from which it expects how long the queue takes.
    // At first it is kWakeNs, so that a thread without runs wakes another one.
    int64_t run_ns = kWakeNs;
    int64_t last_run_ns = 0;
    uint64_t passed_count = 0;  // runs that no queue has charged
    RunCharge charge;           // of its last run, in the queue of
    ThreadGroup* charging_group = nullptr;
    // The model whose thread its last run left to requests that were held back; null: to none.
    const ModelThreads* freed = nullptr;
  };

  struct NewThread {
    Role role;
    ThreadGroup* group;
    size_t core;
  };

  // Each thread that serves is in one of the counts.
  struct LongRuns {
    std::map<std::string, size_t> counts_by_model;
    size_t able_count = 0;  // threads that may take a request of any model before the next look
  };

  // All of these need mutex_.
  void AddThread(Role role, ThreadGroup* group, size_t core = 0);
  void TryAddThread(Role role, ThreadGroup* group, size_t core = 0);
  void Pin(Thread* thread);

  // --- called by the thread `self` ---
  void Serve(Thread* self);
  bool Look(Thread* self, ThreadGroup* group, bool wakes = true);
  void WaitForEvents(Thread* self);
  std::shared_ptr<RunnableCall> TakeNext(Thread* self, ThreadGroup* group);
  void SettleRun(Thread* self);
  static bool IsNoted(Thread* self);
  bool RunNext(Thread* self, ThreadGroup* group);
  void RunNextOfAny(Thread* self);
  void PassOn(const Thread& self);
  void PassFreed(Thread* self);
  void WakeSpare(const ThreadGroup& group);
  void Run(Thread* self, ThreadGroup* group, const std::shared_ptr<RunnableCall>& call);
  // Queues what has arrived, and refuses what the queue does not take. Returns false if nothing has
  // arrived.
  bool QueueArrived(Thread* self, ThreadGroup* group, size_t from, bool wakes = true);
  void WakeIfWorth(const Thread& self, ThreadGroup* group);
  bool LeaveIfSuperfluous(Thread* self);
  bool IsNeeded(const Thread& self, int64_t now_ns) const;  // needs mutex_

  // --- called by the watchdog ---
  void Watch();
  // The threads to start, so that as many of each group serve at the priority of requests as it
  // has regular ones, and one at least is not held up. Needs mutex_.
  std::vector<NewThread> PlanNewThreads(const LongRuns& long_runs, int64_t now_ns) const;
  // Decides whether models share the threads. Needs mutex_.
  void LookAtSharing(const LongRuns& long_runs, int64_t now_ns);
  ServingThreads CountForSharing(int64_t now_ns) const;  // needs mutex_
  // The threads beyond those of the steady state, while models share them: of all groups, or of
  // one now.
  size_t SpareCount() const { return std::min(max_count_ - regular_count_, regular_count_); }
  size_t SpareCount(const ThreadGroup& group) const;
  // The threads of the group that run requests, but for those that `ns` and more have held up.
  // Needs mutex_.
  size_t CountServing(const ThreadGroup& group, int64_t ns, int64_t now_ns) const;
  // The most threads that may run requests now.
  size_t CountMax(const LongRuns& long_runs) const;
  void WakeForQueue(ThreadGroup* group);
  bool HasAcceptor(const ThreadGroup& group) const;  // needs mutex_
  // True if no thread waits for the requests of the group, and none will when its run ends: the
  // threads of the group wait for those of other groups. Needs mutex_.
  bool IsUnread(const ThreadGroup& group, int64_t now_ns) const;
  // True if a thread that runs requests, maybe of another group, waits for those of the group.
  static bool HasReader(const ThreadGroup& group);
  // The cores of regular threads that no serving thread has. Needs mutex_.
  std::vector<size_t> FreeCores(const ThreadGroup& group) const;
  // Cancels the long runs whose deadline has passed, lets the greedy ones give way, and counts
  // those of each model. Needs mutex_.
  LongRuns LookAtLongRuns(int64_t now_ns);
  // The same for one thread. Returns false if it has no long run.
  bool LookAtLongRun(Thread* thread, int64_t now_ns,
                     std::map<std::string, size_t>* counts_by_model);
  int64_t LastModestNs() const;                       // needs mutex_
  size_t CountLowered() const;                        // needs mutex_
  void LookForGreed(Thread* thread, int64_t now_ns);  // needs mutex_ and the thread's call_mutex
  // Has the queues hold back the models whose long runs may get more than their share of the
  // threads before the next look, when the planned threads run requests too. Needs mutex_.
  void ShareThreads(const LongRuns& long_runs, const std::vector<NewThread>& planned,
                    int64_t now_ns);
  void RunDueAwaiting(int64_t now_ns);
  void ReapThreads();  // needs mutex_

  // --- called by both ---
  bool HaveAllEnded();
  // Needs mutex_.
  size_t CountAble(const ThreadGroup& group, int64_t now_ns, const Thread* except) const;
  void WakeAll();

  EventSource* const source_;
  const size_t regular_count_;
  const size_t spare_count_;
  const size_t max_count_;
  const size_t share_of_model_;  // threads that long runs of one model may take
  const bool is_bound_;
  int64_t sharing_due_ns_ = 0;         // of the next LookAtSharing; the watchdog's
  const std::vector<int> cores_;       // of all groups
  bool is_pinned_ = false;             // guarded by mutex_
  int64_t modest_ns_ = INT64_MIN / 2;  // when a run last ended that was not greedy; the watchdog's

  ThreadGroups groups_;
  AwaitingQueue awaiting_;
  alignas(64) std::atomic<bool> is_stopping_{false};

  std::mutex mutex_;  // a request thread takes it only after a run that held the thread up
  std::condition_variable watch_changed_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::thread watchdog_;
};

}  // namespace millpond::rpc
