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

// A Protocol gives the streams of a connection their meaning: calls of gRPC, or requests over HTTP.
namespace millpond::rpc {

// The parts of a connection that its streams use.
//
// Thread: one at a time: under the connection's lock.
struct StreamContext {
  ServerShared* const shared;
  CallCarrier* const carrier;                         // the connection
  int64_t now_ns;                                     // when this turn, or this answer, began
  Session* session = nullptr;                         // set once
  ReceiveSpace* space = nullptr;                      // the reading thread's, within Session::Feed
  std::vector<std::shared_ptr<StreamCall>> due = {};  // StreamCall::Arrive is to be called for them
  std::vector<int32_t> answered = {};  // streams that were answered since the last flush
};

// One request and its answer.
//
// Thread: one at a time: under the connection's lock.
class Stream {
 public:
  virtual ~Stream() = default;

  // True once the request is answered or refused. Nothing more that its client sends is used.
  bool is_answered() const { return is_answered_; }

  // --- events of a request that is not answered yet: see StreamEvents ---
  virtual void OnHeader(std::string_view name, std::string_view value) = 0;
  virtual void OnHeadersEnd() = 0;
  virtual void OnData(std::string_view data) = 0;
  virtual void OnRequestEnd() = 0;

  // --- for its call, while that is not answered: see CallCarrier ---
  // A protocol whose calls have one message and one answer has neither.
  virtual bool TakeMessage(base::ChargedText*, bool*) { return false; }
  virtual bool Send(std::shared_ptr<OutMessage>, size_t) { return false; }
  virtual void Answer(CallEnd end) = 0;

  // --- at any time ---
  virtual void OnDataSent() = 0;
  // Nothing can be sent any more. The run of a request that was not answered is cancelled, because
  // its client is gone.
  virtual void Close() = 0;
  // Counts the bytes of an answered call again, because its client has not read all of the answer.
  virtual void CountUnread() = 0;
  // True if the request is still arriving, and a part of it came at `since_ns` or later.
  virtual bool IsReceiving(int64_t since_ns) const = 0;
  // Ends a request of which no part came, or of whose answer no part was read, since `since_ns`.
  // Returns true if it ended one.
  virtual bool EndIfPaused(int64_t since_ns) = 0;
  // Returns the bytes a second at which the body arrives. Returns nothing if no body is waited for,
  // or if the request is too young to tell.
  virtual std::optional<double> Pace() const { return {}; }
  // Ends a request whose body is still arriving, so that another client has its place.
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
  // Both objects borrow the arguments, and live no longer than their connection.
  virtual std::unique_ptr<Session> MakeSession(const ServerShared& shared, StreamEvents* streams,
                                               SessionEvents* events) const = 0;
  // `charge` and `account` count stream_bytes() already.
  virtual std::unique_ptr<Stream> MakeStream(StreamContext* context, int32_t number,
                                             base::ByteBudget::Share charge,
                                             CallAccount account) const = 0;
};

}  // namespace millpond::rpc
