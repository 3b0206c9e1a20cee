#include "native/rpc/request_threads.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "native/base/clock.h"
#include "native/base/giving_way.h"
#include "native/base/other_thread.h"
#include "native/base/thread_cores.h"
#include "native/servable/answer_requests.h"

namespace millpond::rpc {
namespace {

constexpr int64_t kCheckTimesNs = 1'000'000'000;
constexpr int64_t kJoinPollNs = 1'000'000;
constexpr int64_t kLookAtSharingNs = 50'000'000;

// Each shorter run takes a 64th of the difference off Thread::run_ns, so that a long run is
// forgotten after some hundred short ones.
constexpr int64_t kFade = 64;
// The queue is told of one in so many short runs that pass it.
constexpr uint64_t kNotedOneOf = 16;

base::Status TooLate() {
  return {
      base::Code::kResourceExhausted,
      "the server has more requests than it can run, and the request would wait for longer than "
      "1/" +
          std::to_string(RunQueue::kDelayShare) +
          " of its deadline; try again later, or use another server"};
}

std::vector<int> CoresOf(const std::vector<GroupPlan>& groups) {
  std::vector<int> cores;
  for (const GroupPlan& group : groups) {
    cores.insert(cores.end(), group.cores.begin(), group.cores.end());
  }
  return cores;
}

// Returns the number of threads in the steady state, with or without the spare ones.
size_t CountThreads(const std::vector<GroupPlan>& groups, bool with_spare) {
  size_t count = 0;
  for (const GroupPlan& group : groups) {
    count += with_spare ? group.all_count() : group.thread_count;
  }
  return count;
}

}  // namespace

RequestThreads::RequestThreads(EventSource* source, const servable::BatchRegistry& batches,
                               std::vector<GroupPlan> groups, size_t max_count, bool is_bound)
    : source_(source),
      regular_count_(CountThreads(groups, /*with_spare=*/false)),
      spare_count_(CountThreads(groups, /*with_spare=*/true) - regular_count_),
      max_count_(std::max(max_count, CountThreads(groups, /*with_spare=*/true))),
      share_of_model_(std::max<size_t>(
          max_count_ > regular_count_ ? max_count_ - regular_count_ : max_count_ - 1, 1)),
      is_bound_(is_bound),
      cores_(CoresOf(groups)),
      groups_(std::move(groups), batches, kWaitingPerThread * max_count_) {}

RequestThreads::~RequestThreads() {
  Stop();
  (void)Join(INT64_MAX);
}

void RequestThreads::Start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& group : groups_) {
    for (size_t i = 0; i < group->plan.all_count(); ++i) {
      AddThread(Role::kRegular, group.get(), i);
    }
  }
  watchdog_ = std::thread([this] { Watch(); });
  pthread_setname_np(watchdog_.native_handle(), "watchdog");
}

void RequestThreads::AddThread(Role role, ThreadGroup* group, size_t core) {
  auto thread = std::make_unique<Thread>();
  thread->role = role;
  thread->group = group;
  thread->core = core;
  thread->thread = std::thread([this, self = thread.get()] { Serve(self); });
  const std::string name = "request-" + std::to_string(threads_.size());
  pthread_setname_np(thread->thread.native_handle(), name.c_str());
  threads_.push_back(std::move(thread));
  if (is_pinned_) Pin(threads_.back().get());
}

void RequestThreads::TryAddThread(Role role, ThreadGroup* group, size_t core) {
  try {
    AddThread(role, group, core);
  } catch (const std::system_error&) {
    // The system has no thread left. The watchdog tries again at its next look.
  }
}

bool RequestThreads::PinToCores(bool is_pinned) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool has_core_each = std::all_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group->plan.cores.size() == group->plan.thread_count;
  });
  if (!has_core_each) return false;
  is_pinned_ = is_pinned;
  for (const auto& thread : threads_) {
    if (!thread->has_ended) Pin(thread.get());
  }
  return true;
}

void RequestThreads::Pin(Thread* thread) {
  const GroupPlan& plan = thread->group->plan;
  const bool is_regular = thread->role == Role::kRegular;
  const bool has_core = is_regular && thread->core < plan.cores.size();
  const bool has_own = is_pinned_ && has_core && !thread->gives_way;
  if (!has_own && !is_bound_ && !is_regular) return;
  const std::vector<int>& shared = is_bound_ ? plan.node_cores : cores_;
  // If the core has gone offline since, the thread keeps its cores.
  (void)base::RestrictToCores(thread->thread.native_handle(),
                              has_own ? std::vector<int>{plan.cores[thread->core]} : shared);
}

