#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "native/rpc/output_queue.h"
#include "native/rpc/wire_limits.h"

// A Session speaks one protocol with one client: it turns the client's bytes into events, and
// answers into bytes. It decides nothing, because limits, times and calls are the connection's.
// Each request is a stream. No two streams of a connection have the same number.
namespace millpond::rpc {

// The headers of an answer, in order. Borrows all texts: keep them until Session::Submit returns,
// or until the session has used what AnswerBody::Trailers returned.
class HeaderList {
 public:
  struct Field {
    std::string_view name;  // a literal
    std::string_view value;
    bool is_literal = false;  // the value lives for ever, so it needs no copy
  };

  void Add(std::string_view name, std::string_view value) {
    fields_[size_++] = {name, value, false};
  }
  void AddLiteral(std::string_view name, std::string_view value) {
    fields_[size_++] = {name, value, true};
  }
  const Field* begin() const { return fields_.data(); }
  const Field* end() const { return fields_.data() + size_; }
  size_t size() const { return size_; }

  static constexpr size_t kSizeMax = 24;

 private:
  std::array<Field, kSizeMax> fields_;
  size_t size_ = 0;
};

// The bytes of an answer after its headers. The session takes them in parts, as fast as the client
// reads. Trailers may follow the last part.
class AnswerBody {
 public:
  virtual ~AnswerBody() = default;
  // Returns the number of bytes that can be taken now, at most `bytes_max`. Sets `*is_last` if only
  // trailers can follow them. After 0 without `*is_last` the session asks again once Resume is
  // called.
  virtual size_t Offer(size_t bytes_max, bool* is_last) const = 0;
  // Moves the next `bytes` bytes to `output`, at most as many as Offer returned.
  virtual void Take(size_t bytes, OutputQueue* output) = 0;
  virtual HeaderList Trailers() const = 0;
};

// The session calls these functions, within Feed and Produce, to report what happens on its
// streams.
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  virtual void OnBegin(int32_t stream) = 0;
  virtual void OnHeader(int32_t stream, std::string_view name, std::string_view value) = 0;
  // All headers have come.
  virtual void OnHeadersEnd(int32_t stream) = 0;
  // A part of the body came. `data` points into the bytes that Feed was given.
  virtual void OnData(int32_t stream, std::string_view data) = 0;
  // The client sends no more on this stream.
  virtual void OnRequestEnd(int32_t stream) = 0;
  // A part of the answer's body was appended to the output.
  virtual void OnDataSent(int32_t stream) = 0;
  // The stream is over: nothing more is received or sent on it.
  virtual void OnStreamClosed(int32_t stream) = 0;
};

// The session calls these functions, within Feed and Produce, to report what concerns the whole
// connection.
class SessionEvents {
 public:
  virtual ~SessionEvents() = default;

  // The client has shown that it speaks the protocol.
  virtual void OnSpoken() = 0;
  // The client has confirmed the server's settings.
  virtual void OnAcknowledged() = 0;
  // The client has seen that it is asked to go (Session::SubmitGoaway).
  virtual void OnGoawaySeen() = 0;

  // --- what a client may do too often ---
  // A part of a request came, or a part of an answer was sent. The counts below begin anew.
  virtual void OnPayload() = 0;
  virtual void OnPing() = 0;
  // A frame came that carries no part of a request. Each ping is one too.
  virtual void OnControlFrame() = 0;
  // The client sent a wrong frame, for which the server must reset a stream, or a frame that
  // concerns no stream.
  virtual void OnForcedReset() = 0;
  // The client's headers are too long, or come too slowly.
  virtual void OnExcess(const FloodLimits::Excess& excess) = 0;
  // The session ends the connection, because the client resets too many streams.
  virtual void OnTooManyResets() = 0;
};

// Why a stream is reset.
enum class ResetReason {
  kRefused,    // the request was not begun: its client may send it again, here or elsewhere
  kTooMuch,    // the client asks for more than it may
  kCancelled,  // the client does not read its answer
};

// The protocol of one connection. Not thread-safe: the connection's lock guards it.
class Session {
 public:
  virtual ~Session() = default;

  // False if no memory was left for the session. Nothing else may be called then.
  virtual bool is_made() const = 0;
  // Reads the client's bytes. Returns false if the connection must end, after Produce's last bytes
  // are written.
  virtual bool Feed(std::string_view bytes) = 0;

  // False while an answer must be written before the next request is read. Bytes that were fed too
  // early wait in the session: take them by TakeWaiting, and feed them again.
  virtual bool wants_input() const { return true; }
  virtual size_t waiting_bytes() const { return 0; }
  // Moves the first waiting bytes, at most `bytes_max`, to `to`. Returns their number.
  virtual size_t TakeWaiting(char*, size_t) { return 0; }
  // True if a client that has ended its side still gets its answer.
  virtual bool answers_half_closed() const { return false; }
  // Refuses a request, or a client, whose headers take too long. Called about once a second.
  virtual void CheckTimes(int64_t) {}

  enum class Output { kMore, kNothing, kBroken };
  // Appends the next part of what is ready, about a frame. kMore: call it again. kNothing: nothing
  // more is ready. kBroken: close the connection at once.
  virtual Output Produce(OutputQueue* output) = 0;
  // True if the session neither reads nor writes any more.
  virtual bool is_over() const = 0;

  // Answers with headers alone, or with headers and `body`. The body is borrowed until the stream
  // is closed.
  virtual void Submit(int32_t stream, const HeaderList& headers) = 0;
  virtual void Submit(int32_t stream, const HeaderList& headers, AnswerBody* body) = 0;
  // Has Produce ask the stream's body again: it may have more to offer.
  virtual void Resume(int32_t stream) = 0;
  virtual void Reset(int32_t stream, ResetReason reason) = 0;

  // Asks the client for a sign that it lives.
  virtual void SubmitPing() = 0;
  // Asks the client to begin no more streams. A stream that it begins all the same is served.
  virtual void SubmitGoaway() = 0;
  // Tells the client that all later streams are refused.
  virtual void SubmitLastGoaway() = 0;
  // Does the same, and tells the client which limit it exceeded. `reason` is a literal.
  virtual void SubmitComplaint(std::string_view reason) = 0;
};

}  // namespace millpond::rpc
