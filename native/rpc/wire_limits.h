#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace millpond::rpc {

// The limits on the resources that clients can use before they are answered. A client that goes
// beyond one is told so (ENHANCE_YOUR_CALM), or its stream is refused. So the server's memory grows
// with what clients have sent, and never with what they announce.
struct WireLimits {
  static constexpr int64_t kSecondNs = 1'000'000'000;

  // SETTINGS_MAX_CONCURRENT_STREAMS of each connection. A client queues its calls beyond it.
  uint32_t streams_per_connection = 1'000;
  // All connections, and the connections of one IP address; 0: no limit. 20,000 are more than the
  // clients of one server. Half of the process's descriptors is a limit in any case. One address
  // has no limit by default, because a proxy's address stands for all of its clients.
  int64_t connection_count_max = 20'000;
  int64_t connections_per_address_max = 0;
  // The bytes of one request's headers, counted as in RFC 9113, 6.5.2: 32 for each field beside its
  // texts. A client that sends kHeadExcess times as much ends its connection, because one byte can
  // repeat a field of 4 KiB (HPACK).
  size_t header_list_bytes_max = 16'384;
  static constexpr size_t kHeadExcess = 8;
  // From the begin of a head to its last frame, as Http1Limits::head_ns.
  int64_t head_ns = 10 * kSecondNs;
  // The memory of all calls that the admission does not count: calls whose message has not arrived
  // in full, and calls like a Watch. Their messages are counted elsewhere. Beyond it, a connection
  // that has more than its share gets REFUSED_STREAM for a new stream, and may repeat it at once.
  // 16 MiB are 1,000 calls with the largest headers, and many more usual ones.
  int64_t open_call_bytes_max = int64_t{16} << 20U;
  // The most PING, SETTINGS, PRIORITY, WINDOW_UPDATE, CONTINUATION and empty DATA frames, and
  // HEADERS frames of closed streams, that a client may send in a row, without a frame that carries
  // a part of a request or an answer. Each second allows kControlFramesPerSecond more. Usual
  // clients send a few; 1,000 are a WINDOW_UPDATE for each stream.
  int control_frames_max = 1'000;
  static constexpr double kControlFramesPerSecond = 10;
  // The most streams that a client may reset, or have reset by wrong frames, and the most frames of
  // unknown types or for streams that were never opened: at once, and then each second. Both are
  // high, because a client whose calls all time out resets all of them again and again.
  uint64_t reset_burst = 10'000;
  uint64_t resets_per_second = 1'000;
  // From the connection to the end of the TLS handshake and HTTP/2's preface; 0: no limit. gRPC's
  // clients give up a connection after 20 s too.
  int64_t handshake_ns = 20 * kSecondNs;
  // The longest pause within a message, and the longest time in which a client reads nothing of its
  // answers; 0: no limit. ServerOptions::request_ns_max makes it longer (WithRequestTime).
  int64_t pause_ns = 60 * kSecondNs;
  // A connection that is silent for so long gets a PING (0: never), and is closed if no answer
  // comes in time.
  int64_t keepalive_ns = 60 * kSecondNs;
  int64_t keepalive_timeout_ns = 20 * kSecondNs;
  // A connection without a call for so long, or of this age, is told to go (GOAWAY); 0: never.
  int64_t idle_ns = 0;
  int64_t age_ns = 0;
  // The least time between two PINGs without a call. Two PINGs in a row may come faster.
  int64_t ping_interval_ns = 10 * kSecondNs;
};

// The limits of a connection over HTTP/1.
struct Http1Limits {
  // The request line and the headers together. Clients rarely send more than 8 KiB, because many
  // servers allow no more. It bounds the trailers and chunk extensions of one body too.
  size_t head_bytes_max = 32'768;
  // Proxies and meshes add a few dozen headers.
  size_t field_count_max = 200;
  // From the first byte of a head to its last one: three retransmissions take less. It stops a
  // client that sends one byte a second (slow loris).
  int64_t head_ns = 10 * WireLimits::kSecondNs;
  // Each request takes a number of a stream, and a number is never used again.
  int32_t requests_per_connection = 1'000'000'000;
  // The bytes that a session may hold uncounted, because its connection's own charge covers them.
  size_t free_bytes = 4'096;
};

// Raises the pause of `limits` to at least `request_ns_max`, because a request that may take long
// may also pause for long. If `request_ns_max` is 0 (no limit), the pause stays as it is: it ends
// messages that never go on, which would hold their memory for ever.
inline WireLimits WithRequestTime(WireLimits limits, int64_t request_ns_max) {
  if (limits.pause_ns > 0) limits.pause_ns = std::max(limits.pause_ns, request_ns_max);
  return limits;
}

// A token bucket: `burst` at once, and `per_second` from then on. One thread at a time.
class RateLimit {
 public:
  RateLimit(double burst, double per_second)
      : burst_(burst), per_second_(per_second), tokens_(burst) {}

  // Takes a token. Returns false if none was left.
  bool Take(int64_t now_ns) {
    const int64_t passed_ns = now_ns - taken_ns_.value_or(now_ns);
    const double passed_seconds =
        static_cast<double>(passed_ns) / static_cast<double>(WireLimits::kSecondNs);
    tokens_ = std::min(burst_, tokens_ + per_second_ * passed_seconds);
    taken_ns_ = now_ns;
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }
  void Fill() { tokens_ = burst_; }

 private:
  const double burst_;
  const double per_second_;
  double tokens_;
  std::optional<int64_t> taken_ns_;
};

// The limits that a client can reach, for the counts.
enum class ReachedLimit {
  kConnections,
  kHeaderBytes,
  kArrivingBytes,
  kControlFrames,
  kPings,
  kResets,
  kHandshake,
  kPause,
  kKeepalive,
  kCount,
};

// Bounds how much a client may do on one connection without a part of a request or of an answer.
// Pure.
//
// Thread: one at a time: under the connection's lock.
class FloodLimits {
 public:
  // The limit that a client reached, and the reason that it is told.
  struct Excess {
    ReachedLimit limit;
    const char* reason;
  };

  explicit FloodLimits(const WireLimits& limits)
      : ping_interval_ns_(limits.ping_interval_ns),
        control_frames_(limits.control_frames_max, WireLimits::kControlFramesPerSecond),
        forced_resets_(static_cast<double>(limits.reset_burst),
                       static_cast<double>(limits.resets_per_second)) {}

  // A part of a request came, or a part of an answer went: a client takes a large one by
  // WINDOW_UPDATE frames, and may measure its bandwidth by PINGs.
  void TakePayload() {
    control_frames_.Fill();
    has_payload_since_ping_ = true;
  }
  std::optional<Excess> TakeControlFrame(int64_t now_ns);
  std::optional<Excess> TakePing(int64_t now_ns);
  std::optional<Excess> TakeForcedReset(int64_t now_ns);

 private:
  static constexpr int kEarlyPingsMax = 2;

  const int64_t ping_interval_ns_;
  RateLimit control_frames_;
  RateLimit forced_resets_;
  std::optional<int64_t> ping_ns_;
  int early_ping_count_ = 0;
  bool has_payload_since_ping_ = false;
};

// Counts how often clients reached each limit. Any thread.
class LimitCounts {
 public:
  void Add(ReachedLimit limit) {
    counts_[static_cast<size_t>(limit)].fetch_add(1, std::memory_order_relaxed);
  }
  // By name, like "header_bytes".
  std::map<std::string, int64_t> ByName() const;

 private:
  std::array<std::atomic<int64_t>, static_cast<size_t>(ReachedLimit::kCount)> counts_{};
};

}  // namespace millpond::rpc