// --- A thread ---

void RequestThreads::Serve(Thread* self) {
  if (is_bound_) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Pin(self);
  }
  const base::GivingWayScope giving_way(&self->gives_way, &self->lowering_mutex);
  self->id = base::CurrentThreadId();
  self->looked_ns = self->now_ns = base::MonotonicNs();
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    if (self->freed != nullptr && self->group->queue.holds_back()) self->group->queue.Recount();
    // Also if nothing is queued, because a wait takes one event: without a look, requests would
    // run in the order in which the kernel reports their connections, whatever their models.
    if (self->CanRun() && self->now_ns - self->looked_ns >= kLookNs) Look(self, self->group);
    if (self->CanRun() && self->group->queue.ready_count() > 0 && RunNext(self, self->group)) {
      if (LeaveIfSuperfluous(self)) break;
      continue;
    }
    WaitForEvents(self);
    if (LeaveIfSuperfluous(self)) break;
  }
  self->has_ended = true;
  // It may have been about to take the next request.
  PassFreed(self);
  if (self->group->queue.ready_count() > 0) WakeForQueue(self->group);
  // Wakes the next threads, which end in the same way.
  if (is_stopping_) WakeAll();
}

// No request is overlooked, because a thread counts as idle before it looks at the queues, and a
// request is queued before WakeIfWorth looks for idle threads. So at least one sees the other.
void RequestThreads::WaitForEvents(Thread* self) {
  // Its own queue has counted anew. The queues of other groups do before it waits.
  if (std::exchange(self->freed, nullptr) != nullptr) groups_.RecountHeldBack(self->group);
  const auto [group, has_queued] = groups_.Enter(self->group, self->CanRun());
  const bool must_look = has_queued || is_stopping_.load();
  const bool is_woken = source_->HandleEvents(group->index, must_look ? 0 : -1, &self->space,
                                              &self->arrived, &group->idle_count);
  if (self->CanRun()) group->free_count.fetch_sub(1);
  WakeSpare(*group);
  self->now_ns = base::MonotonicNs();
  // A wait takes one event, and leaves the others to the network.
  if (must_look || is_woken) self->looked_ns = self->now_ns;
  const bool passes_on = groups_.size() > 1 && self->CanRun() && (is_woken || has_queued);
  if (self->arrived.empty()) {
    if (passes_on) RunNextOfAny(self);
    return;
  }
  RunCharge charge;
  const bool runs_first =
      self->CanRun() && group->queue.TryPass(self->arrived.front().get(), self->now_ns, &charge);
  std::shared_ptr<RunnableCall> first;
  if (runs_first) first = std::move(self->arrived.front());
  QueueArrived(self, group, runs_first ? 1 : 0);
  if (passes_on) PassOn(*self);
  if (first == nullptr) return;
  SettleRun(self);
  self->charging_group = group;
  self->charge = std::move(charge);
  Run(self, group, first);
}

// Takes a request before it passes the wake-up on, so that no thread is woken for that request.
void RequestThreads::RunNextOfAny(Thread* self) {
  ThreadGroup* const group = groups_.FindQueued(self->group);
  const std::shared_ptr<RunnableCall> call = group == nullptr ? nullptr : TakeNext(self, group);
  PassOn(*self);
  if (call != nullptr) Run(self, group, call);
}

// Looks whom the work of all groups is worth a wake-up, because the one that `self` had may have
// stood for several. An acceptor does so only when it leaves: acceptors would wake one another for
// ever.
void RequestThreads::PassOn(const Thread& self) {
  for (const auto& group : groups_) {
    WakeIfWorth(self, group.get());
    WakeSpare(*group);
  }
}

// Wakes threads for the requests that may have the thread of the last run, unless the next run has
// it.
void RequestThreads::PassFreed(Thread* self) {
  const ModelThreads* const freed = std::exchange(self->freed, nullptr);
  if (freed == nullptr || freed == self->charge.threads) return;
  groups_.RecountHeldBack();
  for (const auto& group : groups_) {
    if (group->queue.ready_count() > 0) WakeForQueue(group.get());
  }
}

