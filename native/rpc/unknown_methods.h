#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include "native/rpc/call_queue.h"
#include "native/rpc/poller_pool.h"

namespace millpond::rpc {

class UnknownCall;

// Answers each call of a method that no service has: UNIMPLEMENTED, with the method's name. gRPC's
// own answer has no message. Outlives its calls.
class UnknownMethods final : public CallSource {
 public:
  // No call is waited for once `phase` stops.
  explicit UnknownMethods(const ServerPhase* phase) : phase_(phase) {}

  // Before the server is built.
  void RegisterWith(grpc::ServerBuilder* builder) {
    builder->RegisterAsyncGenericService(&service_);
  }

  void WaitForCall(CallQueue* queue) override;

 private:
  friend class UnknownCall;

  const ServerPhase* const phase_;
  grpc::AsyncGenericService service_;
};

}  // namespace millpond::rpc
