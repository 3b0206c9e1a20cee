#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/cancellation.h"
#include "native/base/limits.h"
#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/rpc/call_counts.h"
#include "native/rpc/incoming_request.h"
#include "native/rpc/message_encoding.h"
#include "native/rpc/method.h"
#include "native/rpc/outgoing_reply.h"
#include "native/servable/admission.h"
#include "native/servable/awaited_change.h"
#include "native/servable/batch_queue.h"
#include "native/tensor/run_context.h"

namespace millpond::rpc {

class Call;

// The queue of requests that wait for the first version of their model. Thread: any.
class AwaitingCalls {
 public:
  virtual ~AwaitingCalls() = default;
  // Returns true if a request may wait. It has a place then, and Await follows.
  virtual bool TakeAwaitingPlace() = 0;
  // Runs `call` again when `change` has come, when its client cancels it, and at `until_ns`. Then
  // its place is free.
  virtual void Await(std::shared_ptr<Call> call, servable::AwaitedChange change,
                     int64_t until_ns) = 0;
};

// The limits and services that all calls of a server share. A call may outlive the server: it needs
// `awaiting` only while it is open. Thread: any, because nothing in it changes.
struct CallLimits {
  std::shared_ptr<servable::Admission> admission;  // decides which limited calls come in
  std::shared_ptr<base::ByteBudget> budget;        // counts the bytes under way; null: none are
  size_t reply_bytes_max = base::kMaxReplyBytes;
  int64_t message_bytes_max = INT32_MAX;  // of a request, before it is decompressed and after
  int64_t first_version_wait_ns = 0;  // a limited call waits so long for its model's first version
  int64_t request_ns_max = 0;         // the deadline of a limited call without one; 0: none
  ReplyCompression reply_compression = ReplyCompression::kNone;
  const std::atomic<bool>* is_cut_short = nullptr;  // a stop runs no further request
  AwaitingCalls* awaiting = nullptr;
};

// The connection of a call, as the call sees it. Thread: any.
class CallCarrier {
 public:
  virtual ~CallCarrier() = default;
  // The client's end, like "ipv4:127.0.0.1:50000", "ipv6:%5B::1%5D:5" or "unix:".
  virtual const std::string& peer() const = 0;
  // The common name and the alternative names of the client's verified certificate; empty without
  // one.
  virtual std::vector<std::string> ClientNames() = 0;
  // Ends `call`, which is over then. Does nothing if it is over already.
  virtual void Answer(Call* call, CallEnd end) = 0;
  // Sends one of many messages. Returns false if `waiting_max` wait already for the client to read
  // them.
  virtual bool Send(Call* call, std::shared_ptr<OutMessage> message, size_t waiting_max) = 0;
  // Writes the answers that were held (CallEnd::is_held).
  virtual void WriteAnswers() = 0;
};

// One call whose request has arrived: what a handler sees of it, and its answer.
//
// All that it holds counts in the server's budget: the call itself and its headers in one share
// from its beginning to its end, its message in another one, its answers in their own (OutMessage).
//
// Thread: Close: its connection. The functions for the threads and for handlers: one thread at a
// time. Reply, Fail, Send, Finish, is_over and Cancel: any.
class Call final : public std::enable_shared_from_this<Call> {
 public:
  // Takes what has arrived of `request`: all of it, or a part if the call is only to be refused.
  // `open_bytes` are those of a call that no admission counts.
  Call(std::shared_ptr<CallCarrier> carrier, const CallLimits* limits, int32_t stream,
       IncomingRequest* request, LiveCall live, OpenCallBytes open_bytes);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // --- for the connection ---

  int32_t stream() const { return stream_; }
  // True if the admission counts it.
  bool is_limited() const { return method_->handler->IsLimited(); }
  bool takes_many() const { return method_->kind == MethodKind::kBidiStreaming; }
  // Ends the call: nothing can be sent any more. If it was not answered, its client waits for no
  // answer.
  void Close(int64_t now_ns) {
    if (!is_over_.exchange(true)) cancellation_.Cancel(now_ns);
  }
  void MarkArrived() { live_.MarkArrived(); }
  void MarkAnswered() { is_over_.store(true, std::memory_order_release); }
  // The connection ends the call itself, with `code`. The memory of a request that is still
  // arriving is free before the client learns of the end.
  void RefuseArriving(base::Code code);
  int64_t open_bytes() const { return open_bytes_.bytes(); }

  // --- for the threads ---

