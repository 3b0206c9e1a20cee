#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "native/rpc/call.h"
#include "native/rpc/call_counts.h"
#include "native/rpc/connection_life.h"
#include "native/rpc/incoming_request.h"
#include "native/rpc/outgoing_reply.h"
#include "native/rpc/output_queue.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/session.h"
#include "native/rpc/transport.h"
#include "native/rpc/wire_limits.h"

namespace millpond::rpc {

// The limits, methods and counts that the connections and calls of a server share. The control
// plane may keep a rare call longer than the server, so all of them own it.
//
// Thread: the limits and the methods never change while the server listens. The counts: any.
struct Wire {
  Wire() { calls.is_cut_short = &is_cut_short; }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  WireLimits limits;
  LimitCounts limit_counts;
  std::map<std::string, Method, std::less<>> methods;  // by path, like "/package.Service/Method"
  CallLimits calls;
  std::atomic<bool> is_cut_short{false};
  CallCounts call_counts;
  std::atomic<int64_t> connection_count{0};
};

// One connection, whatever its protocol: its socket, its session, its life, the streams on it, and
// the bytes on their way.
//
// Theory of operation. Threads share connections. A thread that learns that there is something to
// read takes the *turn*. A thread that comes while the turn is taken leaves a note and goes, and
// the owner of the turn reads again. So one thread at a time reads, and messages stay in order.
// Answers come from any thread. `mutex_` guards the session, the streams and the life, and is held
// for microseconds: a reader holds it while it feeds what it has read to the session, an answer
// while it is framed and written. A run holds neither the turn nor the lock.
//
// No handler is called under the lock: calls that have arrived are collected, and handled after the
// lock is released.
//
// Thread: Proceed: request threads; the one that gets the turn works. CheckTimes: the watchdog. The
// steps of a stop: the control plane. What calls need (CallCarrier), and is_closed: any. The events
// of the session come under the lock, from within the functions above.
class Connection final : public CallCarrier,
                         private SessionEvents,
                         public std::enable_shared_from_this<Connection> {
 public:
  using Calls = std::vector<std::shared_ptr<Call>>;

  // The bytes that a connection takes of the budget as long as it lives: its object, its place in
  // the tables, and the first output. A TLS session has buffers of its own.
  static constexpr int64_t kBeginBytes = 16 * 1024;
  static constexpr int64_t kTlsBytes = 32 * 1024;

  // `charge` has the bytes above.
  Connection(std::shared_ptr<Wire> wire, std::unique_ptr<Transport> transport, std::string peer,
             std::string address, int64_t now_ns, base::ByteBudget::Share charge);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The client's IP address without its port; "" for a UNIX socket.
  const std::string& address() const { return address_; }
  int fd() const { return transport_->fd(); }
  // The name of its events, which Network sets once, before the first of them.
  uint64_t key() const { return key_; }
  void set_key(uint64_t key) { key_ = key; }

  // Reads, writes, and handles what has arrived, if no other thread is at it. Adds the requests
  // that a thread is to run. `space` is the thread's own.
  void Proceed(ReceiveSpace* space, Calls* to_run);
  // The client has ended its side: Proceed reads up to that end. The kernel reports it only once,
  // with the last bytes or before they are read.
  void NoteHangUp() { has_hung_up_.store(true, std::memory_order_release); }
  // True once nothing can be read or written any more: drop it.
  bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }
  // True if Proceed has left something unread, so that other connections have their turn.
  bool has_more() const { return has_more_.load(std::memory_order_acquire); }

  // Does what is due by its life. About once a second. Returns true if something has arrived and no
  // thread is at it: Proceed is to be called.
  bool CheckTimes(int64_t now_ns);
  // See ConnectionLife: false while the client is still connecting.
  bool IsSettled(int64_t now_ns);
  // Asks the client to open no more streams. The streams that it had sent by then are answered;
  // later ones are refused so that the client sends them elsewhere (RFC 9113, 6.8). A connection
  // that is not settled is left as it is.
  void AskToGo(int64_t now_ns);
  // Refuses all later streams, also of a client that has not read that. Closes a connection that is
  // not settled: a connection that ends without a word hangs no client.
  void RefuseNewStreams(int64_t now_ns);
  // True if a request is arriving, of which a part came after `since_ns`.
  bool IsReceiving(int64_t since_ns);
  // Ends all calls and closes. Not for a thread that has the turn.
  void Close();

  // --- for calls: CallCarrier ---

  const std::string& peer() const override { return peer_; }
  std::vector<std::string> ClientNames() override;
  void Answer(Call* call, CallEnd end) override;
  bool Send(Call* call, std::shared_ptr<OutMessage> message, size_t waiting_max) override;
  void WriteAnswers() override;

