#include "native/pjrt/side_times.h"

#include <algorithm>
#include <iterator>

namespace millpond::pjrt {
namespace {

Side OtherThan(Side side) { return side == Side::kCpu ? Side::kAccelerator : Side::kCpu; }

}  // namespace

int64_t SideTimes::Samples::MedianNs() const {
  const size_t count = std::min(count_.load(std::memory_order_relaxed), kSamplesMax);
  if (count < kSamplesMin) return 0;
  std::array<int64_t, kSamplesMax> sorted{};
  for (size_t i = 0; i < count; ++i) sorted[i] = last_ns_[i].load(std::memory_order_relaxed);
  auto* const middle = sorted.begin() + (count - 1) / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + count);
  return *middle;
}

SideTimes::SideTimes(const std::vector<int64_t>& sizes) {
  for (const int64_t size : sizes) by_size_.try_emplace(size);
}

SidePlan SideTimes::Plan(int64_t rows) const {
  const auto found = by_size_.lower_bound(rows);
  if (found == by_size_.end()) return {std::prev(found)->second.side.load()};
  const Size& size = found->second;
  const Side side = size.side.load(std::memory_order_relaxed);
  const int64_t number = 1 + size.run_count.fetch_add(1, std::memory_order_relaxed);
  const int64_t probe_one_of = size.probe_one_of.load(std::memory_order_relaxed);
  if (probe_one_of != kNoProbes && number % probe_one_of == 0) {
    return {OtherThan(side), /*is_timed=*/true, /*is_probe=*/true};
  }
  const bool is_timed = number % kTimedOneOf == 0 || times_all_.load(std::memory_order_relaxed);
  return {side, is_timed};
}

void SideTimes::Add(int64_t rows, Side side, int64_t ns) {
  const auto found = by_size_.lower_bound(rows);
  if (found != by_size_.end()) found->second.samples[static_cast<size_t>(side)].Add(ns);
}

bool SideTimes::Choose(int64_t size, Side side, int64_t probe_one_of) {
  const auto found = by_size_.find(size);
  if (found == by_size_.end()) return false;
  found->second.side.store(side, std::memory_order_relaxed);
  found->second.probe_one_of.store(probe_one_of, std::memory_order_relaxed);
  return true;
}

std::vector<SizeTimes> SideTimes::Times() const {
  std::vector<SizeTimes> times;
  for (const auto& [rows, size] : by_size_) {
    const auto median = [&samples = size.samples](Side side) {
      return samples[static_cast<size_t>(side)].MedianNs();
    };
    times.push_back({rows, median(Side::kCpu), median(Side::kAccelerator),
                     size.side.load(std::memory_order_relaxed) == Side::kAccelerator});
  }
  return times;
}

std::vector<int64_t> SideTimes::sizes() const {
  std::vector<int64_t> sizes;
  for (const auto& [rows, size] : by_size_) sizes.push_back(rows);
  return sizes;
}

}  // namespace millpond::pjrt
