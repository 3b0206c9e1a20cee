#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/rpc/connection_life.h"
#include "native/rpc/output_writer.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/server_shared.h"
#include "native/rpc/session.h"
#include "native/rpc/stream.h"
#include "native/rpc/stream_table.h"
#include "native/rpc/transport.h"
#include "native/rpc/turn.h"
#include "native/rpc/wire_limits.h"

namespace millpond::rpc {

// One connection, whatever its protocol: the wiring of its socket (Transport), its session
// (Session), its streams (StreamTable), its life (ConnectionLife), the limits on what its client
// may do too often (FloodLimits), and its output (OutputWriter).
//
// Theory of operation. Threads share connections. A thread that learns that there is something to
// read takes the turn (Turn); another thread leaves a note and goes, and the owner of the turn
// reads again. So one thread at a time reads, and messages stay in order. Answers come from any
// thread. `mutex_` guards all of the above but the turn, and is held for microseconds: a reader
// holds it while it feeds what it has read to the session, an answer while it is framed and
// written. A run holds neither the turn nor the lock.
//
// No handler is called under the lock: calls that have arrived are collected (StreamContext::due),
// and handled after the lock is released.
//
// Thread: Proceed and NoteHangUp: request threads; the one that gets the turn works. CheckTimes:
// the watchdog. IsSettled, AskToGo, RefuseNewStreams, IsReceiving and Close: the control plane, as
// steps of a stop. TakeMessage: the one that has the turn. Any: all else that calls need
// (CallCarrier), and is_closed, has_more, address, fd and key. The events of the session come under
// the lock, from within the functions above.
class Connection final : public CallCarrier, private SessionEvents {
 public:
  // The bytes that a connection takes of the budget as long as it lives: its object, its place in
  // the tables, and the first output. A TLS session has buffers of its own.
  static constexpr int64_t kBeginBytes = 16 * 1024;
  static constexpr int64_t kTlsBytes = 32 * 1024;

  // Has the events of a connection's socket reported again, though the socket has not changed.
  // Called under the connection's lock.
  class Waker {
   public:
    virtual ~Waker() = default;
    virtual void WakeFor(const Connection& connection) = 0;
  };

  // The ends of a connection.
  struct Ends {
    std::string peer;           // see CallCarrier
    std::string address;        // the client's IP address without its port; "" for a UNIX socket
    std::string local_address;  // see CallCarrier
  };

  // `charge` is a share of kBeginBytes, and of kTlsBytes with TLS. Borrows the protocol and the
  // waker until it is closed.
  Connection(std::shared_ptr<ServerShared> shared, const Protocol& protocol, Waker* waker,
             std::unique_ptr<Transport> transport, Ends ends, int64_t now_ns,
             base::ByteBudget::Share charge);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const std::string& address() const { return ends_.address; }
  ServerShared* shared() const { return shared_.get(); }
  int fd() const { return transport_->fd(); }
  // Names the connection in the events of its socket. Network sets it once, before the first event.
  uint64_t key() const { return key_; }
  void set_key(uint64_t key) { key_ = key; }

  // Reads, writes, and handles what has arrived, unless another thread has the turn. Appends the
  // requests that a thread is to run to `to_run`. `space` belongs to the calling thread.
  void Proceed(ReceiveSpace* space, std::vector<std::shared_ptr<RunnableCall>>* to_run);
  // Notes that the client has ended its side, so that Proceed reads up to that end. The kernel
  // reports the end only once, maybe before the last bytes are read.
  void NoteHangUp() { has_hung_up_.store(true, std::memory_order_release); }
  // Notes that nothing can be written to the client any more either.
  void NoteReset() { is_reset_.store(true, std::memory_order_release); }
  // True once nothing can be read or written any more: drop it.
  bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }
  // True if Proceed has left something unread, so that other connections have their turn.
  bool has_more() const { return has_more_.load(std::memory_order_acquire); }

