#include "native/rpc/connection_life.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/native/units.h"

namespace millpond::rpc {
namespace {

using testing::kMs;
using testing::kSecond;
using Kind = ConnectionStep::Kind;
using Phase = ConnectionPhase;

constexpr int64_t kBegin = 1'000 * kSecond;

WireLimits Limits() {
  WireLimits limits;
  limits.idle_ns = 300 * kSecond;
  limits.age_ns = 900 * kSecond;
  return limits;
}

TEST(ConnectionLife, PhasesFollowInOneDirection) {
  for (int from = 0; from <= static_cast<int>(Phase::kClosed); ++from) {
    for (int to = 0; to <= from; ++to) {
      EXPECT_FALSE(MayFollow(static_cast<Phase>(from), static_cast<Phase>(to)));
    }
    EXPECT_EQ(MayFollow(static_cast<Phase>(from), Phase::kClosed),
              static_cast<Phase>(from) != Phase::kClosed);
  }
  // A client that is still connecting is not asked to go.
  EXPECT_FALSE(MayFollow(Phase::kConnecting, Phase::kGoingAway));
}

TEST(ConnectionLife, AConnectionThatNeverAskedMakesPlaceFirst) {
  const WireLimits limits = Limits();
  ConnectionLife asked(limits, kBegin);
  EXPECT_TRUE(asked.idleness());
  asked.NoteCalls(true, kBegin);
  EXPECT_FALSE(asked.idleness());
  asked.NoteCalls(false, kBegin + kSecond);
  const ConnectionLife silent(limits, kBegin + 9 * kSecond);
  const ConnectionLife younger(limits, kBegin + 10 * kSecond);
  EXPECT_TRUE(*silent.idleness() < *asked.idleness());
  EXPECT_TRUE(*silent.idleness() < *younger.idleness());
  EXPECT_FALSE(*asked.idleness() < *younger.idleness());
}

// --- The table: what is done in a phase, by what has happened ---

struct Row {
  std::string name;
  Phase phase;
  void (*happens)(ConnectionTimes*);
  int64_t after_ns;  // the step is taken after more than this, and not before
  Kind kind;
  std::optional<ReachedLimit> limit;
};

class NextStepTest : public ::testing::TestWithParam<Row> {};

TEST_P(NextStepTest, IsTakenOnceItsTimeIsOver) {
  const Row& row = GetParam();
  const WireLimits limits = Limits();
  ConnectionTimes times(kBegin);
  row.happens(&times);
  EXPECT_EQ(NextStep(row.phase, times, limits, kBegin + row.after_ns).kind, Kind::kNothing);
  const ConnectionStep step = NextStep(row.phase, times, limits, kBegin + row.after_ns + 1);
  EXPECT_EQ(step.kind, row.kind);
  EXPECT_EQ(step.limit, row.limit);
}

void Speaks(ConnectionTimes* times) { times->spoken_ns = kBegin; }
// Bytes come now and then, and a call is open.
void IsUsed(ConnectionTimes* times) {
  Speaks(times);
  times->read_ns = kBegin + 3'600 * kSecond;
  times->idle_since_ns.reset();
}

INSTANTIATE_TEST_SUITE_P(
    Table, NextStepTest,
    ::testing::Values(Row{"SilentFromTheStart", Phase::kConnecting, [](ConnectionTimes*) {},
                          20 * kSecond, Kind::kClose, ReachedLimit::kHandshake},
                      Row{"Silent", Phase::kOpen, Speaks, 60 * kSecond, Kind::kPing, {}},
                      Row{"PingWithoutAnswer", Phase::kOpen,
                          [](ConnectionTimes* times) {
                            Speaks(times);
                            times->ping_sent_ns = kBegin;
                          },
                          20 * kSecond, Kind::kClose, ReachedLimit::kKeepalive},
                      Row{"OutputUnread", Phase::kOpen,
                          [](ConnectionTimes* times) {
                            IsUsed(times);
                            times->unwritten_since_ns = kBegin;
                          },
                          60 * kSecond, Kind::kClose, ReachedLimit::kPause},
                      Row{"Idle",
                          Phase::kOpen,
                          [](ConnectionTimes* times) {
                            IsUsed(times);
                            times->idle_since_ns = kBegin;
                          },
                          300 * kSecond,
                          Kind::kGoaway,
                          {}},
                      Row{"Old", Phase::kOpen, IsUsed, 900 * kSecond, Kind::kGoaway, {}},
                      Row{"OldAndNeverSpoken", Phase::kOpen,
                          [](ConnectionTimes* times) {
                            IsUsed(times);
                            times->spoken_ns.reset();
                          },
                          20 * kSecond, Kind::kClose, ReachedLimit::kHandshake},
                      Row{"GoawayNotSeen",
                          Phase::kGoingAway,
                          [](ConnectionTimes* times) {
                            IsUsed(times);
                            times->goaway_ns = kBegin;
                          },
                          kSecond,
                          Kind::kLastGoaway,
                          {}},
                      Row{"ClientDoesNotLeave",
                          Phase::kEnding,
                          [](ConnectionTimes* times) {
                            IsUsed(times);
                            times->writes_ended_ns = kBegin;
                          },
                          kSecond,
                          Kind::kClose,
                          {}}),
    [](const auto& info) { return info.param.name; });

TEST(ConnectionLife, LimitsOfZeroAreNone) {
  WireLimits limits;
  limits.handshake_ns = limits.pause_ns = limits.keepalive_ns = limits.idle_ns = limits.age_ns = 0;
  ConnectionTimes times(kBegin);
  times.unwritten_since_ns = kBegin;
  EXPECT_EQ(NextStep(Phase::kOpen, times, limits, kBegin * 1'000).kind, Kind::kNothing);
}

// --- Random sequences against the promises of a connection ---

// A connection over which random things happen. It does what its life says, as Connection does, and
// keeps its own book of what was done.
class Simulated {
 public:
  explicit Simulated(unsigned seed) : random_(seed) {
    const auto sometimes = [this](int64_t ns) { return Chance(4) ? 0 : ns; };
    limits_.handshake_ns = sometimes(20 * kSecond);
    limits_.idle_ns = sometimes(Below(40) * kSecond);
    limits_.age_ns = sometimes(Below(200) * kSecond);
  }

  void Run() {
    for (int i = 0; i < 60 && !life_.is_closed(); ++i) {
      now_ns_ += Chance(8) ? Below(90) * kSecond : Below(1'200) * kMs;
      if (Chance(3)) {
        Perform();
      } else {
        Happen();
      }
      if (::testing::Test::HasFailure()) return;
    }
    Leave();
  }

 private:
  int64_t Below(int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit)(random_); }
  bool Chance(int64_t one_in) { return Below(one_in - 1) == 0; }
  bool MayBegin() const { return has_spoken_ && !last_goaway_ns_ && !is_ending_; }

  void Happen() {
    switch (Below(9)) {
      case 0:
        Read();
        if (!std::exchange(has_spoken_, true)) life_.NoteSpoken(now_ns_);
        break;
      case 1:
        Read();
        if (has_spoken_) life_.NoteAcknowledged(now_ns_);
        if (has_spoken_ && !settles_ns_) settles_ns_ = now_ns_ + ConnectionLife::kSettleNs;
        break;
      case 2:
      case 3:
        if (!MayBegin()) break;
        Read();
        life_.NoteCallBegun();
        settles_ns_ = now_ns_;
        SetCalls(call_count_ + 1);
        break;
      case 4:
        if (call_count_ > 0) SetCalls(call_count_ - 1);
        break;
      case 5:
        life_.NoteWritten(false, false, now_ns_);
        if (!stuck_ns_) stuck_ns_ = now_ns_;
        break;
      case 6:
        life_.NoteWritten(Chance(2), true, now_ns_);
        stuck_ns_ = life_.times().unwritten_since_ns;
        break;
      case 7:
        Do(life_.AskToGo(now_ns_), /*is_asked=*/true);
        break;
      case 8:
        if (Chance(4)) Do(life_.RefuseNewCalls(now_ns_), /*is_asked=*/true);
        break;
      default:
        if (Chance(8)) is_ending_ = life_.End() || is_ending_;
    }
    EndIfOver();
  }

  // The client sends its last bytes, and its calls end: the connection must come to its end by
  // itself if it was asked to go.
  void Leave() {
    if (life_.is_closed() || !last_goaway_ns_) return;
    SetCalls(0);
    life_.NoteWritten(true, true, now_ns_);
    stuck_ns_.reset();
    EndIfOver();
    for (int i = 0; i < 3 && !life_.is_closed(); ++i) {
      now_ns_ += kSecond;
      Perform();
    }
    EXPECT_TRUE(life_.is_closed()) << "a connection that was told to go stays";
  }

  void Read() {
    life_.NoteRead(now_ns_);
    read_ns_ = now_ns_;
  }
  void SetCalls(int64_t count) {
    if ((count > 0) != (call_count_ > 0)) life_.NoteCalls(count > 0, now_ns_);
    call_count_ = count;
  }
  // All is written, and the client may begin nothing more.
  void EndIfOver() {
    const bool is_over = is_ending_ || (last_goaway_ns_ && call_count_ == 0);
    if (!is_over || stuck_ns_ || writes_ended_ns_ || life_.is_closed()) return;
    life_.NoteWritesEnded(now_ns_);
    writes_ended_ns_ = now_ns_;
    is_ending_ = true;
  }

  void Perform() {
    for (int step_count = 0; !life_.is_closed(); ++step_count) {
      ASSERT_LT(step_count, 4) << "the steps do not end";
      const ConnectionStep step = life_.Next(now_ns_);
      if (step.kind == Kind::kNothing) return;
      Do(step, /*is_asked=*/false);
    }
  }

  void Do(const ConnectionStep& step, bool is_asked) {
    const Phase before = life_.phase();
    const bool is_settled = now_ns_ - kBegin >= ConnectionLife::kConnectNsMax ||
                            (settles_ns_ && now_ns_ >= *settles_ns_);
    switch (step.kind) {
      case Kind::kNothing:
        break;
      case Kind::kPing:
        EXPECT_GT(now_ns_ - read_ns_, limits_.keepalive_ns);
        EXPECT_TRUE(!ping_ns_ || now_ns_ - *ping_ns_ > limits_.keepalive_ns) << "pings too often";
        ping_ns_ = now_ns_;
        life_.NotePing(now_ns_);
        break;
      case Kind::kGoaway:
        EXPECT_TRUE(is_settled && has_spoken_) << "asked to go while it was connecting";
        EXPECT_FALSE(goaway_ns_ || last_goaway_ns_ || is_ending_) << "asked to go twice";
        goaway_ns_ = now_ns_;
        life_.NoteGoaway(now_ns_);
        break;
      case Kind::kLastGoaway:
        EXPECT_TRUE(is_settled && has_spoken_);
        EXPECT_FALSE(last_goaway_ns_) << "the last goaway came twice";
        EXPECT_TRUE(is_asked || now_ns_ - goaway_ns_.value() > ConnectionLife::kLeaveNs)
            << "a client had no time to see the goaway";
        last_goaway_ns_ = now_ns_;
        life_.NoteLastGoaway(now_ns_);
        EndIfOver();
        break;
      case Kind::kClose:
        ExpectMayClose(is_asked, is_settled);
        EXPECT_TRUE(life_.Close());
        break;
    }
    EXPECT_TRUE(life_.phase() == before || MayFollow(before, life_.phase()));
  }

  // Calls under way are not cut short: only a client that is gone, that reads nothing, or that has
  // broken the protocol loses them.
  void ExpectMayClose(bool is_asked, bool is_settled) {
    const bool is_silent =
        ping_ns_ && read_ns_ < *ping_ns_ && now_ns_ - *ping_ns_ > limits_.keepalive_timeout_ns;
    const bool is_stuck = stuck_ns_ && now_ns_ - *stuck_ns_ > limits_.pause_ns;
    const bool has_had_time =
        writes_ended_ns_ && now_ns_ - *writes_ended_ns_ > ConnectionLife::kLeaveNs;
    if (is_silent || is_stuck || has_had_time) return;
    EXPECT_EQ(call_count_, 0) << "calls under way were cut short";
    EXPECT_TRUE(!has_spoken_ || (is_asked && !is_settled)) << "closed without a reason";
  }

  std::mt19937 random_;
  WireLimits limits_;
  int64_t now_ns_ = kBegin;
  ConnectionLife life_{limits_, kBegin};
  int64_t call_count_ = 0;
  bool has_spoken_ = false;
  bool is_ending_ = false;
  int64_t read_ns_ = kBegin;
  std::optional<int64_t> settles_ns_;
  std::optional<int64_t> stuck_ns_;
  std::optional<int64_t> ping_ns_;
  std::optional<int64_t> goaway_ns_;
  std::optional<int64_t> last_goaway_ns_;
  std::optional<int64_t> writes_ended_ns_;
};

TEST(ConnectionLife, RandomLivesKeepTheirPromises) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    Simulated(seed).Run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace millpond::rpc
