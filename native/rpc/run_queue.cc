#include "native/rpc/run_queue.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace millpond::rpc {
namespace {

using Calls = std::vector<std::shared_ptr<RunnableCall>>;

// A cost is a mean of about so many runs.
constexpr int64_t kCostRuns = 8;
// A run that takes more times its mean counts as so many.
constexpr int64_t kLateFactor = 4;
// A request costs its thread at least this.
constexpr int64_t kCostNsMin = 1'000;
// The number of models that keep their cost while they have no request.
constexpr size_t kIdleShares = 256;

}  // namespace

// --- Adding ---

RunQueue::Refused RunQueue::Add(Calls::iterator begin, Calls::iterator end, int64_t now_ns,
                                const WaitingElsewhere& elsewhere) {
  Refused refused;
  std::for_each(begin, end, [](const auto& call) { call->PeekQueueKeys(); });
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto call = begin; call != end; ++call) {
    if (IsTooMany(**call, elsewhere)) {
      refused.too_many.push_back(std::move(*call));
    } else if (IsTooLate(**call, now_ns)) {
      refused.too_late.push_back(std::move(*call));
    } else {
      Push(std::move(*call), now_ns);
    }
  }
  CountReady();
  refused_count_.fetch_add(static_cast<int64_t>(refused.too_late.size()),
                           std::memory_order_relaxed);
  return refused;
}

void RunQueue::AddAgain(std::shared_ptr<RunnableCall> call, int64_t now_ns) {
  call->PeekQueueKeys();
  const std::lock_guard<std::mutex> lock(mutex_);
  Push(std::move(call), now_ns);
  CountReady();
}

bool RunQueue::IsTooLate(const RunnableCall& call, int64_t now_ns) {
  const Share* const share = Find(call.model_key());
  if (share == nullptr || share->is_paused) return false;
  const ModelQueue& queue = share->queue;
  if (queue.is_empty() || size() < short_count_) return false;
  if (queue.StandingNs(now_ns) < kStandingNs) return false;
  const int64_t deadline_ns = call.run_context().deadline_ns;
  // An expired request is taken, and answered with DEADLINE_EXCEEDED: no other server would help.
  if (deadline_ns == tensor::RunContext::kNoDeadline || deadline_ns <= now_ns) return false;
  return queue.ExpectedWaitNs(now_ns) > (deadline_ns - now_ns) / kDelayShare;
}

bool RunQueue::IsTooMany(const RunnableCall& call, const WaitingElsewhere& elsewhere) const {
  const servable::BatchKey key = call.batch_key();
  return batches_.IsFull(key, size() + elsewhere.count, [&] {
    const auto other = elsewhere.counts_by_key.find(key);
    return CountOfLocked(key) + (other == elsewhere.counts_by_key.end() ? 0 : other->second);
  });
}

int64_t RunQueue::CountOf(servable::BatchKey key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return CountOfLocked(key);
}

int64_t RunQueue::CountOfLocked(servable::BatchKey key) const {
  int64_t count = 0;
  for (const auto& [model, share] : shares_) {
    if (!share->is_paused) count += share->queue.CountOf(key);
  }
  return count;
}

void RunQueue::Push(std::shared_ptr<RunnableCall> call, int64_t now_ns) {
  Share* const share = ShareOf(call->model_key());
  const bool was_empty = share->queue.is_empty();
  if (was_empty) share->filled_id = ++last_filled_id_;
  share->came_ns = now_ns;
  share->queue.Push(std::move(call), now_ns);
  if (share->is_paused) return;
  if (was_empty) Enter(share);
  AddToSize(1);
}

bool RunQueue::TryPass(RunnableCall* arrived, int64_t now_ns, RunCharge* charge) {
  *charge = {};
  if (ready_count() > 0) return false;
  if (!has_paused() && !thread_shares_.is_shared()) return true;
  arrived->PeekQueueKeys();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (paused_models_.count(arrived->model_key()) > 0) return false;
  if (!thread_shares_.is_shared()) return true;
  Share* const share = ShareOf(arrived->model_key());
  share->came_ns = now_ns;
  ModelThreads* threads = nullptr;
  if (!TryTakeThread(*share, &threads)) return false;
  *charge = {arrived->model_key(), 0, 1, period_};
  charge->threads = threads;
  CountReady();
  return true;
}

