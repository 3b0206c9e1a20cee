#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "native/rpc/call.h"
#include "native/rpc/call_counts.h"
#include "native/rpc/method.h"
#include "native/rpc/wire_limits.h"

namespace millpond::rpc {

// The limits, methods and counts that the connections and calls of a server share. The control
// plane may keep a rare call longer than the server, so all of them own it.
//
// Thread: the limits and the methods never change while the server listens. The counts: any.
struct ServerShared {
  ServerShared() { calls.is_cut_short = &is_cut_short; }
  ServerShared(const ServerShared&) = delete;
  ServerShared& operator=(const ServerShared&) = delete;

  WireLimits limits;
  LimitCounts limit_counts;
  std::map<std::string, Method, std::less<>> methods;  // by path, like "/package.Service/Method"
  CallLimits calls;
  std::atomic<bool> is_cut_short{false};
  CallCounts call_counts;
  std::atomic<int64_t> connection_count{0};
};

}  // namespace millpond::rpc
