#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>

namespace millpond::rpc {

// The end of a gRPC server, in two steps: grpc::Server::Shutdown has only one, which takes as long
// as the last connection, and may not be told that nobody waits for that one any more.
//
// It cannot wait for connections alone: gRPC looks whether it stops, and then keeps a call for a
// wait. A call that arrives while it begins to stop may be kept for a wait that never comes,
// unknown to us, until its connection ends or RefuseForgottenCalls.
class ServerStop {
 public:
  // Closes the port, takes no new call, and asks clients to leave (GOAWAY). Does not wait. Nothing
  // may be asking for a call meanwhile (CallQueue::AskUnless): gRPC might lose the wait for it.
  explicit ServerStop(grpc::Server* server);
  ~ServerStop();
  ServerStop(const ServerStop&) = delete;
  ServerStop& operator=(const ServerStop&) = delete;

  // Ends the calls that gRPC has kept: CANCELLED, as all that come late on an open connection. A
  // thread of gRPC's may be just about to keep another; so again now and then.
  void RefuseForgottenCalls();

  // Waits until clients have left, and ends after `patience_ns` the connections that are left, with
  // what runs on them: a call is cancelled here and UNAVAILABLE at its client. Once.
  void EndConnections(int64_t patience_ns);

 private:
  grpc::Server* const server_;
  grpc_completion_queue* const queue_;  // gRPC tells the end of the server to some queue
};

}  // namespace millpond::rpc
