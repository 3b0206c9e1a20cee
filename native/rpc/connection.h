#pragma once

#include <nghttp2/nghttp2.h>

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
#include "native/rpc/frame_filter.h"
#include "native/rpc/output_queue.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/session_memory.h"
#include "native/rpc/transport.h"
#include "native/rpc/wire_limits.h"

namespace millpond::rpc {

// The limits, methods and counts that the connections and calls of a server share. The control
// plane may keep a rare call longer than the server, so all of them own it.
struct Wire {
  Wire() { calls.is_cut_short = &is_cut_short; }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  WireLimits limits;
  LimitCounts limit_counts;
  std::map<std::string, Method, std::less<>> methods;  // by path, like "/package.Service/Method"
  CallLimits calls;
  std::atomic<bool> is_cut_short{false};

  std::atomic<int64_t> call_count{0};          // calls that live: begun, and not yet let go
  std::atomic<int64_t> arrived_call_count{0};  // of them, those whose request has arrived
  // Of calls that no admission counts: whose request has not arrived, whose answer waits for its
  // client, or whose method is not for models.
  std::atomic<int64_t> open_call_bytes{0};
  std::atomic<int64_t> connection_count{0};
};

// One HTTP/2 connection: nghttp2's session, the calls on it, and the bytes on their way.
//
// Theory of operation. Threads share connections. A thread that learns that there is something to
// read takes the *turn*. A thread that comes while the turn is taken leaves a note and goes, and
// the owner of the turn reads again. So one thread at a time reads, and messages stay in order.
// Answers come from any thread. `mutex_` guards the session and is held for microseconds: a reader
// holds it while it feeds what it has read to nghttp2, an answer while it is framed and written. A
// run holds neither the turn nor the lock.
//
// No handler is called under the lock: calls that have arrived are collected, and handled after the
// lock is released.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  using Calls = std::vector<std::shared_ptr<Call>>;

  // The bytes that a connection takes of the budget as long as it lives: its object, its place in
  // the tables, and the first output. A TLS session has buffers of its own.
  static constexpr int64_t kBeginBytes = 16 * 1024;
  static constexpr int64_t kTlsBytes = 32 * 1024;

  // `charge` has the bytes above.
  Connection(std::shared_ptr<Wire> wire, std::unique_ptr<Transport> transport, std::string peer,
             std::string address, int64_t now_ns, base::ByteBudget::Share charge);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const std::string& peer() const { return peer_; }
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

  // Looks for pauses that are too long. About once a second. Returns true if something has arrived
  // and no thread is at it: Proceed is to be called.
  bool CheckTimes(int64_t now_ns);
  // False while a goodbye may meet a client that is still connecting. gRPC's client (1.85) then
  // takes the connection for a live one for ever: its call hangs until the call's deadline.
  bool IsSettled(int64_t now_ns);
  // Asks the client to open no more streams. The streams that it had sent by then are answered;
  // later ones are refused so that the client sends them elsewhere (RFC 9113, 6.8). A connection
  // that is not settled is left as it is.
  void SayGoodbye(int64_t now_ns);
  // Refuses all later streams, also of a client that has not read the goodbye. Closes a connection
  // that is not settled: a connection that ends without a goodbye hangs no client.
  void RefuseNewStreams(int64_t now_ns);
  // True if a request is arriving, of which a part came after `since_ns`.
  bool IsReceiving(int64_t since_ns);
  // Ends all calls and closes. Not for a thread that has the turn.
  void Close();

  // --- for calls; any thread ---

  void Answer(Call* call, std::shared_ptr<OutMessage> message, Encoding encoding,
              const base::Status& status);
  // Writes the answers that HeldAnswers held.
  void WriteAnswers();
  // True if messages wait for the client to read them: then Arrive is called when it has.
  bool WaitsForReader(Call* call);
  // False if `messages_max` wait already.
  bool Send(Call* call, std::shared_ptr<OutMessage> message, size_t messages_max);
  void ForgetCall(const Call& call);
  std::vector<std::string> ClientNames();

 private:
  enum Turn { kFree, kTaken, kNoted };
  static constexpr int kEarlyPingsMax = 2;
  static constexpr int kHttpOk = 200;

