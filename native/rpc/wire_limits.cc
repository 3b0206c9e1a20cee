#include "native/rpc/wire_limits.h"

namespace millpond::rpc {
namespace {

constexpr std::array<const char*, static_cast<size_t>(ReachedLimit::kCount)> kNames = {
    "connections", "header_bytes", "arriving_bytes", "control_frames", "pings",
    "resets",      "handshake",    "pause",          "keepalive"};

}  // namespace

std::map<std::string, int64_t> LimitCounts::ByName() const {
  std::map<std::string, int64_t> by_name;
  for (size_t i = 0; i < kNames.size(); ++i) by_name[kNames[i]] = counts_[i].load();
  return by_name;
}

}  // namespace millpond::rpc
