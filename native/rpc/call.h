#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
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
#include "native/rpc/message_encoding.h"
#include "native/rpc/receive_block.h"
#include "native/servable/admission.h"
#include "native/servable/awaited_change.h"
#include "native/servable/batch_scope.h"
#include "native/tensor/run_context.h"

namespace millpond::rpc {

class Call;
class Connection;
class RequestThreads;

// The limits and services that all calls of a server share. A call may outlive the server: it needs
// `threads` only while it is open. Thread: any, because nothing in it changes.
struct CallLimits {
  std::shared_ptr<servable::Admission> admission;  // decides which limited calls come in
  std::shared_ptr<base::ByteBudget> budget;        // counts the bytes under way; null: none are
  size_t reply_bytes_max = base::kMaxReplyBytes;
  int64_t message_bytes_max = INT32_MAX;  // of a request, before it is decompressed and after
  int64_t first_version_wait_ns = 0;  // a limited call waits so long for its model's first version
  int64_t request_ns_max = 0;         // the deadline of a limited call without one; 0: none
  ReplyCompression reply_compression = ReplyCompression::kNone;
  const std::atomic<bool>* is_cut_short = nullptr;  // a stop runs no further request
  RequestThreads* threads = nullptr;
};

// Answers the calls of one method. Outlives them.
//
// Thread: request threads, several at once, each with a call of its own.
class MethodHandler {
 public:
  virtual ~MethodHandler() = default;
  // Called when a message has arrived: once for a method that takes one. Answers a unary call once,
  // with Reply or Fail, here or later on any thread.
  virtual void Handle(Call* call) = 0;
  // Called for a method that takes many messages, when the client has sent the last one.
  virtual void HandleEnd(Call*) {}

  // True if the calls are requests to models: then they count as in flight (servable::Admission),
  // may be refused for that, and wait for a thread that may run requests. Other calls, like health
  // checks, are handled as they come, and must not take long.
  virtual bool IsLimited() const { return false; }
  // Returns the model that a limited call is for, as its bytes say; "" if they do not.
  virtual std::string ModelNameOf(const Call& call) const;
  // Returns the key of the batches that a limited call may join, as its bytes say.
  virtual servable::BatchKey BatchKeyOf(const Call&) const { return servable::kNoBatchKey; }
  // Records a call that was refused with `code` and is never handled.
  virtual void RecordRefusal(const Call& call, base::Code code) const;
};

enum class MethodKind { kUnary, kServerStreaming, kBidiStreaming };

// A method of the server. Outlives its calls.
struct Method {
  std::string path;
  MethodKind kind = MethodKind::kUnary;
  MethodHandler* handler = nullptr;
  int64_t message_bytes_max = INT64_MAX;
};

// A message on its way to the client, with the five bytes before it. Owns the bytes, which count in
// the server's budget, as those of every base::ReplyBytes.
class OutMessage {
 public:
  static constexpr size_t kPrefixBytes = 5;

  OutMessage(base::ReplyBytes reply, bool is_compressed);
  OutMessage(const OutMessage&) = delete;
  OutMessage& operator=(const OutMessage&) = delete;

  std::string_view prefix() const { return {prefix_, kPrefixBytes}; }
  std::string_view body() const { return reply_.view(); }
  size_t size() const { return kPrefixBytes + reply_.size(); }

 private:
  base::ReplyBytes reply_;
  char prefix_[kPrefixBytes];
};

// One call: its headers, its messages as they arrive, and its answer. Its connection makes it and
// feeds it; a handler answers it.
//
// All that it holds counts in the server's budget: the call itself and its headers in one share
// from its beginning to its end, its message in another one, its answers in their own (OutMessage).
//
// Thread: the connection calls the functions of the first part, under its lock; handlers call those
// of the second part, one thread at a time.
class Call final : public std::enable_shared_from_this<Call> {
 public:
  // The bytes that a call takes when it begins: its object, and room for usual headers.
  static constexpr int64_t kHeaderRoomBytes = 2'048;
  static int64_t BeginBytes();

  // `charge` has the BeginBytes.
  Call(std::shared_ptr<Connection> connection, const CallLimits* limits, int32_t stream_id,
       base::ByteBudget::Share charge);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // --- for the connection ---

