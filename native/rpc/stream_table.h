#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/rpc/connection_life.h"
#include "native/rpc/session.h"
#include "native/rpc/stream.h"

namespace millpond::rpc {

// The streams of a connection by their numbers, whatever they mean. Brings the events of the
// session to them, refuses those for which there is no room, and tells the connection's life when
// there are some.
//
// Thread: one at a time: under the connection's lock.
class StreamTable final : public StreamEvents {
 public:
  // Streams that have closed, with all that they hold.
  using Closed = std::vector<std::unique_ptr<Stream>>;

  // Borrows all.
  StreamTable(const Protocol& protocol, StreamContext* context, ConnectionLife* life)
      : protocol_(protocol), context_(*context), life_(*life) {}

  // Returns null if there is no such stream, or if it is answered.
  Stream* FindUnanswered(int32_t number) const;
  bool IsReceiving(int64_t since_ns) const;

  // Ends each stream that has paused for WireLimits::pause_ns. A message that stopped arriving, or
  // an answer that its client does not read, would hold its memory for ever.
  void EndPaused();
  // The pace of the slowest body, if all streams wait for their bodies. A connection with an answer
  // that is due is not given up.
  std::optional<double> Pace() const;
  void GiveUp();
  bool empty() const { return streams_.empty(); }
  // Counts the answers that clients have not read. Called when all that the socket takes is
  // written.
  void CountUnread();
  void CloseAll();
  // The streams that have closed since the last call. They may hold long messages: free them
  // without the lock.
  Closed TakeClosed() { return std::exchange(closed_, {}); }

  // --- StreamEvents ---
  void OnBegin(int32_t number) override;
  void OnHeader(int32_t number, std::string_view name, std::string_view value) override;
  void OnHeadersEnd(int32_t number) override;
  void OnData(int32_t number, std::string_view data) override;
  void OnRequestEnd(int32_t number) override;
  void OnDataSent(int32_t number) override;
  void OnStreamClosed(int32_t number) override;

 private:
  bool HasRoomFor(int64_t bytes) const;
  Stream* Find(int32_t number) const;

  const Protocol& protocol_;
  StreamContext& context_;
  ConnectionLife& life_;
  std::atomic<int64_t> open_bytes_{0};  // of this connection's calls, as in CallCounts
  std::unordered_map<int32_t, std::unique_ptr<Stream>> streams_;
  Closed closed_;
};

}  // namespace millpond::rpc
