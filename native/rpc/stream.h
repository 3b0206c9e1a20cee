#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/rpc/call_counts.h"
#include "native/rpc/outgoing_reply.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/server_shared.h"
#include "native/rpc/session.h"
#include "native/rpc/stream_call.h"

// The seam between a connection and what its streams mean: the calls of gRPC, or the requests of
// another protocol.
namespace millpond::rpc {

// The parts of a connection that its streams use.
//
// Thread: one at a time: under the connection's lock.
struct StreamContext {
  ServerShared* const shared;
  CallCarrier* const carrier;     // the connection
  int64_t now_ns;                 // of this turn, or of the answer that is framed
  Session* session = nullptr;     // set once
  ReceiveSpace* space = nullptr;  // of the thread that reads, within Session::Feed
  std::vector<std::shared_ptr<StreamCall>> due = {};  // calls with something for Arrive
  std::vector<int32_t> answered = {};  // streams that were answered, and not flushed since
};

// One request and its answer, as its protocol has them.
//
// Thread: one at a time: under the connection's lock.
class Stream {
 public:
  virtual ~Stream() = default;

  // True if nothing of the client is of use any more: the request is answered, or refused.
  bool is_answered() const { return is_answered_; }

  // --- what comes, before it is answered: see StreamEvents ---
  virtual void OnHeader(std::string_view name, std::string_view value) = 0;
  virtual void OnHeadersEnd() = 0;
  virtual void OnData(std::string_view data) = 0;
  virtual void OnRequestEnd() = 0;

  // --- what its call asks for, before it is answered: see CallCarrier ---
  // A protocol whose calls have one message and one answer has neither.
  virtual bool TakeMessage(base::ChargedText*, bool*) { return false; }
  virtual bool Send(std::shared_ptr<OutMessage>, size_t) { return false; }
  virtual void Answer(CallEnd end) = 0;

  // --- at any time ---
  virtual void OnDataSent() = 0;
  // Nothing can be sent any more. If the request was not answered, its client waits for no answer.
  virtual void Close() = 0;
  // Counts the call as open again: it is answered, and its client has not read all.
  virtual void CountUnread() = 0;
  // True if a request is arriving, of which a part came at `since_ns` or later.
  virtual bool IsReceiving(int64_t since_ns) const = 0;
  // Ends the request if it stopped arriving, or its answer stopped going, before `since_ns`.
  // Returns true if it did.
  virtual bool EndIfPaused(int64_t since_ns) = 0;
  // The bytes a second of a body that is waited for; nothing if none is, or if it has just begun.
  virtual std::optional<double> Pace() const { return {}; }
  // Ends a request whose body is waited for, so that another client has its place.
  virtual void GiveUp() {}

 protected:
  bool is_answered_ = false;
};

// The protocol that the clients of a listener speak.
//
// Thread: any, because nothing in it changes.
class Protocol {
 public:
  virtual ~Protocol() = default;
  // The names of what is spoken, for ALPN (RFC 7301): the preferred one first, each after a byte
  // with its length. A literal.
  virtual std::string_view alpn() const = 0;
  // The bytes of the budget that a stream takes when it begins: its objects, and room for usual
  // headers.
  virtual int64_t stream_bytes() const = 0;
  // Both borrow what they are given, and last no longer than their connection.
  virtual std::unique_ptr<Session> MakeSession(const ServerShared& shared, StreamEvents* streams,
                                               SessionEvents* events) const = 0;
  // `charge` and `account` have the bytes above.
  virtual std::unique_ptr<Stream> MakeStream(StreamContext* context, int32_t number,
                                             base::ByteBudget::Share charge,
                                             CallAccount account) const = 0;
};

}  // namespace millpond::rpc
