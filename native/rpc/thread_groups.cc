#include "native/rpc/thread_groups.h"

#include <algorithm>
#include <utility>

namespace millpond::rpc {
namespace {

using Calls = std::vector<std::shared_ptr<RunnableCall>>;

void CountIn(ThreadGroup* group, bool can_run) {
  group->idle_count.fetch_add(1);
  if (can_run) group->free_count.fetch_add(1);
}

// Takes a thread out of a group that keeps another idle one. Returns false if none would be left.
bool TryCountOut(ThreadGroup* group) {
  if (group->idle_count.fetch_sub(1) == 1) {
    group->idle_count.fetch_add(1);
    return false;
  }
  group->free_count.fetch_sub(1);
  return true;
}

}  // namespace

ThreadGroups::ThreadGroups(std::vector<GroupPlan> plans, const servable::BatchRegistry& batches,
                           size_t short_count)
    : batches_(batches) {
  const size_t own_count = (short_count + plans.size() - 1) / plans.size();
  for (GroupPlan& plan : plans) {
    groups_.push_back(std::make_unique<ThreadGroup>(groups_.size(), std::move(plan), batches,
                                                    own_count, &shares_));
  }
}

// --- Who waits where ---

ThreadGroups::Place ThreadGroups::Enter(ThreadGroup* home, bool can_run) {
  CountIn(home, can_run);
  if (!can_run) return {home, false};
  if (home->queue.ready_count() > 0) return {home, true};
  if (size() == 1) return {home, false};
  if (FindQueued(home) != nullptr) return {home, true};
  ThreadGroup* place = home;
  // More than once, because two threads may have come to the same group.
  while (ThreadGroup* const needy = FindWithoutIdle(*place)) {
    if (!TryCountOut(place)) break;
    CountIn(needy, can_run);
    place = needy;
  }
  // Once more, because a thread that queued a request meanwhile may have missed this one.
  return {place, FindQueued(home) != nullptr};
}

ThreadGroup* ThreadGroups::FindQueued(ThreadGroup* first) {
  for (size_t i = 0; i < size(); ++i) {
    ThreadGroup& group = *groups_[(first->index + i) % size()];
    if (group.queue.ready_count() > 0) return &group;
  }
  return nullptr;
}

ThreadGroup* ThreadGroups::FindWithoutIdle(const ThreadGroup& place) {
  if (place.idle_count.load() < 2) return nullptr;
  for (size_t i = 1; i < size(); ++i) {
    ThreadGroup& group = *groups_[(place.index + i) % size()];
    if (group.idle_count.load() == 0) return &group;
  }
  return nullptr;
}

ThreadGroup* ThreadGroups::FindIdle(ThreadGroup* group) {
  const bool is_alone = size() == 1;
  if (group->idle_count.load() > 0 && (is_alone || group->free_count.load() > 0)) return group;
  for (size_t i = 1; i < size(); ++i) {
    ThreadGroup& other = *groups_[(group->index + i) % size()];
    if (other.idle_count.load() > 0 && other.free_count.load() > 0) return &other;
  }
  return nullptr;
}

ThreadGroup* ThreadGroups::FindSpare(const ThreadGroup& group) {
  if (size() == 1 || group.idle_count.load() > 0) return nullptr;
  for (size_t i = 1; i < size(); ++i) {
    ThreadGroup& other = *groups_[(group.index + i) % size()];
    if (other.idle_count.load() > 1 && other.free_count.load() > 1) return &other;
  }
  return nullptr;
}

bool ThreadGroups::HasFree(const ThreadGroup& group) const {
  const auto has_free = [](const ThreadGroup& of) {
    return of.free_count > static_cast<int>(of.plan.spare_count);
  };
  if (has_free(group)) return true;
  return size() > 1 && std::any_of(groups_.begin(), groups_.end(),
                                   [&](const auto& other) { return has_free(*other); });
}

// --- All queues together ---

RunQueue::Refused ThreadGroups::Add(ThreadGroup* group, Calls::iterator begin, Calls::iterator end,
                                    int64_t now_ns) {
  WaitingElsewhere elsewhere;
  if (size() > 1 && !batches_.is_empty()) {
    for (const auto& other : groups_) {
      if (other.get() != group) elsewhere.count += other->queue.size();
    }
    const size_t count = elsewhere.count + group->queue.size();
    for (auto call = begin; call != end; ++call) {
      const servable::BatchKey key = (*call)->batch_key();
      // The queues are searched only if the limit may be reached.
      if (!batches_.IsFull(key, count, [] { return INT64_MAX; })) continue;
      if (!elsewhere.counts_by_key.emplace(key, 0).second) continue;
      for (const auto& other : groups_) {
        if (other.get() != group) elsewhere.counts_by_key[key] += other->queue.CountOf(key);
      }
    }
  }
  return group->queue.Add(begin, end, now_ns, elsewhere);
}

void ThreadGroups::SetPausedModels(const std::set<std::string>& models, int64_t now_ns) {
  for (const auto& group : groups_) group->queue.SetPausedModels(models, now_ns);
}

int64_t ThreadGroups::refused_count() const {
  int64_t count = 0;
  for (const auto& group : groups_) count += group->queue.refused_count();
  return count;
}

// --- How models share the threads ---

void ThreadGroups::LimitThreads(const ServingThreads& threads, ActiveModels models,
                                int64_t now_ns) {
  for (const auto& group : groups_) group->queue.AddActiveModels(now_ns, &models);
  if (!shares_.Limit(ThreadShares::Decide(threads, models))) return;
  for (const auto& group : groups_) group->queue.Recount();
}

const ModelThreads* ThreadGroups::Release(RunCharge* charge) {
  ModelThreads* const threads = std::exchange(charge->threads, nullptr);
  return threads != nullptr && shares_.Release(threads) ? threads : nullptr;
}

void ThreadGroups::RecountHeldBack(const ThreadGroup* except) {
  for (const auto& group : groups_) {
    if (group.get() != except && group->queue.holds_back()) group->queue.Recount();
  }
}

}  // namespace millpond::rpc
