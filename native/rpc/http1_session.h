#pragma once

#include <llhttp/llhttp.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/byte_budget.h"
#include "native/rpc/http1_state.h"
#include "native/rpc/http_head.h"
#include "native/rpc/output_queue.h"
#include "native/rpc/session.h"
#include "native/rpc/wire_limits.h"

namespace millpond::rpc {

// Speaks HTTP/1.1 by llhttp, Node's parser. Each request is a stream, and one stream is served at a
// time: the next request is parsed once the last answer is written. Bytes that come earlier wait in
// the session, and further bytes in the socket (wants_input). So a client that sends thousands of
// requests before it reads (pipelining) is answered in order, and holds the memory of one.
//
// The session itself refuses what is not HTTP, with 400, 408, 431, 501 or 505, and ends after that.
// It ignores Upgrade (RFC 9110, 7.8) and trailers. What it holds for its client counts in the
// budget.
//
// Thread: as Session.
class Http1Session final : public Session {
 public:
  // Borrows the events, and the budget, which may be null.
  Http1Session(const Http1Limits& limits, base::ByteBudget* budget, StreamEvents* streams,
               SessionEvents* events);
  Http1Session(const Http1Session&) = delete;
  Http1Session& operator=(const Http1Session&) = delete;

  bool is_made() const override { return true; }
  bool Feed(std::string_view bytes) override;
  bool wants_input() const override { return TakesInput(state_); }
  size_t waiting_bytes() const override { return waiting_.size() - waiting_begin_; }
  size_t TakeWaiting(char* to, size_t bytes_max) override;
  bool answers_half_closed() const override { return true; }
  Output Produce(OutputQueue* output) override;
  bool is_over() const override { return state_ == Http1State::kOver; }
  void Submit(int32_t stream, const HeaderList& headers) override;
  void Submit(int32_t stream, const HeaderList& headers, AnswerBody* body) override;
  void Resume(int32_t) override {}
  void Reset(int32_t stream, ResetReason reason) override;
  // HTTP/1 has no signs of life.
  void SubmitPing() override {}
  void SubmitGoaway() override;
  void SubmitLastGoaway() override { SubmitGoaway(); }
  void SubmitComplaint(std::string_view) override { SubmitGoaway(); }
  void CheckTimes(int64_t now_ns) override;

 private:
  // The head that is arriving.
  struct IncomingHead {
    HttpHead head;
    bool is_value = false;           // what comes next belongs to the last field's value
    size_t bytes = 0;                // received so far
    std::optional<int64_t> seen_ns;  // when CheckTimes first saw this head
  };
  // The body that is arriving.
  struct IncomingBody {
    uint64_t bytes_left = 0;    // 0 if the length is not known
    int64_t framing_bytes = 0;  // chunk sizes, extensions and trailers so far
    int64_t piece_count = 0;    // parts of data so far
  };

  static int OnMessageBegin(llhttp_t* parser);
  static int OnTarget(llhttp_t* parser, const char* at, size_t size);
  static int OnFieldName(llhttp_t* parser, const char* at, size_t size);
  static int OnFieldValue(llhttp_t* parser, const char* at, size_t size);
  static int OnHeadersComplete(llhttp_t* parser);
  static int OnBody(llhttp_t* parser, const char* at, size_t size);
  static int OnMessageComplete(llhttp_t* parser);
  static const llhttp_settings_t* Settings();

  // Moves as the table of Http1State says. Returns false, and stays, if the table has no such move.
  bool Move(Http1Event event);
  size_t Parse(std::string_view piece);
  size_t PieceBytes() const;
  void CheckParsed(size_t bytes, Http1State before);
  int TakeHead();
  void BeginStream();
  bool Charge();
  void Refuse(int status, std::string_view message);
  void RefuseSyntax(llhttp_errno_t error);
  void WriteHead(const HeaderList& headers);
  Output ProduceAnswer(OutputQueue* output);
  void EndAnswer();
  void DropWaiting();

  const Http1Limits limits_;
  StreamEvents* const streams_;
  SessionEvents* const events_;
  llhttp_t parser_;
  Http1State state_ = Http1State::kIdle;
  bool is_last_ = false;  // no request after this one is served; never false again
  base::ByteBudget::Share charge_;
  IncomingHead head_;
  IncomingBody body_;
  int32_t stream_ = 0;            // of the newest request
  std::string text_;              // the head of its answer, or a refusal, until it is written
  AnswerBody* answer_ = nullptr;  // what follows the head; null if nothing does
  std::string waiting_;           // bytes that are not parsed yet
  size_t waiting_begin_ = 0;
};

}  // namespace millpond::rpc
