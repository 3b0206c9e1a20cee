#include "native/rpc/wire_limits.h"

#include <utility>

namespace millpond::rpc {
namespace {

constexpr std::array<const char*, static_cast<size_t>(ReachedLimit::kCount)> kNames = {
    "connections", "header_bytes", "arriving_bytes", "control_frames", "pings",
    "resets",      "handshake",    "pause",          "keepalive"};

}  // namespace

std::optional<FloodLimits::Excess> FloodLimits::TakeControlFrame(int64_t now_ns) {
  if (control_frames_.Take(now_ns)) return {};
  return Excess{ReachedLimit::kControlFrames, "too_many_control_frames"};
}

std::optional<FloodLimits::Excess> FloodLimits::TakePing(int64_t now_ns) {
  const bool is_early = !std::exchange(has_payload_since_ping_, false) && ping_ns_ &&
                        now_ns - *ping_ns_ < ping_interval_ns_;
  early_ping_count_ = is_early ? early_ping_count_ + 1 : 0;
  ping_ns_ = now_ns;
  if (early_ping_count_ <= kEarlyPingsMax) return {};
  return Excess{ReachedLimit::kPings, "too_many_pings"};
}

std::optional<FloodLimits::Excess> FloodLimits::TakeForcedReset(int64_t now_ns) {
  if (forced_resets_.Take(now_ns)) return {};
  return Excess{ReachedLimit::kResets, "too_many_resets"};
}

std::map<std::string, int64_t> LimitCounts::ByName() const {
  std::map<std::string, int64_t> by_name;
  for (size_t i = 0; i < kNames.size(); ++i) by_name[kNames[i]] = counts_[i].load();
  return by_name;
}

}  // namespace millpond::rpc
