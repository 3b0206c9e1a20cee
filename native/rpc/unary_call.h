#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/cancellation.h"
#include "native/base/limits.h"
#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/rpc/completion_tag.h"
#include "native/rpc/poller_pool.h"
#include "native/rpc/raw_service.h"
#include "native/servable/admission.h"
#include "native/servable/awaited_change.h"
#include "native/tensor/run_context.h"

namespace millpond::rpc {

class UnaryCall;

// What all calls of a server share. Borrows all.
struct CallLimits {
  servable::Admission* admission = nullptr;  // decides which limited calls come in
  base::ByteBudget* budget = nullptr;        // counts the bytes under way; null: nothing is counted
  size_t reply_bytes_max = base::kMaxReplyBytes;
  int64_t first_version_wait_ns = 0;  // a limited call waits so long for its model's first version
};

// Answers the calls of one method.
class UnaryHandler {
 public:
  virtual ~UnaryHandler() = default;
  // On a poller's thread. Answers `call` once, with Reply or Fail, here or later on any thread.
  virtual void Handle(UnaryCall* call) = 0;

  // Whether its calls are requests to models: then they count as in flight (servable::Admission),
  // may be refused for that, and wait for their turn where all threads are busy. Others, like
  // health checks, are handled as they come.
  virtual bool IsLimited() const { return false; }
  // Returns true for a method that carries the load of a server: its calls may pile up in gRPC.
  virtual bool IsHot() const { return false; }
  // The model that a limited call is for, as its bytes say; "" where they do not. Asked for only
  // where a model has a limit of its own.
  virtual std::string ModelNameOf(const UnaryCall& call) const;
  // Records a call that was refused with `code` and is never handled.
  virtual void RecordRefusal(const UnaryCall& call, base::Code code) const;
};

// A method of the server: where its calls come from and who answers them. Outlives its calls.
class UnaryMethod final : public CallSource {
 public:
  // Adds itself to `service`, before the server is built. No call is waited for once `phase` stops.
  // A message has at most `message_bytes_max`, before it is decompressed and after.
  UnaryMethod(std::string path, RawService* service, UnaryHandler* handler,
              const ServerPhase* phase, const CallLimits* limits,
              int64_t message_bytes_max = INT64_MAX);

  void WaitForCall(CallQueue* queue) override;
  bool IsHot() const override { return handler_->IsHot(); }
  const std::string& path() const { return path_; }

 private:
  friend class UnaryCall;

  const std::string path_;
  RawService* const service_;
  UnaryHandler* const handler_;
  const ServerPhase* const phase_;
  const CallLimits* const limits_;
  const int64_t message_bytes_max_;
  const int index_;
};

// One unary call, from the wait for it to the end of its reply, perhaps with a wait for its turn in
// between. Frees itself when it is through.
class UnaryCall final : private ParkedRequest {
 public:
  UnaryCall(const UnaryCall&) = delete;
  UnaryCall& operator=(const UnaryCall&) = delete;

  const std::string& path() const { return method_->path(); }
  // The request's bytes, in place; good until the call is answered and, where it is answered
  // within UnaryHandler::Handle, until that returns.
  base::WireReader request() const { return {segments_.data(), segments_.size()}; }
  // Returns the request's bytes as one string, and frees those that came: request() is empty then.
  // RESOURCE_EXHAUSTED if the budget has no place for the copy beside them.
  base::StatusOr<std::string> TakeRequest();
  int64_t received_ns() const { return received_ns_; }
  // The client's deadline, and whether it has cancelled.
  const tensor::RunContext& run_context() const { return run_; }
  // The first value of a key (in lower case) of the client's metadata; lives as long as the call.
  // The first question sorts all of the metadata into a map, which takes allocations.
  std::optional<std::string_view> FindMetadata(std::string_view key) const;
  // The client's end of the connection as gRPC writes it, like "ipv4:127.0.0.1:50000" or "unix:".
  std::string peer() const { return context_.peer(); }
  // The common name and the alternative names of the client's verified certificate; empty without
  // one.
  std::vector<std::string> ClientNames() const;
  // OK while an answer is still wanted: nothing need be computed for a client that is gone.
  base::Status CheckIsWanted() const;
  // Returns the end of a request that ended with `status`, as far as its client's view is known:
  // DEADLINE_EXCEEDED if the deadline may have passed at the client when the cancellation was seen.
  // A client whose deadline passes cancels the call, and the wire gives no reason with it.
  base::Status AsSeenByClient(base::Status status) const;

  // A message that holds `reply`, without a copy, until gRPC has sent it.
  static grpc::ByteBuffer MakeMessage(base::ReplyBytes reply);

  // Instead of an answer, as the last step of UnaryHandler::Handle: has the call handled again when
  // `change` has come, when the client cancels, and once more before the time to wait for a first
  // version, or the client's deadline, is over. False if it may not wait (longer).
  bool TryAwait(const servable::AwaitedChange& change);

  void Reply(const grpc::ByteBuffer& message);
  void Reply(std::string_view bytes);
  void Fail(const base::Status& status);

 private:
  friend class UnaryMethod;

  UnaryCall(UnaryMethod* method, CallQueue* queue);
  ~UnaryCall() override = default;

  void Wait();

  void OnReceived(bool ok);
  void OnDone(bool ok);      // the client is gone, or has its answer
  void OnAnswered(bool ok);  // the reply is out, or could not go out
  base::Status Enter();
  int64_t RequestBytes() const;
  base::Status CountRequest();
  void Handle();
  void Refuse(const base::Status& status);
  void RunParked() override;
  void EndTurn();
  base::Status ReadRequest();
  void ForgetRead();
  void Release();
  void Delete();

  UnaryMethod* const method_;
  CallQueue* const queue_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> responder_{&context_};
  std::vector<grpc::Slice> slices_;
  std::vector<std::string_view> segments_;  // of slices_
  int64_t received_ns_ = 0;
  tensor::RunContext run_;
  servable::Admission::Ticket ticket_;       // until it is answered
  base::ByteBudget::Share share_;            // of the request's bytes
  std::optional<AwaitingRequest> awaiting_;  // what the handler asked for in this turn
  base::Cancellation cancellation_;
  MemberTag<UnaryCall> received_tag_{this, &UnaryCall::OnReceived};
  MemberTag<UnaryCall> done_tag_{this, &UnaryCall::OnDone};
  MemberTag<UnaryCall> answered_tag_{this, &UnaryCall::OnAnswered};
  // The poller that received the call, its answer and its done tag; the last one frees it. The done
  // tag may come on another thread before the first has done anything.
  std::atomic<int> hold_count_{3};
};

}  // namespace millpond::rpc
