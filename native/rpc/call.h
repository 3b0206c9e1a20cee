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
#include "native/rpc/arrived_request.h"
#include "native/rpc/call_counts.h"
#include "native/rpc/message_encoding.h"
#include "native/rpc/method.h"
#include "native/rpc/outgoing_reply.h"
#include "native/servable/admission.h"
#include "native/servable/awaited_change.h"
#include "native/servable/batch_registry.h"
#include "native/tensor/run_context.h"

namespace millpond::rpc {

class RunnableCall;

// The queue of requests that wait for the first version of their model. Thread: any.
class AwaitingCalls {
 public:
  virtual ~AwaitingCalls() = default;
  // Returns true if a request may wait. It has a place then, and Await follows.
  virtual bool TakeAwaitingPlace() = 0;
  // Gives `call` another turn when `change` has come, when its client cancels, or at `until_ns`.
  // Its place is free from then on.
  virtual void Await(std::shared_ptr<RunnableCall> call, servable::AwaitedChange change,
                     int64_t until_ns) = 0;
};

// The limits and services that all calls of a server share. A call may outlive the server: it needs
// `awaiting` only while it is open. Thread: any, because nothing in it changes.
struct CallLimits {
  std::shared_ptr<servable::Admission> admission;    // decides which requests to models come in
  std::shared_ptr<base::ByteBudget> budget;          // counts the bytes under way; null: none are
  const servable::BatchRegistry* batches = nullptr;  // null: no call needs a key
  size_t reply_bytes_max = base::kMaxReplyBytes;
  int64_t message_bytes_max = INT32_MAX;  // of a request, before it is decompressed and after
  int64_t first_version_wait_ns = 0;      // a request waits so long for its model's first version
  int64_t request_ns_max = 0;             // the deadline of a request without one; 0: none
  const char* request_flag = "--max_request_seconds; the client set no deadline";  // of the above
  ReplyCompression reply_compression = ReplyCompression::kNone;
  const std::atomic<bool>* is_cut_short = nullptr;  // a stop runs no further request
  AwaitingCalls* awaiting = nullptr;
};

// A connection, as its calls see it. The number of its stream names a call until the call is over.
// Thread: any.
class CallCarrier : public std::enable_shared_from_this<CallCarrier> {
 public:
  virtual ~CallCarrier() = default;
  // The client's end, like "ipv4:127.0.0.1:50000", "ipv6:%5B::1%5D:5" or "unix:".
  virtual const std::string& peer() const = 0;
  // The common name and the alternative names of the client's verified certificate; empty without
  // one.
  virtual std::vector<std::string> ClientNames() = 0;
  // The IP address at which the client connected, over HTTP; "" otherwise.
  virtual const std::string& local_address() const = 0;
  // Takes the next of many messages that have arrived. Returns false if none is to be handled now.
  // Sets `*is_end` if the client has sent the last one.
  virtual bool TakeMessage(int32_t stream, base::ChargedText* message, bool* is_end) = 0;
  // Sends the end of the call, which is over then. Does nothing if the call is over already.
  virtual void Answer(int32_t stream, CallEnd end) = 0;
  // Sends one of many messages. Returns false if `waiting_max` messages wait already for the client
  // to read them. Does nothing if the call is over.
  virtual bool Send(int32_t stream, std::shared_ptr<OutMessage> message, size_t waiting_max) = 0;
  // Writes the answers that were held (CallEnd::is_held).
  virtual void WriteAnswers() = 0;
};

// One call whose request has arrived, as handlers see it, and its answer. RunnableCall is the same
// call for the threads that run it, StreamCall for its connection.
//
// All memory of a call counts in the server's budget. One share has the call itself and its
// headers, another share has its message, and each answer has a share of its own (OutMessage).
//
// Thread: Reply, Fail, Send, Finish and is_over: any, and at once unless the call is a request to a
// model. All else: one at a time, which is the thread that handles the call.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // --- the request ---

