#include "native/rpc/wire_limits.h"

#include <type_traits>

namespace millpond::rpc {
namespace {

constexpr std::array<const char*, static_cast<size_t>(ReachedLimit::kCount)> kNames = {
    "connections", "header_bytes", "arriving_bytes", "control_frames", "pings",
    "resets",      "handshake",    "pause",          "keepalive"};

template <auto field>
void SetNumber(WireLimits* limits, double value) {
  using Field = std::decay_t<decltype(limits->*field)>;
  limits->*field = static_cast<Field>(value);
}

template <auto field>
void SetTime(WireLimits* limits, double seconds) {
  limits->*field = static_cast<int64_t>(seconds * static_cast<double>(WireLimits::kSecondNs));
}

void SetResets(WireLimits* limits, double value) {
  // As many as in ten seconds may come at once: a client that goes resets all its streams.
  constexpr uint64_t kBurstSeconds = 10;
  limits->resets_per_second = static_cast<uint64_t>(value);
  limits->reset_burst = kBurstSeconds * limits->resets_per_second;
}

const std::map<std::string, void (*)(WireLimits*, double)>& Setters() {
  static const std::map<std::string, void (*)(WireLimits*, double)> setters = {
      {"grpc_max_streams_per_connection", SetNumber<&WireLimits::streams_per_connection>},
      {"grpc_max_connections", SetNumber<&WireLimits::connection_count_max>},
      {"grpc_max_connections_per_address", SetNumber<&WireLimits::connections_per_address_max>},
      {"grpc_max_header_bytes", SetNumber<&WireLimits::header_list_bytes_max>},
      {"grpc_max_arriving_bytes", SetNumber<&WireLimits::open_call_bytes_max>},
      {"grpc_max_control_frames", SetNumber<&WireLimits::control_frames_max>},
      {"grpc_max_resets_per_second", SetResets},
      {"grpc_handshake_seconds", SetTime<&WireLimits::handshake_ns>},
      {"grpc_pause_seconds", SetTime<&WireLimits::pause_ns>},
      {"grpc_keepalive_seconds", SetTime<&WireLimits::keepalive_ns>},
      {"grpc_idle_seconds", SetTime<&WireLimits::idle_ns>},
  };
  return setters;
}

}  // namespace

base::Status WireLimits::Set(const std::string& flag, double value) {
  const auto found = Setters().find(flag);
  if (found == Setters().end()) return base::InvalidArgument("no limit has the name " + flag);
  found->second(this, value);
  return {};
}

std::map<std::string, int64_t> LimitCounts::ByName() const {
  std::map<std::string, int64_t> by_name;
  for (size_t i = 0; i < kNames.size(); ++i) by_name[kNames[i]] = counts_[i].load();
  return by_name;
}

}  // namespace millpond::rpc