  int32_t stream_id() const { return stream_id_; }
  // The bytes of the budget that the call itself and its headers take.
  int64_t charged_bytes() const { return charge_.bytes(); }
  size_t header_bytes() const { return header_bytes_; }
  // Takes one header of the request. False if no memory is left for it.
  bool AddHeader(std::string_view name, std::string_view value);
  // Returns the HTTP status for headers that are no gRPC call; 200 if they are one.
  int HttpStatus() const;
  const std::string& header_path() const { return path_; }
  // All headers have come, and `method` is the path's. An error ends the call.
  base::Status Begin(const Method* method, int64_t now_ns);
  // Takes a part of the client's bytes, which lie in the block of `space`. An error ends the call.
  base::Status AddData(std::string_view data, ReceiveSpace* space, int64_t now_ns);
  // The client sends no more. An error ends the call.
  base::Status EndRequest();
  // Returns true if Arrive has something to do.
  bool is_due() const { return is_due_; }
  // Ends the call: its stream is closed, and its client waits for no answer.
  void Close(int64_t now_ns);
  bool has_ended_request() const { return has_ended_request_; }
  void MarkRequestEnded() { has_ended_request_ = true; }
  bool is_receiving() const { return method_ != nullptr && !has_ended_request_ && !is_answered_; }
  // True if the call's one message is arriving, and a part of it came at `since_ns` or later.
  bool is_arriving(int64_t since_ns) const {
    return is_receiving() && method_->kind != MethodKind::kBidiStreaming && data_ns_ >= since_ns;
  }
  // True if it is arriving, and no part of it came since then.
  bool is_paused(int64_t since_ns) const {
    return is_receiving() && method_->kind != MethodKind::kBidiStreaming && data_ns_ < since_ns;
  }
  // True if messages wait for the client to read them, and nothing was sent since then.
  bool is_left_unread(int64_t since_ns) const {
    return !out.messages.empty() && out.progress_ns < since_ns;
  }
  // True if the admission counts it.
  bool is_limited() const { return method_->handler->IsLimited(); }
  bool is_answered() const { return is_answered_; }
  // True if an answer is still waited for.
  bool IsWanted(int64_t now_ns) const {
    return !cancellation_.is_cancelled() && now_ns < run_.deadline_ns;
  }
  // The connection has taken the answer.
  void MarkAnswered() {
    is_answered_ = true;
    is_over_.store(true, std::memory_order_release);
  }
  // The connection ends the call itself, with `code`. The memory of a request that is still
  // arriving is free before the client learns of the end.
  void RefuseArriving(base::Code code);
  void Cancel(int64_t now_ns) { cancellation_.Cancel(now_ns); }
  // The bytes for which the call counts in Wire::open_call_bytes.
  int64_t counted_open_bytes = 0;
  // True if it counts in Wire::arrived_call_count.
  bool has_arrived = false;

  // The answer, as far as it is known. The connection reads and changes it under its lock.
  struct Outgoing {
    bool is_submitted = false;  // nghttp2 has the headers and the data provider
    bool is_deferred = false;   // the provider waits for more
    std::deque<std::shared_ptr<OutMessage>> messages;
    size_t sent_bytes = 0;    // of the first message
    int64_t progress_ns = 0;  // when a part was last sent; at first, when the end was submitted
    std::optional<base::Status> end;
    Encoding encoding = Encoding::kIdentity;
    int64_t pushback_ms = -1;
    bool names_encodings = false;  // the end carries grpc-accept-encoding
    bool resumes_reading = false;  // HandleMessages waits for the client to read `messages`
  };
  Outgoing out;

  // --- for the threads ---

  // Handles what has come, on the thread that read it and has the connection's turn. Returns true
  // for a request to a model that was admitted: Run is to be called, on a thread that runs
  // requests.
  bool Arrive();
  // The three steps of a thread that runs the request: decompresses its message, has it handled,
  // and puts it aside if its handler asked for that.
  void Read();
  void Run() { Handle(); }
  void EndTurn();
  // True if the client is gone; what waits for a version is answered then.
  const std::atomic<bool>* cancellation_flag() const { return cancellation_.flag(); }
  // Returns the model that a request is for. Reads the message if it must.
  std::string ModelName();
  // The same after Read and until EndTurn, from any thread.
  std::string PeekModelName() const { return method_->handler->ModelNameOf(*this); }
  // Reads the key of the batches that the request may join, if there are any batches. A compressed
  // message has none: it would have to be decompressed for it.
  void PeekBatchKey();
  servable::BatchKey batch_key() const { return batch_key_; }
  bool is_compressed() const { return is_compressed_; }
  size_t message_bytes() const { return static_cast<size_t>(message_bytes_); }
  // Instead of Run: ends the call with RESOURCE_EXHAUSTED, because it would wait too long.
  void RefuseForDelay();
  void RefuseForFullBatches();

  // --- for handlers ---