  // Does what ConnectionLife says is due. About once a second. Returns true if a call has arrived
  // that no thread has taken: the caller then brings a thread to Proceed.
  bool CheckTimes(int64_t now_ns);
  // See ConnectionLife: false while the client is still connecting.
  bool IsSettled(int64_t now_ns);
  // Asks the client to open no more streams. Streams are answered until the client has seen that,
  // or ConnectionLife::kLeaveNs has passed. Later ones are refused then, so that the client sends
  // them elsewhere (RFC 9113, 6.8). A connection that is not settled is left as it is.
  void AskToGo(int64_t now_ns);
  // Refuses all later streams, even if the client has not seen that it is to go. Closes a
  // connection that is not settled: a connection that ends without a word hangs no client.
  void RefuseNewStreams(int64_t now_ns);
  // True if a request is arriving, of which a part came after `since_ns`.
  bool IsReceiving(int64_t since_ns);
  // Ends all calls and closes. Not for a thread that has the turn.
  void Close();

  // --- to make room for another client ---

  // Returns since when no request is open. Returns nothing if one is open or may be on its way,
  // because a close would lose it: the client has sent something within 300 ms, or its bytes are
  // not read yet. If `is_urgent`, that does not keep a client that never sent a whole request.
  // Returns nothing either if the connection does not come before one of the idleness `least`,
  // because only a connection that does is worth the system call.
  std::optional<Idleness> IdleSince(int64_t now_ns, bool is_urgent,
                                    const std::optional<Idleness>& least = {});
  // The bytes a second of the slowest body; see StreamTable.
  std::optional<double> Pace(int64_t now_ns);
  // Refuses the requests whose bodies are waited for, and ends.
  void GiveUp(int64_t now_ns);

  // --- for calls: CallCarrier ---

  const std::string& peer() const override { return ends_.peer; }
  const std::string& local_address() const override { return ends_.local_address; }
  std::vector<std::string> ClientNames() override;
  bool TakeMessage(int32_t stream, base::ChargedText* message, bool* is_end) override;
  void Answer(int32_t stream, CallEnd end) override;
  bool Send(int32_t stream, std::shared_ptr<OutMessage> message, size_t waiting_max) override;
  void WriteAnswers() override;

 private:
  class Section;

  // The events of the session.
  void OnSpoken() override { life_.NoteSpoken(context_.now_ns); }
  void OnAcknowledged() override { life_.NoteAcknowledged(context_.now_ns); }
  void OnGoawaySeen() override;
  void OnPayload() override { flood_.TakePayload(); }
  void OnPing() override { EndFor(flood_.TakePing(context_.now_ns)); }
  void OnControlFrame() override { EndFor(flood_.TakeControlFrame(context_.now_ns)); }
  void OnForcedReset() override { EndFor(flood_.TakeForcedReset(context_.now_ns)); }
  void OnExcess(const FloodLimits::Excess& excess) override { EndFor(excess); }
  void OnTooManyResets() override { shared_->limit_counts.Add(ReachedLimit::kResets); }

  // With the turn. These return false if nothing more is to be read now.
  bool ReadAndHandle(ReceiveSpace* space, std::vector<std::shared_ptr<RunnableCall>>* to_run);
  bool ReadSome(ReceiveSpace* space);  // under the lock, as all below
  bool FeedWaiting(ReceiveSpace* space);
  bool Feed(ReceiveSpace* space, std::string_view bytes);
  bool MustWriteFirst() const;
  void WakeIfInputWaits();
  void EndIfAbandoned();
  void Flush();
  void WriteOutput();
  void Do(const ConnectionStep& step);
  void EndFor(const std::optional<FloodLimits::Excess>& excess);
  void CloseLocked();

  const std::shared_ptr<ServerShared> shared_;
  const base::ByteBudget::Share charge_;
  const std::unique_ptr<Transport> transport_;
  const Ends ends_;
  Waker* const waker_;
  uint64_t key_ = 0;
  Turn turn_;
  std::atomic<bool> is_closed_{false};
  std::atomic<bool> has_more_{false};
  std::atomic<bool> has_hung_up_{false};
  std::atomic<bool> is_reset_{false};

  std::mutex mutex_;
  bool input_waits_ = false;  // until an answer has gone, nothing more is read
  size_t dropped_bytes_ = 0;  // that came after the session's end
  std::optional<int64_t>
      hung_up_ns_;  // since then a client that ended its side waits for an answer
  StreamContext context_;
  ConnectionLife life_;
  FloodLimits flood_;
  StreamTable streams_;
  const std::unique_ptr<Session> session_;  // borrows the replies of the streams
  OutputWriter output_;
};

}  // namespace millpond::rpc