 private:
  enum Turn { kFree, kTaken, kNoted };

  // One call on this connection: its request until it has arrived, and its answer.
  struct Stream {
    Stream(base::ByteBudget::Share charge, CallCounts* counts, std::atomic<int64_t>* open_bytes)
        : request(std::move(charge)),
          live(counts),
          open_bytes(&counts->open_bytes, open_bytes),
          unread_bytes(&counts->open_bytes, open_bytes) {}

    bool is_receiving() const { return request.is_receiving() && !is_answered; }

    IncomingRequest request;
    LiveCall live;               // until `call` has it
    OpenCallBytes open_bytes;    // until `call` has them, or the admission counts the call
    std::shared_ptr<Call> call;  // once its request, or the first of many messages, has arrived
    OutgoingReply reply;
    OpenCallBytes unread_bytes;    // of an answer that its client has not read yet
    bool is_answered = false;      // or refused
    bool resumes_reading = false;  // TakeMessage waits for the client to read the reply
  };
  using Streams = std::unordered_map<int32_t, Stream>;
  using ClosedStreams = std::vector<Streams::node_type>;

  // The bytes of the budget that a stream takes when it begins: its objects, and room for usual
  // headers.
  static int64_t StreamBytes();

  // The events of the session.
  void OnBegin(int32_t stream) override;
  void OnHeader(int32_t stream, std::string_view name, std::string_view value) override;
  void OnHeadersEnd(int32_t stream) override;
  void OnData(int32_t stream, std::string_view data) override;
  void OnRequestEnd(int32_t stream) override;
  void OnDataSent(int32_t stream) override;
  void OnStreamClosed(int32_t stream) override;
  void OnSpoken() override { life_.NoteSpoken(now_ns_); }
  void OnAcknowledged() override { life_.NoteAcknowledged(now_ns_); }
  void OnGoawaySeen() override;
  void OnPayload() override { flood_.TakePayload(); }
  void OnPing() override { EndFor(flood_.TakePing(now_ns_)); }
  void OnControlFrame() override { EndFor(flood_.TakeControlFrame(now_ns_)); }
  void OnForcedReset() override { EndFor(flood_.TakeForcedReset(now_ns_)); }
  void OnTooManyResets() override { wire_->limit_counts.Add(ReachedLimit::kResets); }

  bool MayBeginStream(int64_t bytes) const;
  Stream* Find(int32_t stream);
  Call* MakeCall(int32_t number, Stream* stream);
  void AddDue(Call* call);
  void HandleMessages(Call* call);
  bool TakeMessage(Call* call, base::ChargedText* message, bool* is_end);

  bool ReadSome(ReceiveSpace* space);  // false if nothing more is to be read now
  // These end a call whose request is still arriving.
  void Refuse(int32_t number, Stream* stream, const base::Status& status);
  void RefuseHeaders(int32_t number, Stream* stream, int http_status);
  void SubmitEnd(int32_t number, Stream* stream, CallEnd end);
  void SubmitBody(int32_t number, Stream* stream);
  void Flush();
  void WriteOutput();
  bool ReserveOutput();
  void CountUnread();
  void CloseLocked();
  void Do(const ConnectionStep& step);
  void EndFor(const std::optional<FloodLimits::Excess>& excess);
  void EndPausedStreams();

  const std::shared_ptr<Wire> wire_;
  const base::ByteBudget::Share charge_;
  const std::unique_ptr<Transport> transport_;
  const std::string peer_;
  const std::string address_;
  uint64_t key_ = 0;
  std::atomic<int> turn_{kFree};
  std::atomic<bool> is_closed_{false};
  std::atomic<bool> has_more_{false};
  std::atomic<bool> has_hung_up_{false};
  std::atomic<int64_t> open_bytes_{0};  // of this connection's calls, as in CallCounts

  std::mutex mutex_;
  int64_t now_ns_;  // of this turn, or of the answer that is framed
  ConnectionLife life_;
  FloodLimits flood_;
  Streams streams_;
  std::unique_ptr<Session> session_;  // borrows the replies of the streams
  Calls due_;                         // calls with something for Arrive
  ClosedStreams closed_;              // let go without the lock
  std::vector<int32_t> answered_;     // streams that are answered, and were not flushed since
  OutputQueue output_;
  base::ByteBudget::Share output_charge_;  // beyond what the first charge has
  ReceiveSpace* space_ = nullptr;          // of the thread that reads
};

}  // namespace millpond::rpc
