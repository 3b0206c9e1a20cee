#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "native/rpc/output_queue.h"

// The seam between a connection and the protocol that its client speaks: a Session turns bytes into
// events, and answers into bytes. It decides nothing: limits, times and calls are its connection's.
// Streams have numbers that are never used again.
namespace millpond::rpc {

// The headers of an answer. Borrows all texts, which must live until Session::Submit, or
// AnswerBody::Trailers, has been used.
class HeaderList {
 public:
  struct Field {
    std::string_view name;  // a literal
    std::string_view value;
    bool is_literal = false;  // the value
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

  static constexpr size_t kSizeMax = 20;

 private:
  std::array<Field, kSizeMax> fields_;
  size_t size_ = 0;
};

// The messages of an answer, which a session takes as its client's window allows, and the headers
// after them.
class AnswerBody {
 public:
  virtual ~AnswerBody() = default;
  // Returns how many bytes may be sent now, at most `bytes_max`, and sets `*is_last` if the
  // trailers follow them. If it returns 0 and does not set it, the session asks again after Resume.
  virtual size_t Offer(size_t bytes_max, bool* is_last) const = 0;
  // Appends the next `bytes` of those offered.
  virtual void Take(size_t bytes, OutputQueue* output) = 0;
  virtual HeaderList Trailers() const = 0;
};

// The events of the streams of a session, from within Session::Feed and Session::Produce.
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  virtual void OnBegin(int32_t stream) = 0;
  virtual void OnHeader(int32_t stream, std::string_view name, std::string_view value) = 0;
  // All headers have come.
  virtual void OnHeadersEnd(int32_t stream) = 0;
  // A part of the body. It lies within the bytes that are fed.
  virtual void OnData(int32_t stream, std::string_view data) = 0;
  // The client sends no more on this stream.
  virtual void OnRequestEnd(int32_t stream) = 0;
  // A part of the answer's body was appended to the output.
  virtual void OnDataSent(int32_t stream) = 0;
  // Nothing comes or goes on this stream any more.
  virtual void OnStreamClosed(int32_t stream) = 0;
};

// The events of the session itself, from within the same functions.
class SessionEvents {
 public:
  virtual ~SessionEvents() = default;

  // The client began to speak the protocol.
  virtual void OnSpoken() = 0;
  // The client took the settings.
  virtual void OnAcknowledged() = 0;
  // The client has seen that it is asked to go (Session::SubmitGoaway).
  virtual void OnGoawaySeen() = 0;

  // --- what a client may do too often ---
  // A part of a request came, or a part of an answer went.
  virtual void OnPayload() = 0;
  virtual void OnPing() = 0;
  // A frame that carries no part of a request; also each ping.
  virtual void OnControlFrame() = 0;
  // The client made the server reset a stream, by frames that are wrong.
  virtual void OnForcedReset() = 0;
  // The session ends the connection, because the client resets too many streams.
  virtual void OnTooManyResets() = 0;
};

// Why a stream is reset.
enum class ResetReason {
  kRefused,    // it was not begun: the client may send it again, also elsewhere
  kTooMuch,    // the client asks for more than it may
  kCancelled,  // the client does not take its answer
};

// One connection's protocol. Not thread-safe: the connection's lock.
class Session {
 public:
  virtual ~Session() = default;

  // False if no memory was left for it: it is of no use.
  virtual bool is_made() const = 0;
  // Takes the client's bytes. Returns false if the connection is to end, once what Produce has is
  // written.
  virtual bool Feed(std::string_view bytes) = 0;

  // False while it takes no bytes, because an answer is due first. Bytes that were fed before wait
  // in the session, and are to be fed again.
  virtual bool wants_input() const { return true; }
  virtual size_t waiting_bytes() const { return 0; }
  // Moves the front of them, at most `bytes_max`, to `to`. Returns the number of bytes.
  virtual size_t TakeWaiting(char*, size_t) { return 0; }
  // True if a client that has ended its side still gets its answer.
  virtual bool answers_half_closed() const { return false; }
  // Ends what has lasted too long. About once a second.
  virtual void CheckTimes(int64_t) {}

  enum class Output { kMore, kNothing, kBroken };
  // Appends what is ready, a frame or so. kNothing: all is in the output.
  virtual Output Produce(OutputQueue* output) = 0;
  // True if the session neither reads nor writes any more.
  virtual bool is_over() const = 0;

  // Answers with headers alone, or with headers and a body, which is borrowed until the stream is
  // closed.
  virtual void Submit(int32_t stream, const HeaderList& headers) = 0;
  virtual void Submit(int32_t stream, const HeaderList& headers, AnswerBody* body) = 0;
  // The body may have more to offer.
  virtual void Resume(int32_t stream) = 0;
  virtual void Reset(int32_t stream, ResetReason reason) = 0;

  // Asks for a sign of life.
  virtual void SubmitPing() = 0;
  // Asks the client to begin no more streams, and refuses none.
  virtual void SubmitGoaway() = 0;
  // Refuses all later streams.
  virtual void SubmitLastGoaway() = 0;
  // The same, and tells the client that it went too far. `reason` is a literal.
  virtual void SubmitComplaint(std::string_view reason) = 0;
};

}  // namespace millpond::rpc