  const std::string& path() const { return arrived_.method().path; }
  // The bytes of the message, in place; valid while the call lives, until TakeRequest.
  base::WireReader request() const { return arrived_.bytes(); }
  // Returns the bytes of the message as one string, and frees those that came: request() is empty
  // then. RESOURCE_EXHAUSTED if the budget has no place for a copy beside them.
  base::StatusOr<base::ChargedText> TakeRequest() { return arrived_.TakeText(); }
  int64_t received_ns() const { return arrived_.received_ns(); }
  bool is_http() const { return arrived_.method().is_http; }
  // The method and the target of a request over HTTP, as received, and all its headers as
  // ForEachMetadata reads them.
  const std::string& http_method() const { return arrived_.headers().http_method(); }
  const std::string& target() const { return arrived_.headers().path(); }
  const std::string& metadata() const { return arrived_.headers().metadata(); }
  // The client's deadline, and its cancellation.
  const tensor::RunContext& run_context() const { return run_; }
  // The first value of a key (in lower case) of the client's metadata; lives as long as the call.
  std::optional<std::string_view> FindMetadata(std::string_view key) const {
    return arrived_.headers().FindMetadata(key);
  }
  // See CallCarrier.
  const std::string& peer() const { return carrier_->peer(); }
  std::vector<std::string> ClientNames() const { return carrier_->ClientNames(); }
  // OK while an answer is still wanted: nothing need be computed for a client that is gone.
  base::Status CheckIsWanted() const;
  // Returns the status that the client of a request has seen, if the server's is `status`. A client
  // whose deadline passes cancels its call, and the wire gives no reason. So a cancellation that
  // came at about the deadline is DEADLINE_EXCEEDED.
  base::Status AsSeenByClient(base::Status status) const;

  // --- the answer ---

  // Keeps the next answer on this machine until SendHeld: the answers of a batch are sent together.
  void HoldAnswer() { holds_answer_ = true; }
  void SendHeld();
  // The header lines of the answer over HTTP. A failure has them too.
  std::string* http_fields() { return &http_fields_; }
  void ReplyHttp(std::shared_ptr<HttpAnswer> answer);
  void Reply(base::ReplyBytes reply);
  void Reply(std::string_view bytes);
  void Fail(const base::Status& status);
  // Sends one of many messages. Fails the call if too many of them wait for the client to read
  // them.
  void Send(std::string_view message);
  // Ends a call that sends many messages.
  void Finish(const base::Status& status) { Fail(status); }
  // True if nothing can be sent any more.
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  // Keeps `attachment` until the call is destroyed, for what a handler notes about the call. Call
  // it once, in the handler.
  void Attach(std::shared_ptr<void> attachment) { attachment_ = std::move(attachment); }

 protected:
  Call(std::shared_ptr<CallCarrier> carrier, const CallLimits* limits, int32_t stream,
       ArrivedRequest arrived, CallAccount account);
  ~Call() = default;

  const CallLimits& limits() const { return *limits_; }
  const ArrivedRequest& arrived() const { return arrived_; }
  ArrivedRequest* mutable_arrived() { return &arrived_; }
  CallAccount* mutable_account() { return &account_; }
  // Takes the next of many messages; see CallCarrier.
  bool TakeMessage(base::ChargedText* message, bool* is_end) {
    return carrier_->TakeMessage(stream_, message, is_end);
  }
  // Counts the request as in flight, until it is answered.
  void SetInFlight(servable::Admission::Ticket ticket) { ticket_ = std::move(ticket); }
  bool is_in_flight() const { return static_cast<bool>(ticket_); }
  void Cancel(int64_t now_ns) { cancellation_.Cancel(now_ns); }
  // True if the client is gone.
  bool is_cancelled() const { return cancellation_.is_cancelled(); }
  // Nothing can be sent from now on. Returns false if that was so before.
  bool SetOver() { return !is_over_.exchange(true); }
  void End(CallEnd end);

 private:
  base::StatusOr<std::shared_ptr<OutMessage>> MakeMessage(std::string_view bytes) const;

  const std::shared_ptr<CallCarrier> carrier_;
  const CallLimits* const limits_;
  const int32_t stream_;
  CallAccount account_;  // counts the call until all members below are gone
  ArrivedRequest arrived_;
  tensor::RunContext run_;
  servable::Admission::Ticket ticket_;
  base::Cancellation cancellation_;
  std::atomic<bool> is_over_{false};
  std::string http_fields_;
  bool has_servers_deadline_ = false;  // because the client set none
  bool holds_answer_ = false;          // until SendHeld
  std::shared_ptr<void> attachment_;
};

}  // namespace millpond::rpc
