#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/rpc/incoming_message.h"
#include "native/rpc/message_encoding.h"
#include "native/rpc/session.h"

namespace millpond::rpc {

// A message on its way to the client, with the five bytes before it. Owns the bytes, which count in
// the server's budget, as those of every base::ReplyBytes.
class OutMessage {
 public:
  OutMessage(base::ReplyBytes reply, bool is_compressed);
  OutMessage(const OutMessage&) = delete;
  OutMessage& operator=(const OutMessage&) = delete;

  std::string_view prefix() const { return {prefix_, kMessagePrefixBytes}; }
  std::string_view body() const { return reply_.view(); }
  size_t size() const { return kMessagePrefixBytes + reply_.size(); }

 private:
  base::ReplyBytes reply_;
  char prefix_[kMessagePrefixBytes];
};

struct HttpAnswer;

// The end of a call, as it is answered.
struct CallEnd {
  std::shared_ptr<OutMessage> message;  // null: none, or those of OutgoingReply::Add
  Encoding encoding = Encoding::kIdentity;
  base::Status status;
  std::optional<int64_t> pushback_ms = {};  // the client tries again after so long
  bool names_encodings = false;             // the end names the encodings that the server takes
  std::shared_ptr<HttpAnswer> http = {};    // over HTTP, instead of all above
  std::string http_fields = {};             // beside `status`, the lines of headers of a failure
  bool is_held = false;                     // stays here until CallCarrier::WriteAnswers
};

// The answer to one call of gRPC: its messages and, once it is known, its end. The session takes as
// much as the client reads.
//
// Thread: one at a time: under the connection's lock.
class OutgoingReply final : public AnswerBody {
 public:
  // --- the handler's side ---
  void Add(std::shared_ptr<OutMessage> message, int64_t now_ns);
  void End(CallEnd end, int64_t now_ns);
  size_t waiting_count() const { return messages_.size(); }

  // --- the session's side ---

  // True once the headers are submitted. From then on the session reads this object as the body.
  bool is_begun() const { return is_begun_; }
  void MarkBegun() { is_begun_ = true; }
  HeaderList Headers() const;
  // The headers of a call without a message: they have the trailers too.
  HeaderList HeadersWithEnd() const;
  size_t Offer(size_t bytes_max, bool* is_last) const override;
  void Take(size_t bytes, OutputQueue* output) override;
  HeaderList Trailers() const override;
  void NoteSent(int64_t now_ns) { progress_ns_ = now_ns; }

  // True if messages wait for the client to read them, and nothing was sent after `since_ns`.
  bool is_left_unread(int64_t since_ns) const {
    return !messages_.empty() && progress_ns_ < since_ns;
  }

 private:
  void AddEnd(HeaderList* headers) const;

  bool is_begun_ = false;
  std::vector<std::shared_ptr<OutMessage>> messages_;  // few; an empty deque would allocate
  size_t sent_bytes_ = 0;                              // of the first message
  int64_t progress_ns_ = 0;  // when a part was last sent, or the first message came
  Encoding encoding_ = Encoding::kIdentity;
  // The end; no code: it is not known yet.
  std::optional<std::string> code_;
  std::string error_;
  std::string pushback_;
  bool names_encodings_ = false;
};

}  // namespace millpond::rpc
