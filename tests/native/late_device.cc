#include "tests/native/late_device.h"

#include <algorithm>
#include <utility>

namespace millpond::tests {
namespace {

// One of this many steps is done without being waited for, on average.
constexpr uint32_t kOneEagerOf = 4;

}  // namespace

LateDevice::~LateDevice() {
  {
    const std::lock_guard lock(mutex_);
    for (Queue& queue : queues_) {
      if (!queue.steps.empty()) Demand(queue.steps.back());
    }
    is_stopping_ = true;
  }
  changed_.notify_all();
  for (Queue& queue : queues_) {
    if (queue.thread.joinable()) queue.thread.join();
  }
}

LateDevice::StepPtr LateDevice::Add(Lane lane, std::vector<StepPtr> after, Work work,
                                    HostMemory host) {
  auto step = std::make_shared<Step>(lane, std::move(after), std::move(work), host);
  const std::lock_guard lock(mutex_);
  Queue& queue = queues_[static_cast<size_t>(lane)];
  queue.steps.push_back(step);
  if (!queue.thread.joinable()) queue.thread = std::thread([this, &queue] { DoSteps(&queue); });
  if (random_() % kOneEagerOf == 0) Demand(step);
  return step;
}

std::string LateDevice::Await(const StepPtr& step) {
  std::unique_lock lock(mutex_);
  Demand(step);
  changed_.wait(lock, [&] { return step->is_done_; });
  return step->error_;
}

bool LateDevice::IsDone(const StepPtr& step) const {
  const std::lock_guard lock(mutex_);
  return step->is_done_;
}

bool LateDevice::IsInConflict(HostMemory host) const {
  const std::lock_guard lock(mutex_);
  const auto conflicts = [&host](const StepPtr& step) {
    const HostMemory& other = step->host_;
    return (host.is_written || other.is_written) && other.begin < host.begin + host.bytes &&
           host.begin < other.begin + other.bytes;
  };
  return std::any_of(queues_.begin(), queues_.end(), [&](const Queue& queue) {
    return std::any_of(queue.steps.begin(), queue.steps.end(), conflicts);
  });
}

bool LateDevice::Draw(uint32_t one_in) {
  const std::lock_guard lock(mutex_);
  return one_in > 0 && random_() % one_in == 0;
}

// Lets a step be done, with all that must be done before it. Called with the lock.
void LateDevice::Demand(const StepPtr& step) {
  if (step->is_demanded_) return;
  for (const StepPtr& each : queues_[static_cast<size_t>(step->lane_)].steps) {
    if (!each->is_demanded_) {
      each->is_demanded_ = true;
      for (const StepPtr& before : each->after_) Demand(before);
    }
    if (each == step) break;
  }
  changed_.notify_all();
}

// The thread of a lane.
void LateDevice::DoSteps(Queue* queue) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      if (queue->steps.empty()) return is_stopping_;
      const Step& next = *queue->steps.front();
      return next.is_demanded_ && std::all_of(next.after_.begin(), next.after_.end(),
                                              [](const auto& step) { return step->is_done_; });
    });
    if (queue->steps.empty()) return;
    const StepPtr step = queue->steps.front();
    std::string error;
    for (const StepPtr& before : step->after_) {
      if (error.empty()) error = before->error_;
    }
    lock.unlock();
    if (error.empty()) error = step->work_();
    step->work_ = nullptr;
    lock.lock();
    step->error_ = std::move(error);
    step->after_.clear();
    step->is_done_ = true;
    queue->steps.pop_front();
    changed_.notify_all();
  }
}

}  // namespace millpond::tests
