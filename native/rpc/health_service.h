#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "native/rpc/completion_tag.h"
#include "native/rpc/poller_pool.h"
#include "native/rpc/raw_service.h"
#include "native/rpc/unary_call.h"

namespace millpond::rpc {

// grpc.health.v1.HealthCheckResponse.ServingStatus.
enum class HealthStatus { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

class HealthWatch;

// grpc.health.v1.Health (github.com/grpc/grpc/blob/master/doc/health-checking.md): Check and Watch
// by service name; "" is the whole server. The control plane says who serves.
//
// It is ours and not gRPC's own, because that one runs on gRPC's callback threads, which would poll
// the sockets of requests beside ours.
class HealthService final : public UnaryHandler {
 public:
  HealthService() = default;

  void Set(const std::string& service, bool is_serving);
  void Remove(const std::string& service);
  // Ends every Watch once its last status is out: the server drains.
  void Close();

  // Check.
  void Handle(UnaryCall* call) override;

 private:
  friend class HealthWatch;

  HealthStatus StatusOf(const std::string& service) const;  // needs mutex_
  void NotifyWatches(const std::string& service);           // needs mutex_

  // Held for look-ups only; nothing of a Predict request waits for it.
  std::mutex mutex_;
  bool is_closed_ = false;
  std::map<std::string, HealthStatus> statuses_;
  std::set<HealthWatch*> watches_;
};

// The method Watch: where its calls come from. Outlives them.
class HealthWatchMethod final : public CallSource {
 public:
  HealthWatchMethod(RawService* service, HealthService* health, const ServerPhase* phase);
  void WaitForCall(CallQueue* queue) override;

 private:
  friend class HealthWatch;

  RawService* const service_;
  HealthService* const health_;
  const ServerPhase* const phase_;
  const int index_;
};

}  // namespace millpond::rpc