// --- Taking ---

std::shared_ptr<RunnableCall> RunQueue::Take(int64_t now_ns, RunCharge* charge) {
  const std::lock_guard<std::mutex> lock(mutex_);
  SettleLocked(*charge);
  *charge = {};
  std::shared_ptr<RunnableCall> taken;
  ModelThreads* threads = nullptr;
  if (!unwanted_.empty()) {
    taken = std::move(unwanted_.back());
    unwanted_.pop_back();
  } else if (Share* const next = TakeThread(now_ns, &threads); next != nullptr) {
    served_ns_ = std::max(served_ns_, next->start_ns);
    taken = next->queue.TakeFirst(now_ns);
    *charge = {next->queue.model(), CostNs(*next), 1, period_};
    charge->threads = threads;
    EndTaking(next);
  }
  if (taken != nullptr) TakeFromSize(1);
  CountReady();
  return taken;
}

std::shared_ptr<RunnableCall> RunQueue::TakeFor(ModelKey model, servable::BatchKey key,
                                                size_t bytes_max, RunCharge* charge) {
  if (size_.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<RunnableCall> taken;
  Share* const share = FindWith(model, key, bytes_max, &taken);
  if (taken == nullptr) return nullptr;
  // The first request of this run did not come from the queue.
  if (charge->model == kNoModelKey) *charge = {model, 0, 1, period_};
  if (charge->model == share->queue.model()) {
    charge->charged_ns += CostNs(*share);
    ++charge->request_count;
  } else {
    AddGuest(*share, charge);
  }
  EndTaking(share);
  TakeFromSize(1);
  CountReady();
  return taken;
}

// Takes a request from the model's queue, or else from one that has it. Returns that queue.
RunQueue::Share* RunQueue::FindWith(ModelKey model, servable::BatchKey key, size_t bytes_max,
                                    std::shared_ptr<RunnableCall>* taken) {
  Share* const own = key == servable::kAnyBatchKey ? First() : Find(model);
  if (own != nullptr && !own->is_paused) *taken = own->queue.TakeFor(key, bytes_max);
  if (*taken != nullptr || key == servable::kAnyBatchKey) return own;
  size_t looked_at_count = 0;
  for (const Place& place : order_) {
    if (looked_at_count >= servable::kLookedAtMax) break;
    if (place.share == own) continue;
    looked_at_count += place.share->queue.size();
    *taken = place.share->queue.TakeFor(key, bytes_max);
    if (*taken != nullptr) return place.share;
  }
  return nullptr;
}

void RunQueue::Settle(const RunCharge& charge) {
  const std::lock_guard<std::mutex> lock(mutex_);
  SettleLocked(charge);
  CountReady();
}

void RunQueue::NotePassed(ModelKey model, int64_t took_ns, int64_t now_ns) {
  if (model == kNoModelKey) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  Share* const share = ShareOf(model);
  share->came_ns = now_ns;
  LearnRun(took_ns, share);
}

bool RunQueue::SettleEarly(RunCharge* charge, int64_t took_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool has_freed = charge->threads != nullptr && thread_shares_.Release(charge->threads);
  charge->took_ns = took_ns;
  SettleLocked(*charge);
  *charge = {};
  CountReady();
  return has_freed;
}

// --- The order of the models ---

size_t RunQueue::known_count() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return shares_.size();
}

RunQueue::Share* RunQueue::Find(ModelKey model) {
  const auto found = shares_.find(model);
  return found == shares_.end() ? nullptr : found->second.get();
}

RunQueue::Share* RunQueue::ShareOf(ModelKey model) {
  if (Share* const share = Find(model)) return share;
  if (shares_.size() >= shares_max_) DropIdleShares();
  std::unique_ptr<Share>& share = shares_[model];
  share = std::make_unique<Share>(model);
  if (model != kNoSuchModelKey) share->threads = thread_shares_.ThreadsOf(model);
  share->is_paused = paused_models_.count(model) > 0;
  return share.get();
}

