#include "native/pjrt/device_schedule.h"

#include <algorithm>
#include <iterator>

namespace millpond::pjrt {

void DeviceSchedule::Add(const std::string& model, bool is_low, int64_t id, int64_t cost_ns) {
  Queue& queue = queues_[model];
  queue.is_low = is_low;
  queue.runs.push_back({id, std::clamp<int64_t>(cost_ns, 0, kCostNsMax)});
}

bool DeviceSchedule::Remove(const std::string& model, int64_t id) {
  const auto queue = queues_.find(model);
  if (queue == queues_.end()) return false;
  std::deque<Run>& runs = queue->second.runs;
  const auto run =
      std::find_if(runs.begin(), runs.end(), [id](const Run& waiting) { return waiting.id == id; });
  if (run == runs.end()) return false;
  runs.erase(run);
  return true;
}

bool DeviceSchedule::HasRuns(bool is_low) const {
  return std::any_of(queues_.begin(), queues_.end(), [is_low](const auto& queue) {
    return queue.second.is_low == is_low && !queue.second.runs.empty();
  });
}

// Returns the queue whose turn it is: a queue that has left gives its turn to the next one.
DeviceSchedule::Queues::iterator DeviceSchedule::Turn() {
  const auto queue = queues_.lower_bound(turn_);
  return queue == queues_.end() ? queues_.begin() : queue;
}

void DeviceSchedule::NextTurn(Queues::iterator queue) {
  const auto next = std::next(queue);
  turn_ = next == queues_.end() ? "" : next->first;
  has_quantum_ = false;
}

std::optional<int64_t> DeviceSchedule::Begin() {
  const bool is_low = !HasRuns(/*is_low=*/false);
  if (is_low && !HasRuns(/*is_low=*/true)) return std::nullopt;
  if (under_way_.size() >= 2 && under_way_ns_ >= kUnderWayNs) return std::nullopt;
  for (;;) {
    const auto at = Turn();
    Queue& queue = at->second;
    if (queue.is_low != is_low && !queue.runs.empty()) {
      NextTurn(at);
      continue;
    }
    if (!has_quantum_) queue.deficit_ns += kQuantumNs;
    has_quantum_ = true;
    if (queue.runs.empty()) {
      // Nothing is saved up; a debt is paid also while the model has no run.
      queue.deficit_ns = std::min<int64_t>(queue.deficit_ns, 0);
      NextTurn(at);
      if (queue.deficit_ns == 0) queues_.erase(at);
      continue;
    }
    const Run run = queue.runs.front();
    if (queue.deficit_ns < run.cost_ns) {
      NextTurn(at);
      continue;
    }
    queue.deficit_ns -= run.cost_ns;
    queue.runs.pop_front();
    under_way_[run.id] = {at->first, run.cost_ns};
    under_way_ns_ += run.cost_ns;
    turn_ = at->first;
    return run.id;
  }
}

int64_t DeviceSchedule::End(int64_t id, int64_t began_ns, int64_t now_ns) {
  const auto run = under_way_.find(id);
  const int64_t took_ns = std::max<int64_t>(0, now_ns - std::max(began_ns, last_end_ns_));
  last_end_ns_ = std::max(last_end_ns_, now_ns);
  Queue& queue = queues_[run->second.model];
  const int64_t more_ns = std::min(took_ns, kCostNsMax) - run->second.cost_ns;
  queue.deficit_ns = std::max(queue.deficit_ns - more_ns, -kCostNsMax);
  under_way_ns_ -= run->second.cost_ns;
  under_way_.erase(run);
  return took_ns;
}

int64_t DeviceSchedule::ExpectedWaitNs(bool is_low) const {
  int64_t wait_ns = 0;
  // The cost of a run is 0 before the first one of its program.
  const auto add = [&wait_ns](int64_t cost_ns) { wait_ns += std::max<int64_t>(cost_ns, 1); };
  for (const auto& [id, run] : under_way_) add(run.cost_ns);
  for (const auto& [model, queue] : queues_) {
    if (queue.is_low && !is_low) continue;
    for (const Run& run : queue.runs) add(run.cost_ns);
  }
  return wait_ns;
}

int64_t DeviceSchedule::LeastWaitNs(const std::string& model) const {
  const auto queue = queues_.find(model);
  if (queue == queues_.end()) return 0;
  int64_t wait_ns = 0;
  for (const Run& run : queue->second.runs) wait_ns += run.cost_ns;
  return wait_ns;
}

}  // namespace millpond::pjrt