// Wakes a thread that can come to `group`, if the group has no idle one.
void RequestThreads::WakeSpare(const ThreadGroup& group) {
  if (const ThreadGroup* const spare = groups_.FindSpare(group)) source_->Wake(spare->index);
}

bool RequestThreads::Look(Thread* self, ThreadGroup* group, bool wakes) {
  const bool is_woken =
      source_->HandleEvents(group->index, 0, &self->space, &self->arrived, nullptr);
  self->now_ns = self->looked_ns = base::MonotonicNs();
  const bool has_arrived = QueueArrived(self, group, 0, wakes);
  // The wake-up was for a thread that waits.
  if (is_woken && groups_.size() > 1 && self->CanRun()) PassOn(*self);
  return has_arrived;
}

bool RequestThreads::QueueArrived(Thread* self, ThreadGroup* group, size_t from, bool wakes) {
  const bool has_arrived = self->arrived.size() > from;
  if (has_arrived) {
    for (size_t i = from; i < self->arrived.size(); ++i) self->arrived[i]->PeekQueueKeys();
    const auto begin = self->arrived.begin() + static_cast<std::ptrdiff_t>(from);
    const auto refused = groups_.Add(group, begin, self->arrived.end(), self->now_ns);
    if (wakes) WakeIfWorth(*self, group);
    for (const std::shared_ptr<RunnableCall>& call : refused.too_late) call->Refuse(TooLate());
    for (const std::shared_ptr<RunnableCall>& call : refused.too_many)
      call->Refuse(servable::BatchRegistry::Refusal());
  }
  self->arrived.clear();
  return has_arrived;
}

void RequestThreads::WakeIfWorth(const Thread& self, ThreadGroup* group) {
  const auto count = static_cast<int64_t>(group->queue.ready_count());
  if (count == 0) return;
  if (!self.CanRun() || self.run_ns * count >= kWakeNs) WakeForQueue(group);
}

void RequestThreads::WakeForQueue(ThreadGroup* group) {
  if (const ThreadGroup* const idle = groups_.FindIdle(group)) source_->Wake(idle->index);
}

std::shared_ptr<RunnableCall> RequestThreads::TakeNext(Thread* self, ThreadGroup* group) {
  if (self->charging_group != group) SettleRun(self);
  self->charging_group = group;
  return group->queue.Take(self->now_ns, &self->charge);
}

// Settles the last run of a thread that takes no request of its group next, or held its place.
void RequestThreads::SettleRun(Thread* self) {
  const RunCharge charge = std::exchange(self->charge, {});
  if (charge.model != kNoModelKey) self->charging_group->queue.Settle(charge);
}

bool RequestThreads::RunNext(Thread* self, ThreadGroup* group) {
  const std::shared_ptr<RunnableCall> call = TakeNext(self, group);
  if (call == nullptr) return false;
  // Another thread takes the rest if this run lasts.
  WakeIfWorth(*self, group);
  PassFreed(self);
  Run(self, group, call);
  return true;
}

// True if the queue is to know of a run that passes it: if runs are long, and now and then.
bool RequestThreads::IsNoted(Thread* self) {
  if (self->charge.model != kNoModelKey) return false;
  return self->run_ns >= ThreadShares::kLongRunNs || ++self->passed_count % kNotedOneOf == 0;
}

