#include "native/servable/request_log.h"

#include <utility>

#include "native/base/clock.h"

namespace millpond::servable {

RequestLog::RequestLog(std::shared_ptr<RecordQueue> queue, uint64_t id)
    : queue_(std::move(queue)), id_(id) {}

void RequestLog::Set(RequestLogSettings settings) {
  if (settings.sampling_rate <= 0) return settings_.store(nullptr, std::memory_order_release);
  all_settings_.push_back(std::make_unique<const RequestLogSettings>(std::move(settings)));
  settings_.store(all_settings_.back().get(), std::memory_order_release);
}

// Reads dropped_count_ first, which is counted last, so that no request is dropped that was not
// sampled.
RequestLogStatistics RequestLog::Statistics() const {
  RequestLogStatistics statistics;
  statistics.dropped_count = dropped_count_.load(std::memory_order_acquire);
  statistics.sampled_count = sampled_count_.load(std::memory_order_relaxed);
  return statistics;
}

// SplitMix64, with a state for each thread, so that threads share nothing.
bool RequestLog::IsDrawn(double rate) {
  thread_local uint64_t state =
      reinterpret_cast<uintptr_t>(&state) ^ static_cast<uint64_t>(base::MonotonicNs());
  uint64_t bits = state += 0x9e3779b97f4a7c15ULL;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  bits ^= bits >> 31;
  constexpr double kTwoToMinus53 = 0x1p-53;
  return static_cast<double>(bits >> 11) * kTwoToMinus53 < rate;
}

}  // namespace millpond::servable
