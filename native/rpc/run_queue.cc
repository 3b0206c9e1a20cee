#include "native/rpc/run_queue.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace millpond::rpc {

using Calls = std::vector<std::shared_ptr<RunnableCall>>;

RunQueue::Refused RunQueue::Add(Calls::iterator begin, Calls::iterator end, int64_t now_ns,
                                const WaitingElsewhere& elsewhere) {
  Refused refused;
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
  refused_count_.fetch_add(static_cast<int64_t>(refused.too_late.size()),
                           std::memory_order_relaxed);
  return refused;
}

void RunQueue::AddAgain(std::shared_ptr<RunnableCall> call, int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Push(std::move(call), now_ns);
}

bool RunQueue::IsTooLate(const RunnableCall& call, int64_t now_ns) const {
  if (queue_.empty() || queue_.size() < short_count_) return false;
  if (now_ns - filled_ns_ < kStandingNs) return false;
  const int64_t deadline_ns = call.run_context().deadline_ns;
  // An expired request is taken, and answered with DEADLINE_EXCEEDED: no other server would help.
  if (deadline_ns == tensor::RunContext::kNoDeadline || deadline_ns <= now_ns) return false;
  return ExpectedWaitNs(now_ns) > (deadline_ns - now_ns) / kDelayShare;
}

bool RunQueue::IsTooMany(const RunnableCall& call, const WaitingElsewhere& elsewhere) const {
  const servable::BatchKey key = call.batch_key();
  return batches_.IsFull(key, queue_.size() + elsewhere.count, [&] {
    const auto other = elsewhere.counts_by_key.find(key);
    return CountOfLocked(key) + (other == elsewhere.counts_by_key.end() ? 0 : other->second);
  });
}

int64_t RunQueue::CountOf(servable::BatchKey key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return CountOfLocked(key);
}

int64_t RunQueue::CountOfLocked(servable::BatchKey key) const {
  return std::count_if(queue_.begin(), queue_.end(),
                       [key](const Waiting& waiting) { return waiting.call->batch_key() == key; });
}

int64_t RunQueue::ExpectedWaitNs(int64_t now_ns) const {
  return std::max(now_ns - queue_.front().since_ns, static_cast<int64_t>(queue_.size()) * pace_ns_);
}

void RunQueue::Push(std::shared_ptr<RunnableCall> call, int64_t now_ns) {
  if (queue_.empty()) filled_ns_ = now_ns;
  queue_.push_back({std::move(call), now_ns});
  size_.store(queue_.size());
}

// Forgets the last take if the queue is empty, because the time in which nothing waits says nothing
// about the pace.
void RunQueue::EndRemoval() {
  if (queue_.empty()) taken_ns_ = 0;
  size_.store(queue_.size());
}

bool RunQueue::MayPass(RunnableCall* arrived) {
  if (size() > 0) return false;
  if (!has_paused()) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  return paused_models_.count(arrived->ModelName()) == 0;
}

std::shared_ptr<RunnableCall> RunQueue::Take(int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<RunnableCall> taken;
  while (taken == nullptr && !queue_.empty()) {
    taken = std::move(queue_.front().call);
    queue_.pop_front();
    // A request whose client has given up is not paused, so that it is answered and freed at once.
    if (!paused_models_.empty() && taken->IsWanted(now_ns) &&
        paused_models_.count(taken->ModelName()) > 0) {
      paused_.push_back(std::move(taken));
    }
  }
  if (taken != nullptr) {
    // TakeFor may have taken more requests since then, for batches.
    if (taken_ns_ != 0) {
      const int64_t weight = std::min(taken_count_, kPaceCount);
      pace_ns_ += ((now_ns - taken_ns_) / taken_count_ - pace_ns_) * weight / kPaceCount;
    }
    taken_ns_ = now_ns;
    taken_count_ = 1;
  }
  EndRemoval();
  return taken;
}

std::shared_ptr<RunnableCall> RunQueue::TakeFor(servable::BatchKey key, size_t bytes_max) {
  if (size_.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  struct View {
    static servable::BatchKey Key(const Waiting& waiting) { return waiting.call->batch_key(); }
    static bool IsCompressed(const Waiting& waiting) { return waiting.call->is_compressed(); }
    static size_t MessageBytes(const Waiting& waiting) { return waiting.call->message_bytes(); }
  };
  const auto found = servable::FindWaiting<View>(&queue_, key, bytes_max);
  if (found == queue_.end()) return nullptr;
  if (!paused_models_.empty() && paused_models_.count(found->call->ModelName()) > 0) return nullptr;
  std::shared_ptr<RunnableCall> taken = std::move(found->call);
  queue_.erase(found);
  taken_count_ += 1;
  EndRemoval();
  return taken;
}

void RunQueue::SetPausedModels(std::set<std::string> models, int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // If the models are the same, only requests whose clients have given up go on, because they would
  // otherwise keep their memory and their place in the admission.
  const bool has_changed = models != paused_models_;
  paused_models_ = std::move(models);
  has_paused_ = !paused_models_.empty();
  if (queue_.empty()) filled_ns_ = now_ns;
  const auto first_free = std::stable_partition(
      paused_.begin(), paused_.end(),
      [&](const auto& call) { return !has_changed && call->IsWanted(now_ns); });
  // Take pauses them again if their model still may not run. Their wait is counted from now,
  // because they waited for their model, which says nothing about the waits of other requests.
  for (auto call = paused_.end(); call != first_free;) {
    queue_.push_front({std::move(*--call), now_ns});
  }
  paused_.erase(first_free, paused_.end());
  size_.store(queue_.size());
}

}  // namespace millpond::rpc