void RequestThreads::Run(Thread* self, ThreadGroup* group,
                         const std::shared_ptr<RunnableCall>& call) {
  const int64_t begin_ns = base::MonotonicNs();
  const bool is_noted = IsNoted(self);
  if (is_noted) call->PeekQueueKeys();
  // Read here, because a call that waits for a version is another thread's after this run.
  const ModelKey noted = is_noted ? call->model_key() : kNoModelKey;
  const bool needs_none = self->charge.model == kNoSuchModelKey;
  self->is_counted.store(self->charge.threads != nullptr || needs_none, std::memory_order_relaxed);
  // Before the call is read, because decompressing it may hold the thread up too.
  self->busy_since_ns.store(begin_ns);
  // Before the call is shown, because the watchdog asks a call that it sees for its model.
  call->Read();
  {
    const std::lock_guard<std::mutex> lock(self->call_mutex);
    self->call = call;
  }
  bool is_greedy = false;
  {
    CallBeingAnswered request(call);
    QueueOfThread queue(this, self, group);
    servable::AnswerRequests(&request, &queue);
    self->busy_since_ns.store(0);
    // Before `request` ends, because the watchdog may still ask the call for its model.
    const std::lock_guard<std::mutex> lock(self->call_mutex);
    self->call = nullptr;
    is_greedy = std::exchange(self->is_greedy, false);
  }
  self->now_ns = base::MonotonicNs();
  if (!is_greedy) self->modest_ns.store(self->now_ns, std::memory_order_relaxed);
  self->last_run_ns = self->now_ns - begin_ns;
  self->charge.took_ns = self->last_run_ns;
  self->freed = groups_.Release(&self->charge);
  // A thread of lower priority takes no lock of the queue.
  if (is_noted && self->charge.model == kNoModelKey && !self->gives_way) {
    group->queue.NotePassed(noted, self->last_run_ns, self->now_ns);
  }
  const bool is_longer = self->last_run_ns >= self->run_ns;
  self->run_ns =
      is_longer ? self->last_run_ns : self->run_ns - (self->run_ns - self->last_run_ns) / kFade;
}

// Within the run of a large request, the batch asks for requests of any key, to give them a turn.
// It asks often, so the network is looked at only every kLookNs. A thread that gives way takes
// none, because they would have its priority.
std::unique_ptr<servable::WaitingRequest> RequestThreads::QueueOfThread::Take(
    servable::BatchKey key, size_t bytes_max) {
  if (self_.gives_way) return nullptr;
  if (key == servable::kNoBatchKey) {
    self_.now_ns = base::MonotonicNs();
    if (self_.now_ns - self_.looked_ns >= kLookNs) threads_.Look(&self_, &group_);
    return TakeQueued(key, bytes_max);
  }
  if (auto queued = TakeQueued(key, bytes_max)) return queued;
  // The network may hold a request of the key that no thread has read yet. It is read here even if
  // a thread is free, because that thread may have to wait for a core. No thread is woken for it,
  // because it would come too late: this batch takes it at once.
  if (!threads_.Look(&self_, &group_, /*wakes=*/false)) return nullptr;
  has_arrived_ = true;
  return TakeQueued(key, bytes_max);
}

void RequestThreads::QueueOfThread::EndTaking() {
  if (std::exchange(has_arrived_, false)) threads_.WakeIfWorth(self_, &group_);
}

std::unique_ptr<servable::WaitingRequest> RequestThreads::QueueOfThread::TakeQueued(
    servable::BatchKey key, size_t bytes_max) {
  if (group_.queue.size() == 0) return nullptr;
  self_.call->PeekQueueKeys();
  std::shared_ptr<RunnableCall> call =
      group_.queue.TakeFor(self_.call->model_key(), key, bytes_max, &self_.charge);
  return call == nullptr ? nullptr : std::make_unique<CallBeingAnswered>(std::move(call));
}

bool RequestThreads::LeaveIfSuperfluous(Thread* self) {
  // Without the lock, because a thread of lower priority may lose its core while it has it. For the
  // same reason it settles nothing.
  if (self->gives_way) return true;
  const bool was_stalled = std::exchange(self->last_run_ns, 0) >= kStallNs;
  const bool is_spare = self->role == Role::kRelief && self->group->has_surplus.load();
  if (self->CanRun() && !was_stalled && !is_spare) return false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (IsNeeded(*self, base::MonotonicNs())) return false;
    self->has_ended = true;
  }
  // It may have had the wake-up of a thread that runs requests.
  if (!self->CanRun()) PassOn(*self);
  return true;
}

bool RequestThreads::IsNeeded(const Thread& self, int64_t now_ns) const {
  const size_t able_count = CountAble(*self.group, now_ns, &self);
  const GroupPlan& plan = self.group->plan;
  const size_t spare_count = std::max(plan.spare_count, SpareCount(*self.group));
  if (self.CanRun()) return able_count < plan.thread_count + spare_count;
  return able_count == 0 ? !HasReader(*self.group) : IsUnread(*self.group, now_ns);
}

size_t RequestThreads::CountAble(const ThreadGroup& group, int64_t now_ns,
                                 const Thread* except) const {
  return static_cast<size_t>(
      std::count_if(threads_.begin(), threads_.end(), [&](const auto& thread) {
        return thread.get() != except && &group == thread->group && thread->IsServing() &&
               !thread->IsStalled(now_ns);
      }));
}

