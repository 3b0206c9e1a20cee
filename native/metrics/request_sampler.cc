#include "native/metrics/request_sampler.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "native/base/clock.h"

namespace millpond::metrics {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

}  // namespace

int64_t NextSecondNs(int64_t due_ns, int64_t now_ns) {
  return due_ns + ((now_ns - due_ns) / kSecondNs + 1) * kSecondNs;
}

RequestSampler::RequestSampler(std::shared_ptr<RequestStatistics> statistics)
    : statistics_(std::move(statistics)), thread_([this] { Run(); }) {}

void RequestSampler::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  is_stopping_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void RequestSampler::Run() {
  pthread_setname_np(pthread_self(), "millpond-stats");
  int64_t due_ns = base::MonotonicNs() + kSecondNs;
  while (RestUntil(due_ns)) {
    const int64_t now_ns = base::MonotonicNs();
    statistics_->Sample(now_ns);
    due_ns = NextSecondNs(due_ns, now_ns);
  }
}

bool RequestSampler::RestUntil(int64_t at_ns) {
  std::unique_lock lock(mutex_);
  while (!is_stopping_ && base::MonotonicNs() < at_ns) {
    is_stopping_changed_.wait_for(lock, std::chrono::nanoseconds(at_ns - base::MonotonicNs()));
  }
  return !is_stopping_;
}

}  // namespace millpond::metrics
