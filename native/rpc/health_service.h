#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "native/rpc/call.h"

namespace millpond::rpc {

// grpc.health.v1.HealthCheckResponse.ServingStatus.
enum class HealthStatus { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

// grpc.health.v1.Health (github.com/grpc/grpc/blob/master/doc/health-checking.md): Check and Watch
// by service name; "" is the whole server.
//
// Thread: the control plane calls Set, Remove and Close; request threads run the two handlers.
class HealthService {
 public:
  void Set(const std::string& service, bool is_serving);
  void Remove(const std::string& service);
  // Ends every Watch after its last status: the server drains.
  void Close();

  MethodHandler* check() { return &check_; }
  MethodHandler* watch() { return &watch_; }

 private:
  struct Check final : MethodHandler {
    explicit Check(HealthService* service) : health(service) {}
    void Handle(Call* call) override { health->HandleCheck(call); }
    HealthService* const health;
  };
  struct Watch final : MethodHandler {
    explicit Watch(HealthService* service) : health(service) {}
    void Handle(Call* call) override { health->HandleWatch(call); }
    HealthService* const health;
  };
  // A Watch under way.
  struct Watcher {
    std::shared_ptr<Call> call;
    std::string service;
    HealthStatus written = HealthStatus::kUnknown;
  };

  void HandleCheck(Call* call);
  void HandleWatch(Call* call);
  HealthStatus StatusOf(const std::string& service) const;  // needs mutex_
  void Notify(const std::string& service);                  // needs mutex_
  void DropEndedWatchers();                                 // needs mutex_

  // Held for look-ups, and while a status is written. Predict requests do not take it.
  std::mutex mutex_;
  bool is_closed_ = false;
  std::map<std::string, HealthStatus> statuses_;
  std::vector<Watcher> watchers_;
  size_t watchers_after_drop_ = 0;
  Check check_{this};
  Watch watch_{this};
};

}  // namespace millpond::rpc