// --- The watchdog ---

void RequestThreads::Watch() {
  int64_t checked_ns = base::MonotonicNs();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!watch_changed_.wait_for(lock, std::chrono::nanoseconds(kStallNs),
                                  [this] { return is_stopping_.load(); })) {
    const int64_t now_ns = base::MonotonicNs();
    ReapThreads();
    const LongRuns long_runs = LookAtLongRuns(now_ns);
    LookAtSharing(long_runs, now_ns);
    const std::vector<NewThread> planned = PlanNewThreads(long_runs, now_ns);
    // Before they start, because a thread takes a request at once.
    ShareThreads(long_runs, planned, now_ns);
    for (const NewThread& thread : planned) TryAddThread(thread.role, thread.group, thread.core);
    lock.unlock();
    RunDueAwaiting(now_ns);
    if (now_ns - checked_ns >= kCheckTimesNs) {
      checked_ns = now_ns;
      source_->CheckTimes(now_ns);
    }
    lock.lock();
  }
}

size_t RequestThreads::CountMax(const LongRuns& long_runs) const {
  const auto& counts = long_runs.counts_by_model;
  const bool has_one_all = std::any_of(counts.begin(), counts.end(), [this](const auto& count) {
    return count.second >= max_count_;
  });
  return max_count_ + (has_one_all ? 1 : 0);
}

std::vector<RequestThreads::NewThread> RequestThreads::PlanNewThreads(const LongRuns& long_runs,
                                                                      int64_t now_ns) const {
  const size_t count_max = CountMax(long_runs);
  auto running_count =
      static_cast<size_t>(std::count_if(threads_.begin(), threads_.end(), [](const auto& thread) {
        return !thread->has_ended && thread->CanRun();
      }));
  std::vector<NewThread> planned;
  for (const auto& group : groups_) {
    size_t able_count = CountAble(*group, now_ns, nullptr);
    for (const size_t core : FreeCores(*group)) {
      if (running_count >= count_max) break;
      planned.push_back({Role::kRegular, group.get(), core});
      ++running_count;
      ++able_count;
    }
    size_t spare_count = CountServing(*group, kHeldUpNs, now_ns);
    const size_t wanted_count = group->plan.thread_count + SpareCount(*group);
    for (; SpareCount(*group) > 0 && spare_count < wanted_count; ++spare_count) {
      if (running_count >= count_max) break;
      planned.push_back({Role::kRelief, group.get(), 0});
      ++running_count;
      ++able_count;
    }
    if (able_count > 0 && !IsUnread(*group, now_ns)) continue;
    if (able_count == 0 && running_count < count_max) {
      planned.push_back({Role::kRelief, group.get(), 0});
      ++running_count;
    } else if (!HasAcceptor(*group) && !HasReader(*group)) {
      planned.push_back({Role::kAcceptor, group.get(), 0});
    }
  }
  return planned;
}

size_t RequestThreads::CountServing(const ThreadGroup& group, int64_t ns, int64_t now_ns) const {
  return static_cast<size_t>(
      std::count_if(threads_.begin(), threads_.end(), [&](const auto& thread) {
        return thread->group == &group && thread->IsServing() && !thread->IsBusyFor(ns, now_ns);
      }));
}

void RequestThreads::LookAtSharing(const LongRuns& long_runs, int64_t now_ns) {
  const auto stalled_count =
      static_cast<size_t>(std::count_if(threads_.begin(), threads_.end(), [&](const auto& thread) {
        return thread->IsServing() && thread->IsStalled(now_ns);
      }));
  const bool are_all_stalled = stalled_count >= regular_count_;
  if (!are_all_stalled && now_ns < sharing_due_ns_) return;
  const bool was_shared = groups_.is_shared();
  const ServingThreads threads = CountForSharing(now_ns);
  // No queue may know a model whose first runs have not ended.
  ActiveModels models;
  models.has_long_run = are_all_stalled;
  for (const auto& [model, count] : long_runs.counts_by_model) {
    if (!model.empty()) models.keys.insert(ModelKeyOf(model));
  }
  groups_.LimitThreads(threads, std::move(models), now_ns);
  // At the next look, if runs from before the models shared the threads may have ended by then.
  const bool is_begin = groups_.is_shared() && threads.uncounted_count > 0;
  sharing_due_ns_ = now_ns + (is_begin ? kStallNs : kLookAtSharingNs);
  for (const auto& group : groups_) {
    const bool had_surplus = group->has_surplus || was_shared;
    group->has_surplus = had_surplus && !groups_.is_shared() &&
                         CountServing(*group, INT64_MAX, now_ns) > group->plan.all_count();
  }
}