  const std::string& path() const { return method_->path; }
  // The bytes of the message, in place; valid while the call lives, until TakeRequest.
  base::WireReader request() const { return {segments_.data(), segments_.size()}; }
  // Returns the bytes of the message as one string, and frees those that came: request() is empty
  // then. RESOURCE_EXHAUSTED if the budget has no place for the copy beside them.
  base::StatusOr<base::ChargedText> TakeRequest();
  int64_t received_ns() const { return received_ns_; }
  // The client's deadline, and its cancellation.
  const tensor::RunContext& run_context() const { return run_; }
  // The first value of a key (in lower case) of the client's metadata; lives as long as the call.
  std::optional<std::string_view> FindMetadata(std::string_view key) const;
  // The client's end of the connection, like "ipv4:127.0.0.1:50000", "ipv6:%5B::1%5D:5" or "unix:".
  const std::string& peer() const;
  // The common name and the alternative names of the client's verified certificate; empty without
  // one.
  std::vector<std::string> ClientNames() const;
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

  void Reply(base::ReplyBytes reply);
  void Reply(std::string_view bytes);
  void Fail(const base::Status& status);
  // A message of a method that sends many. Too many that the client does not read end the call.
  void Send(std::string_view message);
  // The end of a method that sends many.
  void Finish(const base::Status& status);
  // True if nothing can be sent any more. Any thread.
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  // Keeps `attachment` exactly as long as the call: what a handler notes about a stream goes with
  // it. Once, in Handle.
  void Attach(std::shared_ptr<void> attachment) { attachment_ = std::move(attachment); }

 private:
  // More than a client sends at once, or leaves unread, that means well.
  static constexpr size_t kUnreadMessagesMax = 64;

  // The version that the request waits for, and for how long.
  struct Awaited {
    servable::AwaitedChange change;
    int64_t until_ns = 0;
  };

  base::Status BeginMessage();
  base::Status AddBody(std::string_view data, ReceiveSpace* space);
  void AddCopy(std::string_view data);
  base::Status EndMessage();
  void HandleMessages();
  base::ByteBudget::Use UseOf(int64_t bytes) const;
  base::StatusOr<std::shared_ptr<OutMessage>> MakeMessage(std::string_view bytes) const;
  base::Status Enter();
  void Handle();
  void Refuse(const base::Status& status);
  std::string StartOfMessage() const;  // decompressed
  void ForgetRead();
  void FreeRequest();  // the message and the headers
  void FreeMessage();
  void FreeHeaders();
  void End(std::shared_ptr<OutMessage> message, Encoding encoding, const base::Status& status);
  int64_t MessageBytesMax() const;

  const std::shared_ptr<Connection> connection_;
  const CallLimits* const limits_;
  const int32_t stream_id_;
  const Method* method_ = nullptr;  // gone with the server, which an answer may outlive
  bool is_of_model_ = false;        // the method is limited
  base::ByteBudget::Share charge_;  // for the call itself, and its headers

  // Headers.
  size_t header_bytes_ = 0;
  std::string path_;
  std::string content_type_;
  std::string accepted_encodings_;
  Encoding encoding_ = Encoding::kIdentity;
  bool is_post_ = false;
  std::optional<int64_t> timeout_ns_;
  bool has_bad_timeout_ = false;
  bool has_servers_deadline_ = false;  // because the client set none
  // Each name and value, with a NUL byte after it, which neither can hold (RFC 9113, 8.2.1). One
  // string takes less memory than a string for each of them.
  std::string metadata_;

  // The message that is arriving, or has arrived.
  size_t prefix_bytes_ = 0;
  char prefix_[OutMessage::kPrefixBytes];
  int64_t message_bytes_ = 0;  // as announced
  int64_t arrived_bytes_ = 0;  // of it
  int message_count_ = 0;      // that have arrived in full
  bool is_compressed_ = false;
  bool has_ended_request_ = false;
  bool is_due_ = false;
  int64_t data_ns_ = 0;                     // when the last part came
  std::string small_;                       // a short message, in one piece
  std::deque<base::ChargedText> messages_;  // of a method that takes many, until Arrive
  std::vector<std::shared_ptr<const void>> owners_;
  std::shared_ptr<std::string> copy_;           // the last of `owners_` that is a copy
  std::vector<std::string_view> raw_segments_;  // as they came
  std::vector<std::string> inflated_;           // the message decompressed
  std::vector<std::string_view> segments_;      // as request() reads them
  bool is_read_ = false;                        // segments_ are the message
  base::Status read_status_;

  int64_t received_ns_ = 0;
  tensor::RunContext run_;
  servable::Admission::Ticket ticket_;  // until it is answered
  base::ByteBudget::Share share_;       // of the request's bytes
  servable::BatchKey batch_key_ = servable::kNoBatchKey;
  std::optional<Awaited> awaited_;  // what the handler asked for in this turn
  base::Cancellation cancellation_;
  std::shared_ptr<void> attachment_;
  bool is_answered_ = false;
  std::atomic<bool> is_over_{false};
};

}  // namespace millpond::rpc
