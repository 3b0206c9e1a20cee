#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "native/base/status.h"
#include "native/servable/batch_queue.h"

namespace millpond::rpc {

class Call;

// Answers the calls of one method. Outlives them.
//
// Thread: request threads, several at once, each with a call of its own; IsLimited and
// RecordRefusal also under its connection's lock. The watchdog too calls ModelNameOf and
// RecordRefusal.
class MethodHandler {
 public:
  virtual ~MethodHandler() = default;
  // Called when a message has arrived: once for a method that takes one. Answers a unary call once,
  // with Reply or Fail, here or later on any thread.
  virtual void Handle(Call* call) = 0;
  // Returns a call of a limited method as a request that runs in steps. Returns null if Handle
  // answers it as a whole.
  virtual std::unique_ptr<servable::WaitingRequest> MakeRequest(std::shared_ptr<Call>) {
    return {};
  }
  // Called for a method that takes many messages, when the client has sent the last one.
  virtual void HandleEnd(Call*) {}

  // True if the calls are requests to models: then they count as in flight (servable::Admission),
  // may be refused for that, and wait for a thread that may run requests. Other calls, like health
  // checks, are handled as they come, and must not take long.
  virtual bool IsLimited() const { return false; }
  // Returns the model that a limited call is for, as its bytes say; "" if they do not.
  virtual std::string ModelNameOf(const Call&) const { return ""; }
  // Returns the key of the batches that a limited call may join, as its bytes say.
  virtual servable::BatchKey BatchKeyOf(const Call&) const { return servable::kNoBatchKey; }
  // Records a call that was refused with `code` and is never handled.
  virtual void RecordRefusal(const Call&, base::Code) const {}
};

enum class MethodKind { kUnary, kServerStreaming, kBidiStreaming };

// A method of the server. Outlives its calls.
struct Method {
  std::string path;
  MethodKind kind = MethodKind::kUnary;
  MethodHandler* handler = nullptr;
  int64_t message_bytes_max = INT64_MAX;
  bool is_http = false;  // its requests come over HTTP
  // So many bytes of a message make one byte of tensors, more or less.
  size_t bytes_per_run_byte = 1;
};

}  // namespace millpond::rpc