ServingThreads RequestThreads::CountForSharing(int64_t now_ns) const {
  ServingThreads threads;
  threads.regular_count = static_cast<int64_t>(regular_count_);
  threads.spare_count = static_cast<int64_t>(SpareCount());
  threads.max_count = static_cast<int64_t>(max_count_);
  threads.lowered_count = static_cast<int64_t>(CountLowered());
  for (const auto& thread : threads_) {
    if (!thread->IsServing()) continue;
    threads.held_up_count += thread->IsBusyFor(kHeldUpNs, now_ns) ? 1 : 0;
    threads.uncounted_count += thread->busy_since_ns != 0 && !thread->is_counted ? 1 : 0;
  }
  return threads;
}

// All groups together have SpareCount().
size_t RequestThreads::SpareCount(const ThreadGroup& group) const {
  if (!groups_.is_shared()) return 0;
  size_t before = 0;
  for (size_t i = 0; i < group.index; ++i) before += groups_[i].plan.thread_count;
  const auto spare_before = [&](size_t count) { return SpareCount() * count / regular_count_; };
  return spare_before(before + group.plan.thread_count) - spare_before(before);
}

bool RequestThreads::IsUnread(const ThreadGroup& group, int64_t now_ns) const {
  if (groups_.size() == 1 || group.idle_count > 0) return false;
  return std::none_of(threads_.begin(), threads_.end(), [&](const auto& thread) {
    return thread->group == &group && thread->IsServing() && thread->busy_since_ns != 0 &&
           !thread->IsStalled(now_ns);
  });
}

bool RequestThreads::HasReader(const ThreadGroup& group) { return group.free_count > 0; }

bool RequestThreads::HasAcceptor(const ThreadGroup& group) const {
  return std::any_of(threads_.begin(), threads_.end(), [&](const auto& thread) {
    return thread->group == &group && !thread->has_ended && !thread->CanRun();
  });
}

// As many as the group lacks of threads that serve.
std::vector<size_t> RequestThreads::FreeCores(const ThreadGroup& group) const {
  const auto is_serving = [&](const auto& thread) {
    return thread->group == &group && thread->IsServing();
  };
  const auto serving_count =
      static_cast<size_t>(std::count_if(threads_.begin(), threads_.end(), is_serving));
  std::vector<size_t> cores;
  // Nearly always, and then it takes no memory.
  if (serving_count >= group.plan.all_count()) return cores;
  std::set<size_t> taken;
  for (const auto& thread : threads_) {
    if (thread->role == Role::kRegular && is_serving(thread)) taken.insert(thread->core);
  }
  for (size_t core = 0; serving_count + cores.size() < group.plan.all_count(); ++core) {
    if (taken.count(core) == 0) cores.push_back(core);
  }
  return cores;
}

RequestThreads::LongRuns RequestThreads::LookAtLongRuns(int64_t now_ns) {
  LongRuns long_runs;
  modest_ns_ = std::max(modest_ns_, LastModestNs());
  for (const auto& thread : threads_) {
    if (!LookAtLongRun(thread.get(), now_ns, &long_runs.counts_by_model)) {
      long_runs.able_count += thread->IsServing() ? 1 : 0;
    }
  }
  return long_runs;
}

bool RequestThreads::LookAtLongRun(Thread* thread, int64_t now_ns,
                                   std::map<std::string, size_t>* counts_by_model) {
  if (!thread->IsStalled(now_ns)) return false;
  // A thread that has the lock ends its run. If it gives way, that may take long.
  const std::unique_lock<std::mutex> lock(thread->call_mutex, std::try_to_lock);
  if (!lock || thread->call == nullptr) return false;
  // A run ends by itself at the deadline that its client set. A deadline that the server set ends
  // it from here.
  if (now_ns >= thread->call->run_context().deadline_ns) thread->call->Cancel(now_ns);
  (*counts_by_model)[thread->call->PeekModelName()] += 1;
  LookForGreed(thread, now_ns);
  return true;
}

