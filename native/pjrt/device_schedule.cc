#include "native/pjrt/device_schedule.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace millpond::pjrt {

void DeviceSchedule::Add(const std::string& model, bool is_low, int64_t id, int64_t cost_ns) {
  Queue& queue = queues_[model];
  // A tag says nothing among the models of another priority.
  const bool moves = queue.is_low != is_low;
  if (moves) queue.tag_ns = 0;
  queue.is_low = is_low;
  // A model that comes to others begins with them, also if runs of its other version wait.
  if (moves || queue.runs.empty()) {
    queue.tag_ns = std::max(queue.tag_ns, served_ns_[is_low ? 1 : 0]);
  }
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

// Returns the queue whose first run is next; the end if no run waits. Of equal tags, the run that
// came first is first.
DeviceSchedule::Queues::iterator DeviceSchedule::Next() {
  const auto place = [](const Queue& queue) {
    return std::tuple(queue.is_low, queue.tag_ns, queue.runs.front().id);
  };
  auto next = queues_.end();
  for (auto at = queues_.begin(); at != queues_.end(); ++at) {
    if (at->second.runs.empty()) continue;
    if (next == queues_.end() || place(at->second) < place(next->second)) next = at;
  }
  return next;
}

bool DeviceSchedule::MayBegin(const std::string& model, int64_t cost_ns, bool is_shared) const {
  if (under_way_.empty()) return true;
  if (!is_shared) return under_way_.size() < 2 || under_way_ns_ < kUnderWayNs;
  // A run of which nothing is known may take long.
  if (cost_ns == 0) return false;
  const int64_t all_ns = under_way_ns_ + cost_ns;
  if (all_ns <= 2 * kPieceNs) return true;
  if (under_way_.size() > 1) return false;
  const bool is_other = under_way_.begin()->second.model != model;
  return all_ns <= kSharedUnderWayNs || (is_other && cost_ns <= kPieceNs);
}

std::optional<int64_t> DeviceSchedule::Begin(bool is_shared) {
  const auto at = Next();
  if (at == queues_.end()) return std::nullopt;
  Queue& queue = at->second;
  const Run run = queue.runs.front();
  if (!MayBegin(at->first, run.cost_ns, is_shared)) return std::nullopt;
  int64_t& served_ns = served_ns_[queue.is_low ? 1 : 0];
  served_ns = std::max(served_ns, queue.tag_ns);
  queue.tag_ns += run.cost_ns;
  queue.runs.pop_front();
  ++queue.under_way_count;
  under_way_[run.id] = {at->first, run.cost_ns};
  under_way_ns_ += run.cost_ns;
  return run.id;
}

int64_t DeviceSchedule::End(int64_t id, int64_t began_ns, int64_t now_ns) {
  const auto run = under_way_.find(id);
  const int64_t took_ns = std::max<int64_t>(0, now_ns - std::max(began_ns, last_end_ns_));
  last_end_ns_ = std::max(last_end_ns_, now_ns);
  Queue& queue = queues_[run->second.model];
  const int64_t cost_ns = run->second.cost_ns;
  const int64_t charge_ns_max =
      cost_ns == 0 ? kCostNsMax : std::min(kLateFactor * cost_ns, kCostNsMax);
  queue.tag_ns += std::min(took_ns, charge_ns_max) - cost_ns;
  --queue.under_way_count;
  under_way_ns_ -= cost_ns;
  under_way_.erase(run);
  DropIdle();
  return took_ns;
}

// Forgets the models that have no run and not more time than the others; all debts end once no
// model has a run.
void DeviceSchedule::DropIdle() {
  bool is_idle = under_way_.empty();
  for (auto at = queues_.begin(); at != queues_.end();) {
    const Queue& queue = at->second;
    const bool has_runs = !queue.runs.empty() || queue.under_way_count > 0;
    is_idle = is_idle && !has_runs;
    const bool is_even = queue.tag_ns <= served_ns_[queue.is_low ? 1 : 0];
    at = !has_runs && is_even ? queues_.erase(at) : std::next(at);
  }
  if (is_idle) queues_.clear();
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
