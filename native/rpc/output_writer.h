#pragma once

#include <cstddef>
#include <cstdint>

#include "native/base/byte_budget.h"
#include "native/rpc/output_queue.h"
#include "native/rpc/session.h"
#include "native/rpc/transport.h"

namespace millpond::rpc {

// Brings the bytes that a session has for its client to the socket, a bounded part at a time. The
// rest waits in the session, which knows the client's windows and its streams.
//
// Thread: one at a time: under the connection's lock.
class OutputWriter {
 public:
  static constexpr size_t kBytesMax = 262'144;
  // The connection's own charge covers this much output. For any more, kBytesMax bytes are charged
  // at once.
  static constexpr size_t kFreeBytes = 8'192;

  // Borrows `budget`, which may be null.
  explicit OutputWriter(base::ByteBudget* budget)
      : charge_(budget, base::ByteBudget::Use::kConnection) {}

  // Charges the output that may follow. Returns false while the client has too much to read, and
  // while no memory is left for more.
  bool Reserve() {
    if (queue_.size() >= kBytesMax) return false;
    const bool is_free = queue_.copied_bytes() < kFreeBytes;
    return charge_.Resize(is_free ? 0 : static_cast<int64_t>(kBytesMax));
  }

  bool empty() const { return queue_.empty(); }

  struct Written {
    Transport::State state;  // kOk: all is written
    bool is_any;             // the socket took a part
  };
  // Writes until all is written, or `transport`, a Transport or another writer, takes no more.
  // kClosed also if the session is broken.
  template <typename Writer>
  Written Write(Session* session, Writer* transport) {
    bool is_any = false;
    while (true) {
      if (!Fill(session)) return {Transport::State::kClosed, is_any};
      if (queue_.empty()) return {Transport::State::kOk, is_any};
      const size_t before = queue_.size();
      const Transport::State state = queue_.WriteTo(transport);
      is_any = is_any || queue_.size() < before;
      if (state != Transport::State::kOk) return {state, is_any};
    }
  }

 private:
  // Takes what fits of what the session has. Returns false if the session is broken.
  bool Fill(Session* session) {
    Session::Output produced = Session::Output::kMore;
    while (produced == Session::Output::kMore && Reserve()) produced = session->Produce(&queue_);
    return produced != Session::Output::kBroken;
  }

  OutputQueue queue_;
  base::ByteBudget::Share charge_;
};

}  // namespace millpond::rpc
