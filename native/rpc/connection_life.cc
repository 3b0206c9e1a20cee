#include "native/rpc/connection_life.h"

#include <array>
#include <cstddef>

namespace millpond::rpc {
namespace {

constexpr size_t kPhaseCount = static_cast<size_t>(ConnectionPhase::kClosed) + 1;

// By the phase that is left: Connecting, Open, GoingAway, Ending, Closed.
constexpr std::array<std::array<bool, kPhaseCount>, kPhaseCount> kMoves = {{
    {false, true, false, true, true},    // Connecting
    {false, false, true, true, true},    // Open
    {false, false, false, true, true},   // GoingAway
    {false, false, false, false, true},  // Ending
    {false, false, false, false, false}  // Closed
}};

}  // namespace

bool MayFollow(ConnectionPhase from, ConnectionPhase to) {
  return kMoves[static_cast<size_t>(from)][static_cast<size_t>(to)];
}

ConnectionStep NextStep(ConnectionPhase phase, const ConnectionTimes& times,
                        const WireLimits& limits, int64_t now_ns) {
  // A limit of 0 is none.
  const auto is_over = [now_ns](std::optional<int64_t> since_ns, int64_t limit_ns) {
    return since_ns && limit_ns > 0 && now_ns - *since_ns > limit_ns;
  };
  if (phase == ConnectionPhase::kClosed) return {};
  if (!times.spoken_ns && is_over(times.begin_ns, limits.handshake_ns)) {
    return {ConnectionStep::kClose, ReachedLimit::kHandshake};
  }
  if (is_over(times.writes_ended_ns, ConnectionLife::kLeaveNs)) return {ConnectionStep::kClose};
  if (is_over(times.unwritten_since_ns, limits.pause_ns)) {
    return {ConnectionStep::kClose, ReachedLimit::kPause};
  }
  if (times.ping_sent_ns && now_ns - *times.ping_sent_ns > limits.keepalive_timeout_ns) {
    return {ConnectionStep::kClose, ReachedLimit::kKeepalive};
  }
  if (!times.ping_sent_ns && !times.writes_ended_ns &&
      is_over(times.read_ns, limits.keepalive_ns)) {
    return {ConnectionStep::kPing};
  }
  if (phase == ConnectionPhase::kGoingAway && !times.last_goaway_ns &&
      is_over(times.goaway_ns, ConnectionLife::kLeaveNs)) {
    return {ConnectionStep::kLastGoaway};
  }
  const bool has_served =
      is_over(times.idle_since_ns, limits.idle_ns) || is_over(times.begin_ns, limits.age_ns);
  if (phase != ConnectionPhase::kOpen || !has_served) return {};
  return {times.spoken_ns ? ConnectionStep::kGoaway : ConnectionStep::kClose};
}

bool ConnectionLife::MoveTo(ConnectionPhase phase) {
  if (!MayFollow(phase_, phase)) return false;
  phase_ = phase;
  return true;
}

void ConnectionLife::NoteCalls(bool has_calls, int64_t now_ns) {
  if (has_calls) {
    has_asked_ = true;
    times_.idle_since_ns.reset();
  } else {
    times_.idle_since_ns = now_ns;
  }
}

void ConnectionLife::NoteWritten(bool is_all, bool is_any, int64_t now_ns) {
  if (is_all) {
    times_.unwritten_since_ns.reset();
  } else if (is_any || !times_.unwritten_since_ns) {
    times_.unwritten_since_ns = now_ns;
  }
}

void ConnectionLife::NoteGoaway(int64_t now_ns) {
  if (MoveTo(ConnectionPhase::kGoingAway)) times_.goaway_ns = now_ns;
}

void ConnectionLife::NoteLastGoaway(int64_t now_ns) {
  MoveTo(ConnectionPhase::kGoingAway);
  times_.last_goaway_ns = now_ns;
}

void ConnectionLife::NoteWritesEnded(int64_t now_ns) {
  MoveTo(ConnectionPhase::kEnding);
  times_.writes_ended_ns = now_ns;
}

bool ConnectionLife::IsSettled(int64_t now_ns) const {
  return phase_ != ConnectionPhase::kConnecting || now_ns - times_.begin_ns >= kConnectNsMax ||
         (times_.acknowledged_ns && now_ns - *times_.acknowledged_ns >= kSettleNs);
}

ConnectionStep ConnectionLife::Next(int64_t now_ns) {
  Settle(now_ns);
  return NextStep(phase_, times_, limits_, now_ns);
}

ConnectionStep ConnectionLife::AskToGo(int64_t now_ns) {
  Settle(now_ns);
  if (phase_ != ConnectionPhase::kOpen) return {};
  return {times_.spoken_ns ? ConnectionStep::kGoaway : ConnectionStep::kClose};
}

ConnectionStep ConnectionLife::RefuseNewCalls(int64_t now_ns) {
  Settle(now_ns);
  if (is_ending() || times_.last_goaway_ns) return {};
  const bool can_be_told = phase_ != ConnectionPhase::kConnecting && times_.spoken_ns;
  return {can_be_told ? ConnectionStep::kLastGoaway : ConnectionStep::kClose};
}

}  // namespace millpond::rpc