  // The callbacks of nghttp2, and the functions that they call. All under mutex_.
  static int OnBeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                      void* self);
  static int OnDataChunk(nghttp2_session*, uint8_t, int32_t stream_id, const uint8_t* data,
                         size_t size, void* self);
  static int OnFrameReceived(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int OnFrameSent(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int OnStreamClosed(nghttp2_session*, int32_t stream_id, uint32_t code, void* self);
  static ssize_t OnReadData(nghttp2_session* session, int32_t stream_id, uint8_t*, size_t size,
                            uint32_t* flags, nghttp2_data_source* source, void* self);
  static int OnSendData(nghttp2_session*, nghttp2_frame* frame, const uint8_t* header, size_t size,
                        nghttp2_data_source* source, void* self);
  static nghttp2_session_callbacks* Callbacks();

  int BeginCall(int32_t stream_id);
  bool MayBeginCall(int64_t bytes) const;
  void AddOpenBytes(int64_t bytes);
  void CountOpen(Call* call, int64_t bytes);
  void CountUnread();
  int CountControlFrame();
  void CountReset(uint32_t error_code);
  void CountData() {
    control_frames_.Fill();
    has_data_since_ping_ = true;
  }
  int TakePing(const nghttp2_ping& ping);
  void BeginRequest(Call* call, bool is_last);
  void EndRequest(Call* call);
  void AddDue(Call* call);
  Call* FindCall(int32_t stream_id);
  void Open();

  bool ReadSome(ReceiveSpace* space);  // false if nothing more is to be read now
  bool Feed(std::string_view bytes);   // false if the connection is to end
  bool FeedSession(std::string_view bytes);
  void AnswerForeigner(std::string_view bytes);
  void SubmitEnd(Call* call, const base::Status& status);
  void SubmitData(Call* call);
  void SubmitHttpStatus(Call* call, int status);
  void SubmitLastGoaway();
  bool IsSettledAt(int64_t now_ns) const;
  void EndCall(Call* call, const base::Status& status);
  void RefuseCall(Call* call, const base::Status& status);  // records it, and ends it
  void Flush();
  void WriteOutput();
  bool MayOutput();
  void CloseLocked();
  bool CheckTimesLocked();  // true if it is time for a goodbye
  void EndPausedCalls();
  void CalmDown(ReachedLimit limit, const char* reason);
  void CloseFor(ReachedLimit limit);

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

  std::atomic<int64_t> open_call_bytes_{0};  // of this connection, as in Wire

  std::mutex mutex_;
  SessionMemory session_memory_;
  nghttp2_session* session_ = nullptr;
  std::unordered_map<int32_t, std::shared_ptr<Call>> calls_;
  Calls due_;                      // calls with something for Call::Arrive
  Calls closed_;                   // let go without the lock
  std::vector<int32_t> answered_;  // streams that are answered, and were not flushed since
  OutputQueue output_;
  base::ByteBudget::Share output_charge_;  // beyond what the first charge has
  ReceiveSpace* space_ = nullptr;          // of the thread that reads
  bool has_preface_ = false;               // the client has spoken HTTP/2
  int64_t acknowledged_ns_ = 0;            // when the client took the settings; 0: not yet
  std::string first_bytes_;                // until it has
  FrameFilter frames_;                     // of all after that
  bool is_ending_ = false;                 // closed as soon as the output is written
  int64_t ended_writes_ns_ = 0;            // 0: not yet
  int early_ping_count_ = 0;
  bool has_data_since_ping_ = false;
  const int64_t begin_ns_;
  int64_t now_ns_;            // of this turn
  int64_t read_ns_;           // the last bytes that came
  int64_t write_ns_;          // the last bytes that the socket took
  int64_t ping_sent_ns_ = 0;  // 0: none is on its way
  int64_t ping_received_ns_ = 0;
  int64_t call_end_ns_;     // since when no call is open
  int64_t goodbye_ns_ = 0;  // 0: none was said
  bool is_gone_ = false;    // the last GOAWAY is out
  RateLimit control_frames_;
  RateLimit forced_resets_;  // resets of streams with wrong frames
};

}  // namespace millpond::rpc
