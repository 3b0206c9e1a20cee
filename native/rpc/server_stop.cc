#include "native/rpc/server_stop.h"

#include <grpc/grpc.h>

#include <chrono>

namespace millpond::rpc {

ServerStop::ServerStop(grpc::Server* server)
    : server_(server), queue_(grpc_completion_queue_create_for_next(nullptr)) {
  grpc_server_shutdown_and_notify(server_->c_server(), queue_, this);
}

ServerStop::~ServerStop() {
  grpc_completion_queue_shutdown(queue_);
  const gpr_timespec never = gpr_inf_future(GPR_CLOCK_REALTIME);
  while (grpc_completion_queue_next(queue_, never, nullptr).type != GRPC_QUEUE_SHUTDOWN) {
  }
  grpc_completion_queue_destroy(queue_);
}

void ServerStop::RefuseForgottenCalls() {
  // A stopping server goes through what it has kept whenever a connection ends, and ends at once
  // one that begins.
  (void)server_->InProcessChannel({});
}

void ServerStop::EndConnections(int64_t patience_ns) {
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(patience_ns));
}

}  // namespace millpond::rpc