  // Handles what has come, on the thread that read it and has the connection's turn. Returns true
  // for a request to a model that was admitted: a thread that runs requests is to call MakeRequest.
  bool Arrive();
  // The same for one of many messages, and for their end.
  void ArriveOne(std::string_view message);
  void ArriveEnd() { method_->handler->HandleEnd(this); }
  // The steps of a thread that runs the request. Read decompresses its message. MakeRequest returns
  // the request, or null if it is answered. SendHeld sends an answer that was held. EndTurn puts
  // the request aside if its handler asked for that.
  void Read() { (void)message_.Read(); }
  std::unique_ptr<servable::WaitingRequest> MakeRequest();
  void SendHeld();
  void EndTurn();
  void Cancel(int64_t now_ns) { cancellation_.Cancel(now_ns); }
  // True if the client is gone; what waits for a version is answered then.
  const std::atomic<bool>* cancellation_flag() const { return cancellation_.flag(); }
  // True if an answer is still waited for.
  bool IsWanted(int64_t now_ns) const {
    return !cancellation_.is_cancelled() && now_ns < run_.deadline_ns;
  }
  // Returns the model that a request is for. Reads the message if it must.
  std::string ModelName();
  // The same after Read and until EndTurn, from any thread.
  std::string PeekModelName() const { return method_->handler->ModelNameOf(*this); }
  // Reads the key of the batches that the request may join, if there are any batches. A compressed
  // message has none: it would have to be decompressed for it.
  void PeekBatchKey();
  servable::BatchKey batch_key() const { return batch_key_; }
  bool is_compressed() const { return message_.is_compressed(); }
  size_t message_bytes() const { return message_.bytes(); }
  // Instead of MakeRequest: ends the call with `status`, and tells the client when to try again.
  void Refuse(const base::Status& status);

  // --- for handlers ---

  const std::string& path() const { return method_->path; }
  // The bytes of the message, in place; valid while the call lives, until TakeRequest.
  base::WireReader request() const {
    return shown_ ? base::WireReader(&*shown_, 1) : message_.reader();
  }
  // Returns the bytes of the message as one string, and frees those that came: request() is empty
  // then. RESOURCE_EXHAUSTED if the budget has no place for a copy beside them.
  base::StatusOr<base::ChargedText> TakeRequest() { return message_.TakeText(); }
  int64_t received_ns() const { return received_ns_; }
  // The client's deadline, and its cancellation.
  const tensor::RunContext& run_context() const { return run_; }
  // The first value of a key (in lower case) of the client's metadata; lives as long as the call.
  std::optional<std::string_view> FindMetadata(std::string_view key) const {
    return headers_.FindMetadata(key);
  }
  // See CallCarrier.
  const std::string& peer() const { return carrier_->peer(); }
  std::vector<std::string> ClientNames() const { return carrier_->ClientNames(); }
  // OK while an answer is still wanted: nothing need be computed for a client that is gone.
  base::Status CheckIsWanted() const;
  // Returns the end of a request that ended with `status`, as far as its client's view is known:
  // DEADLINE_EXCEEDED if the deadline may have passed at the client when the cancellation was seen.
  // A client whose deadline passes cancels the call, and the wire gives no reason with it.
  base::Status AsSeenByClient(base::Status status) const;

  // Instead of an answer, as the last step of MethodHandler::Handle: has the call handled again
  // when `change` has come, when the client cancels, and once more before the time to wait for a
  // first version, or the client's deadline, is over. False if it may not wait (longer).
  bool TryAwait(const servable::AwaitedChange& change);

  // The answer that follows stays on this machine until SendHeld.
  void HoldAnswer() { holds_answer_ = true; }
  void Reply(base::ReplyBytes reply);
  void Reply(std::string_view bytes);
  void Fail(const base::Status& status);
  // A message of a method that sends many. Too many that the client does not read end the call.
  void Send(std::string_view message);
  // The end of a method that sends many.
  void Finish(const base::Status& status) { Fail(status); }
  // True if nothing can be sent any more. Any thread.
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  // Keeps `attachment` exactly as long as the call: what a handler notes about a stream goes with
  // it. Once, in Handle.
  void Attach(std::shared_ptr<void> attachment) { attachment_ = std::move(attachment); }

 private:
  // The version that the request waits for, and for how long.
  struct Awaited {
    servable::AwaitedChange change;
    int64_t until_ns = 0;
  };

  base::StatusOr<std::shared_ptr<OutMessage>> MakeMessage(std::string_view bytes) const;
  base::Status Enter();
  void Handle();
  // Returns the start of a message that is not read yet and compressed; "" of any other.
  std::string StartOfMessage() const;
  void RecordRefusal(base::Code code) const { method_->handler->RecordRefusal(*this, code); }
  void FreeRequest();  // the message and the headers
  void End(CallEnd end);

  const std::shared_ptr<CallCarrier> carrier_;
  const CallLimits* const limits_;
  const int32_t stream_;
  const Method* const method_;  // gone with the server, which an answer may outlive
  LiveCall live_;
  const OpenCallBytes open_bytes_;
  RequestHeaders headers_;
  IncomingMessage message_;
  std::optional<std::string_view> shown_;  // as request(), instead of the message
  int64_t received_ns_;
  tensor::RunContext run_;
  bool has_servers_deadline_ = false;   // because the client set none
  servable::Admission::Ticket ticket_;  // until it is answered
  servable::BatchKey batch_key_ = servable::kNoBatchKey;
  std::optional<Awaited> awaited_;  // what the handler asked for in this turn
  bool holds_answer_ = false;       // until SendHeld
  base::Cancellation cancellation_;
  std::shared_ptr<void> attachment_;
  std::atomic<bool> is_over_{false};
};

}  // namespace millpond::rpc
