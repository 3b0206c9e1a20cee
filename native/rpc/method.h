#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "native/base/status.h"
#include "native/servable/batch_queue.h"

namespace millpond::rpc {

class Call;
class RunnableCall;

// The base of the three kinds of handlers below. A handler outlives its calls.
//
// Thread: request threads, several at once, each with a call of its own.
class MethodHandler {
 public:
  virtual ~MethodHandler() = default;
  // Records a call that was refused with `code`, and is never handled. May be called under the
  // connection's lock, and on the watchdog's thread.
  virtual void RecordRefusal(const Call&, base::Code) const {}
};

// Answers the calls of a method that takes one message.
class CallHandler : public MethodHandler {
 public:
  // Answers the call once, with Reply or Fail, here or later on any thread. Must not take long,
  // because it holds up the thread that reads the connection.
  virtual void Handle(Call* call) = 0;
};

// Answers the calls of a method that takes many messages.
class StreamingHandler : public MethodHandler {
 public:
  // A message has arrived. Like CallHandler::Handle it must not take long.
  virtual void HandleMessage(Call* call) = 0;
  // The client has sent its last message.
  virtual void HandleEnd(Call* call) = 0;
};

// A hash of a model's name. Requests with equal keys share a queue.
using ModelKey = uint64_t;
inline constexpr ModelKey kNoModelKey = 0;
// The key of all names that are no models.
inline constexpr ModelKey kNoSuchModelKey = 1;
// Returns the key of a model's name: neither of these.
inline ModelKey ModelKeyOf(std::string_view model_name) {
  return std::max<ModelKey>(std::hash<std::string_view>()(model_name), kNoSuchModelKey + 1);
}

// The keys by which a queue orders a request.
struct QueueKeys {
  ModelKey model = kNoModelKey;
  servable::BatchKey batch = servable::kNoBatchKey;
};

// Answers requests to models. They count as in flight (servable::Admission), may be refused for
// that, and wait for a thread that may run requests.
class ModelHandler : public MethodHandler {
 public:
  // Returns the steps that answer the request, for one thread. Never null.
  virtual std::unique_ptr<servable::WaitingRequest> MakeRequest(
      std::shared_ptr<RunnableCall> call) = 0;
  // Returns the model that the request's bytes name; "" if they name none. May be called on the
  // watchdog's thread.
  virtual std::string ModelNameOf(const Call& call) const = 0;
  // Returns the key of the batches that the request may join, as its bytes say.
  virtual servable::BatchKey BatchKeyOf(const Call& call) const = 0;
  // Returns the keys of both.
  virtual QueueKeys QueueKeysOf(const Call& call) const {
    return {KeyOf(ModelNameOf(call)), BatchKeyOf(call)};
  }
  // Returns the key of the queue of the requests that name this.
  ModelKey KeyOf(std::string_view model_name) const {
    return HasModel(model_name) ? ModelKeyOf(model_name) : kNoSuchModelKey;
  }

 protected:
  // False if no version of the name can answer now.
  virtual bool HasModel(std::string_view) const { return true; }
};

// A method of the server. Outlives its calls.
struct Method {
  using Handler = std::variant<CallHandler*, StreamingHandler*, ModelHandler*>;

  std::string path;
  Handler handler;
  int64_t message_bytes_max = INT64_MAX;
  bool is_http = false;  // its requests come over HTTP
  // About this many bytes of a message become one byte of tensors.
  size_t bytes_per_run_byte = 1;

  bool is_of_model() const { return std::holds_alternative<ModelHandler*>(handler); }
  bool takes_many() const { return std::holds_alternative<StreamingHandler*>(handler); }
  void RecordRefusal(const Call& call, base::Code code) const {
    std::visit([&](const auto* its) { its->RecordRefusal(call, code); }, handler);
  }
};

}  // namespace millpond::rpc