// Models come and go. A run of the model that holds a thread has a pointer to its threads.
void RunQueue::DropIdleShares() {
  for (auto at = shares_.begin(); at != shares_.end();) {
    const Share& share = *at->second;
    const bool is_idle =
        share.queue.is_empty() && share.threads != nullptr && share.threads->held_count == 0;
    at = is_idle ? shares_.erase(at) : std::next(at);
  }
  shares_max_ = 2 * shares_.size() + kIdleShares;
}

// Puts a queue that is not empty any more into the order.
void RunQueue::Enter(Share* share) {
  if (order_.empty()) {
    served_ns_ = latest_ns_;
    ++period_;
  }
  share->start_ns = std::max(share->start_ns, served_ns_);
  order_.insert(PlaceOf(share));
}

void RunQueue::SetTag(Share* share, int64_t start_ns) {
  latest_ns_ = std::max(latest_ns_, start_ns);
  auto place = order_.extract(PlaceOf(share));
  share->start_ns = start_ns;
  if (place.empty()) return;
  place.value().start_ns = start_ns;
  order_.insert(std::move(place));
}

// Charges the request that was taken.
void RunQueue::EndTaking(Share* share) {
  if (share->queue.is_empty()) order_.erase(PlaceOf(share));
  SetTag(share, share->start_ns + CostNs(*share));
}

void RunQueue::SettleLocked(const RunCharge& charge) {
  Share* const share = charge.model == kNoModelKey ? nullptr : Find(charge.model);
  if (share == nullptr || charge.took_ns == 0) return;
  const int64_t own_ns = charge.guests.empty() ? charge.took_ns : SettleGuests(charge, *share);
  if (charge.period == period_) SetTag(share, share->start_ns + own_ns - charge.charged_ns);
  Learn(std::max(own_ns / charge.request_count, kCostNsMin), &share->cost_ns);
  LearnRun(charge.took_ns, share);
}

void RunQueue::AddGuest(const Share& share, RunCharge* charge) {
  const ModelKey model = share.queue.model();
  const auto found = std::find_if(charge->guests.begin(), charge->guests.end(),
                                  [&](const GuestCharge& guest) { return guest.model == model; });
  GuestCharge& guest =
      found == charge->guests.end() ? charge->guests.emplace_back(GuestCharge{model}) : *found;
  guest.charged_ns += CostNs(share);
  ++guest.request_count;
}

// Returns the part of a run's time that its guests did not take. They took what they were charged,
// unless that and what the host was expected to take are more than the run took. Then each took its
// part.
int64_t RunQueue::SettleGuests(const RunCharge& charge, const Share& share) {
  int64_t guests_ns = 0;
  for (const GuestCharge& guest : charge.guests) guests_ns += guest.charged_ns;
  // A request that passed the queue was charged nothing.
  const int64_t host_ns = std::max(charge.charged_ns, charge.request_count * CostNs(share));
  if (guests_ns + host_ns <= charge.took_ns) return charge.took_ns - guests_ns;
  const double part =
      static_cast<double>(charge.took_ns) / static_cast<double>(guests_ns + host_ns);
  for (const GuestCharge& guest : charge.guests) {
    Share* const its = Find(guest.model);
    if (its == nullptr) continue;
    const auto took_ns = static_cast<int64_t>(part * static_cast<double>(guest.charged_ns));
    if (charge.period == period_) SetTag(its, its->start_ns + took_ns - guest.charged_ns);
    Learn(std::max(took_ns / guest.request_count, kCostNsMin), &its->cost_ns);
  }
  return static_cast<int64_t>(part * static_cast<double>(host_ns));
}

// A thread that had no core for a while says nothing about the runs.
void RunQueue::LearnRun(int64_t took_ns, Share* share) {
  const int64_t run_ns_max = share->run_ns == 0 ? took_ns : kLateFactor * share->run_ns;
  Learn(std::min(took_ns, run_ns_max), &share->run_ns);
}

void RunQueue::Learn(int64_t ns, int64_t* mean_ns) {
  *mean_ns += *mean_ns == 0 ? ns : (ns - *mean_ns) / kCostRuns;
}

