#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>

namespace millpond::rpc {

// The end of a gRPC server, in two steps: grpc::Server::Shutdown has only one, which takes as long
// as the last connection, and may not be told that nobody waits for that one any more.
//
// It cannot wait for connections alone: gRPC first fails the waits for calls, and then refuses
// calls; a call that arrives in between is kept for a wait that never comes, unknown to us, until
// its connection ends.
class ServerStop {
 public:
  // Closes the port, takes no new call, and asks clients to leave (GOAWAY). Does not wait. Nothing
  // may be asking for a call meanwhile (CallQueue::AskUnless): gRPC might lose the wait for it.
  explicit ServerStop(grpc::Server* server);
  ~ServerStop();
  ServerStop(const ServerStop&) = delete;
  ServerStop& operator=(const ServerStop&) = delete;

  // Waits until clients have left, and ends after `patience_ns` the connections that are left, with
  // what runs on them: a call is cancelled here and UNAVAILABLE at its client. Once.
  void EndConnections(int64_t patience_ns);

 private:
  grpc::Server* const server_;
  grpc_completion_queue* const queue_;  // gRPC tells the end of the server to some queue
};

}  // namespace millpond::rpc
