#include "native/servable/latency_window.h"

#include <utility>

namespace millpond::servable {

using metrics::LatencySnapshot;

namespace {

LatencySnapshot LatencyOf(const ServableEntry& entry) {
  return entry.requests().ModelRuns().latency;
}

}  // namespace

int64_t LatencyWindow::ValueSinceStart(double quantile) {
  LatencySnapshot all;
  for (const auto& entry : map_->Entries()) all += LatencyOf(*entry);
  return all.ValueAtQuantile(quantile);
}

int64_t LatencyWindow::ValueOfLastSecond(double quantile, int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  LatencySnapshot recent;
  std::map<std::shared_ptr<const ServableEntry>, History> kept;
  for (const auto& entry : map_->Entries()) {
    // Only published versions are copied to `kept`, which drops the history of retired versions.
    History& history = kept[entry];
    history = std::move(histories_[entry]);
    while (!history.empty() && now_ns - history.front().at_ns > kWindowNs) history.pop_front();
    LatencySnapshot now = LatencyOf(*entry);
    if (!history.empty()) recent += now - history.front().latency;
    history.push_back({now_ns, std::move(now)});
  }
  histories_ = std::move(kept);
  return recent.ValueAtQuantile(quantile);
}

}  // namespace millpond::servable