// --- The threads that models hold ---

void RunQueue::AddActiveModels(int64_t now_ns, ActiveModels* models) {
  const int64_t long_ns = thread_shares_.long_run_ns();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [model, share] : shares_) {
    if (share->threads == nullptr) continue;
    const bool is_active = !share->queue.is_empty() || share->threads->held_count > 0 ||
                           now_ns - share->came_ns < ThreadShares::kSharesNs;
    if (!is_active) continue;
    models->keys.insert(model);
    models->has_long_run = models->has_long_run || share->run_ns >= long_ns;
  }
}

void RunQueue::Recount() {
  const std::lock_guard<std::mutex> lock(mutex_);
  CountReady();
}

// Takes a thread for the request that is next. Returns its share; null if no request may have one.
RunQueue::Share* RunQueue::TakeThread(int64_t now_ns, ModelThreads** threads) {
  while (true) {
    const auto next = std::find_if(order_.begin(), order_.end(), [&](const Place& place) {
      return TryTakeThread(*place.share, threads);
    });
    if (next == order_.end()) return nullptr;
    if (!MoveToItsModel(now_ns, next->share)) return next->share;
  }
}

// Moves the oldest request for a name that was no model to its model's queue, if the model has come
// since. Otherwise its run would hold no thread. Returns true if it has moved.
bool RunQueue::MoveToItsModel(int64_t now_ns, Share* share) {
  if (share->threads != nullptr || !share->queue.first()->RenewModelKey()) return false;
  std::shared_ptr<RunnableCall> moved = share->queue.TakeFirst(now_ns);
  if (share->queue.is_empty()) order_.erase(PlaceOf(share));
  TakeFromSize(1);
  Push(std::move(moved), now_ns);
  return true;
}

// Sets `threads` if the run is to hold one of them.
bool RunQueue::TryTakeThread(const Share& share, ModelThreads** threads) {
  if (!thread_shares_.is_shared() || share.threads == nullptr) return true;
  if (!thread_shares_.TryTake(share.threads.get())) return false;
  *threads = share.threads.get();
  return true;
}

size_t RunQueue::CountHeldBack() const {
  size_t count = 0;
  if (thread_shares_.HasRoom()) return count;
  for (const Place& place : order_) {
    const ModelThreads* const threads = place.share->threads.get();
    if (threads != nullptr && !thread_shares_.MayTake(*threads)) count += place.share->queue.size();
  }
  return count;
}

// Marks that requests are held back before it looks whether that is still so (ThreadShares).
void RunQueue::CountReady() {
  size_t held_back_count = CountHeldBack();
  if (held_back_count > 0 && !holds_back_) {
    holds_back_ = true;
    held_back_count = CountHeldBack();
  }
  if (held_back_count == 0 && holds_back_) holds_back_ = false;
  ready_count_.store(size_.load(std::memory_order_relaxed) - held_back_count);
}

// --- Models that may not run now ---

void RunQueue::SetPausedModels(const std::set<std::string>& models, int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  paused_models_.clear();
  for (const std::string& model : models) paused_models_.insert(ModelKeyOf(model));
  has_paused_ = !paused_models_.empty();
  for (const auto& [model, share] : shares_) {
    Pause(share.get(), paused_models_.count(model) > 0, now_ns);
  }
  CountReady();
}

// Requests whose clients have given up go on, because they would otherwise keep their memory and
// their place in the admission.
void RunQueue::Pause(Share* share, bool is_paused, int64_t now_ns) {
  const bool was_paused = std::exchange(share->is_paused, is_paused);
  if (was_paused && !is_paused) {
    share->queue.Restart(now_ns);
    if (!share->queue.is_empty()) Enter(share);
    AddToSize(share->queue.size());
    return;
  }
  if (!is_paused) return;
  if (!was_paused) {
    order_.erase(PlaceOf(share));
    TakeFromSize(share->queue.size());
  }
  for (std::shared_ptr<RunnableCall>& call : share->queue.TakeUnwanted(now_ns)) {
    unwanted_.push_back(std::move(call));
    AddToSize(1);
  }
}

}  // namespace millpond::rpc
