#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "native/rpc/wire_limits.h"

namespace millpond::rpc {

// The phases of a connection's life.
enum class ConnectionPhase {
  kConnecting,  // a client may not have finished connecting, and must not be told to go yet
  kOpen,
  kGoingAway,  // the client was asked to begin no more calls
  kEnding,     // nothing of the client is read any more; closed when the output is written
  kClosed,
};

// Returns true if a connection may move from one phase to another.
bool MayFollow(ConnectionPhase from, ConnectionPhase to);

// The times at which something happened on a connection.
struct ConnectionTimes {
  explicit ConnectionTimes(int64_t now_ns)
      : begin_ns(now_ns), read_ns(now_ns), idle_since_ns(now_ns) {}

  int64_t begin_ns;
  int64_t read_ns;                            // the last bytes that came
  std::optional<int64_t> spoken_ns;           // the client began to speak the protocol
  std::optional<int64_t> acknowledged_ns;     // the client took the server's settings
  std::optional<int64_t> idle_since_ns;       // no call is open since then
  std::optional<int64_t> unwritten_since_ns;  // the socket takes no byte of the output since then
  std::optional<int64_t> ping_sent_ns;        // a ping is unanswered
  std::optional<int64_t> goaway_ns;           // the client was asked to go
  std::optional<int64_t> last_goaway_ns;      // later calls are refused
  std::optional<int64_t> writes_ended_ns;     // the client's side is waited for
};

// A connection without an open request. The least one makes place first: a client that has never
// sent a request loses less than one that will send its next request here. One whose bytes are not
// read yet comes last, because they may be a request.
struct Idleness {
  bool has_asked = false;
  int64_t since_ns = 0;
  bool is_unread = false;

  bool operator<(const Idleness& other) const {
    return std::tie(is_unread, has_asked, since_ns) <
           std::tie(other.is_unread, other.has_asked, other.since_ns);
  }
};

// The next thing that a connection is to do.
struct ConnectionStep {
  enum Kind {
    kNothing,
    kPing,
    kGoaway,      // ask the client to begin no more calls; calls that it has begun are answered
    kLastGoaway,  // refuse later calls, also of a client that has not seen the first request
    kClose,
  };

  Kind kind = kNothing;
  std::optional<ReachedLimit> limit = {};  // that the client has reached
};

// Returns the next step of a connection at `now_ns`. Pure.
ConnectionStep NextStep(ConnectionPhase phase, const ConnectionTimes& times,
                        const WireLimits& limits, int64_t now_ns);

// The life of one connection of any protocol. It notes the connection's events, and names the next
// step. Its caller does that step.
//
//   Connecting -> Open       a call begins, or the client has taken the settings for a while
//   Open       -> GoingAway  the client was asked to go: a stop, or it was idle or open for long
//   any        -> Ending     the client broke the protocol, or has all answers
//   any        -> Closed
//
// A client that is still connecting is not asked to go, because gRPC's client (1.85) then takes the
// connection for a live one for ever. The client's call hangs until the call's deadline. A
// connection that closes without a goaway hangs no client.
//
// Thread: one at a time, which is the connection's lock. Cost: some ns.
class ConnectionLife {
 public:
  // A client that took the settings has finished connecting after this time, however busy it is.
  static constexpr int64_t kSettleNs = 200'000'000;
  // The time after which gRPC's client gives up connecting.
  static constexpr int64_t kConnectNsMax = 20'000'000'000;
  // A client that is asked to go has so long to see it, and again to leave.
  static constexpr int64_t kLeaveNs = 1'000'000'000;

  // Borrows `limits`.
  ConnectionLife(const WireLimits& limits, int64_t now_ns) : limits_(limits), times_(now_ns) {}

  ConnectionPhase phase() const { return phase_; }
  const ConnectionTimes& times() const { return times_; }
  // Returns nothing while a call is open.
  std::optional<Idleness> idleness() const {
    if (!times_.idle_since_ns) return {};
    return Idleness{has_asked_, *times_.idle_since_ns};
  }
  bool is_closed() const { return phase_ == ConnectionPhase::kClosed; }
  bool is_ending() const { return phase_ >= ConnectionPhase::kEnding; }

  // --- what happens ---

  // Any bytes show that the client lives.
  void NoteRead(int64_t now_ns) {
    times_.read_ns = now_ns;
    times_.ping_sent_ns.reset();
  }
  void NoteSpoken(int64_t now_ns) { times_.spoken_ns = now_ns; }
  void NoteAcknowledged(int64_t now_ns) {
    if (!times_.acknowledged_ns) times_.acknowledged_ns = now_ns;
  }
  // A client that begins a call, also one that is refused, has finished connecting.
  void NoteCallBegun() { MoveTo(ConnectionPhase::kOpen); }
  void NoteCalls(bool has_calls, int64_t now_ns);
  // Called after each attempt to write. `is_all`: nothing is left. `is_any`: the socket took a
  // part.
  void NoteWritten(bool is_all, bool is_any, int64_t now_ns);
  void NotePing(int64_t now_ns) { times_.ping_sent_ns = now_ns; }
  void NoteGoaway(int64_t now_ns);
  void NoteLastGoaway(int64_t now_ns);
  void NoteWritesEnded(int64_t now_ns);
  // Begins the end. Returns false if the connection is ending already.
  bool End() { return MoveTo(ConnectionPhase::kEnding); }
  // Ends. Returns false if the connection is closed already.
  bool Close() { return MoveTo(ConnectionPhase::kClosed); }

  // --- what is to be done ---

  // True once the client has finished connecting or given up, so that a goaway is safe.
  bool IsSettled(int64_t now_ns) const;
  // Returns the step that is due by the times. Ask again once the step is done.
  ConnectionStep Next(int64_t now_ns);
  // Returns the step that asks the client to go: none if the client is connecting, was asked
  // before, or is gone.
  ConnectionStep AskToGo(int64_t now_ns);
  // Returns the step after which no call begins: none if it was done before, or the connection ends
  // already.
  ConnectionStep RefuseNewCalls(int64_t now_ns);

 private:
  // Returns false, and stays, if the table has no such move.
  bool MoveTo(ConnectionPhase phase);
  void Settle(int64_t now_ns) {
    if (IsSettled(now_ns)) MoveTo(ConnectionPhase::kOpen);
  }

  const WireLimits& limits_;
  ConnectionPhase phase_ = ConnectionPhase::kConnecting;
  ConnectionTimes times_;
  bool has_asked_ = false;  // a call has begun
};

}  // namespace millpond::rpc
