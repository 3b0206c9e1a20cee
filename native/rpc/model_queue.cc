#include "native/rpc/model_queue.h"

#include <algorithm>
#include <utility>

namespace millpond::rpc {

void ModelQueue::Push(std::shared_ptr<RunnableCall> call, int64_t now_ns) {
  if (is_empty()) filled_ns_ = now_ns;
  waiting_.push_back({std::move(call), now_ns});
}

std::shared_ptr<RunnableCall> ModelQueue::TakeFirst(int64_t now_ns) {
  std::shared_ptr<RunnableCall> taken = std::move(waiting_.front().call);
  waiting_.pop_front();
  // TakeFor may have taken more requests since then, for batches.
  if (taken_ns_ != 0) {
    const int64_t weight = std::min(taken_count_, kPaceCount);
    pace_ns_ += ((now_ns - taken_ns_) / taken_count_ - pace_ns_) * weight / kPaceCount;
  }
  taken_ns_ = now_ns;
  taken_count_ = 1;
  EndRemoval();
  return taken;
}

std::shared_ptr<RunnableCall> ModelQueue::TakeFor(servable::BatchKey key, size_t bytes_max) {
  struct View {
    static servable::BatchKey Key(const Waiting& waiting) { return waiting.call->batch_key(); }
    static bool IsCompressed(const Waiting& waiting) { return waiting.call->is_compressed(); }
    static size_t MessageBytes(const Waiting& waiting) { return waiting.call->message_bytes(); }
  };
  const auto found = servable::FindWaiting<View>(&waiting_, key, bytes_max);
  if (found == waiting_.end()) return nullptr;
  std::shared_ptr<RunnableCall> taken = std::move(found->call);
  waiting_.erase(found);
  taken_count_ += 1;
  EndRemoval();
  return taken;
}

std::vector<std::shared_ptr<RunnableCall>> ModelQueue::TakeUnwanted(int64_t now_ns) {
  std::vector<std::shared_ptr<RunnableCall>> taken;
  const auto unwanted =
      std::stable_partition(waiting_.begin(), waiting_.end(),
                            [&](const Waiting& waiting) { return waiting.call->IsWanted(now_ns); });
  for (auto at = unwanted; at != waiting_.end(); ++at) taken.push_back(std::move(at->call));
  waiting_.erase(unwanted, waiting_.end());
  EndRemoval();
  return taken;
}

void ModelQueue::Restart(int64_t now_ns) {
  filled_ns_ = now_ns;
  taken_ns_ = 0;
  for (Waiting& waiting : waiting_) waiting.since_ns = now_ns;
}

int64_t ModelQueue::CountOf(servable::BatchKey key) const {
  return std::count_if(waiting_.begin(), waiting_.end(),
                       [key](const Waiting& waiting) { return waiting.call->batch_key() == key; });
}

int64_t ModelQueue::ExpectedWaitNs(int64_t now_ns) const {
  return std::max(now_ns - waiting_.front().since_ns, static_cast<int64_t>(size()) * pace_ns_);
}

// Forgets the last take if the queue is empty, because the time in which nothing waits says nothing
// about the pace.
void ModelQueue::EndRemoval() {
  if (is_empty()) taken_ns_ = 0;
}

}  // namespace millpond::rpc
