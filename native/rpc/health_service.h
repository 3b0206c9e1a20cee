#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
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
  // Ends every Watch after its last status, because the server drains.
  void Close();

  CallHandler* check() { return &check_; }
  CallHandler* watch() { return &watch_; }

 private:
  struct Check final : CallHandler {
    explicit Check(HealthService* service) : health(service) {}
    void Handle(Call* call) override { health->HandleCheck(call); }
    HealthService* const health;
  };
  struct Watch final : CallHandler {
    explicit Watch(HealthService* service) : health(service) {}
    void Handle(Call* call) override { health->HandleWatch(call); }
    HealthService* const health;
  };
  class Watcher;
  // A watcher, and the call that owns it.
  using Watching = std::pair<std::shared_ptr<Call>, Watcher*>;

  // The part that watchers share with the service. A call may outlive the service.
  struct State {
    HealthStatus StatusOf(const std::string& service) const;  // needs mutex
    // Returns the watchers of `service`, or all without it. Needs mutex.
    std::vector<Watching> WatchersOf(const std::string* service) const;

    // Held for look-ups, and never while something is sent, because a connection may then let go of
    // another watcher. Predict requests do not take it.
    std::mutex mutex;
    bool is_closed = false;
    std::map<std::string, HealthStatus> statuses;
    std::set<Watcher*> watchers;
  };

  void HandleCheck(Call* call);
  void HandleWatch(Call* call);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  Check check_{this};
  Watch watch_{this};
};

}  // namespace millpond::rpc