int64_t RequestThreads::LastModestNs() const {
  int64_t last_ns = INT64_MIN / 2;
  for (const auto& thread : threads_) last_ns = std::max(last_ns, thread->modest_ns.load());
  return last_ns;
}

size_t RequestThreads::CountLowered() const {
  return static_cast<size_t>(
      std::count_if(threads_.begin(), threads_.end(),
                    [](const auto& thread) { return thread->gives_way && !thread->has_ended; }));
}

void RequestThreads::LookForGreed(Thread* thread, int64_t now_ns) {
  if (thread->gives_way || !thread->CanRun()) return;
  const pthread_t handle = thread->thread.native_handle();
  thread->is_greedy = thread->long_run.IsGreedy(thread->busy_since_ns, base::ThreadCpuNs(handle));
  if (!MustGiveWay(thread->is_greedy, modest_ns_, now_ns)) return;
  // A thread that others wait for is looked at again, when they do not.
  const std::unique_lock<std::mutex> lowering(thread->lowering_mutex, std::try_to_lock);
  if (!lowering || !base::LowerThread(thread->id, StepsOfLowering(CountLowered())).ok()) return;
  thread->gives_way = true;
  // The thread itself takes no lock of the queue any more.
  RunQueue& queue = thread->charging_group->queue;
  if (queue.SettleEarly(&thread->charge, now_ns - thread->busy_since_ns)) groups_.RecountHeldBack();
  if (is_pinned_) Pin(thread);
}

void RequestThreads::ShareThreads(const LongRuns& long_runs, const std::vector<NewThread>& planned,
                                  int64_t now_ns) {
  const auto new_count = static_cast<size_t>(
      std::count_if(planned.begin(), planned.end(),
                    [](const NewThread& thread) { return thread.role != Role::kAcceptor; }));
  // At least one, because a run of another model may end before the next look. A model gets no
  // spare thread if it has the others.
  size_t able_count = std::max<size_t>(long_runs.able_count + new_count, 1);
  able_count -= std::min(able_count - 1, spare_count_);
  std::set<std::string> models;
  for (const auto& [model, count] : long_runs.counts_by_model) {
    const size_t takeable_count = groups_.is_shared() ? groups_.TakeableCount(model) : able_count;
    if (count + std::min(able_count, takeable_count) > share_of_model_) models.insert(model);
  }
  if (!models.empty() || groups_.has_paused()) groups_.SetPausedModels(models, now_ns);
  // Requests for which no thread was woken when they came may be worth it by now: a run lasts
  // longer than those before it, or their model may run again.
  for (const auto& group : groups_) {
    if (group->queue.ready_count() > 0) WakeForQueue(group.get());
  }
}

void RequestThreads::RunDueAwaiting(int64_t now_ns) {
  auto due = awaiting_.TakeDue(now_ns);
  if (due.empty()) return;
  // All in one queue, because they stay in their order.
  for (auto& call : due) groups_[0].queue.AddAgain(std::move(call), now_ns);
  WakeForQueue(&groups_[0]);
}

void RequestThreads::ReapThreads() {
  // A thread that gives way may take long to end, and a join would wait for it.
  const auto gone = std::partition(threads_.begin(), threads_.end(), [](const auto& thread) {
    return !thread->has_ended || (thread->gives_way && !base::IsThreadGone(thread->id));
  });
  for (auto thread = gone; thread != threads_.end(); ++thread) (*thread)->thread.join();
  threads_.erase(gone, threads_.end());
}

// --- The end ---

void RequestThreads::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  watch_changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  WakeAll();
}

void RequestThreads::WakeAll() {
  for (const auto& group : groups_) source_->Wake(group->index);
}

bool RequestThreads::HaveAllEnded() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(threads_.begin(), threads_.end(),
                     [](const auto& thread) { return thread->has_ended.load(); });
}

bool RequestThreads::Join(int64_t timeout_ns) {
  const int64_t begin_ns = base::MonotonicNs();
  // Waits without the lock, because a thread that ends may need it.
  while (!HaveAllEnded()) {
    if (base::MonotonicNs() - begin_ns >= timeout_ns) return false;
    WakeAll();
    base::SleepNs(kJoinPollNs);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& thread : threads_) thread->thread.join();
  threads_.clear();
  return true;
}

}  // namespace millpond::rpc
