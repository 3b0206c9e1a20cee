#include "native/rpc/http1_session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>

#include "native/base/ascii_text.h"
#include "native/rpc/http_answer.h"

namespace millpond::rpc {
namespace {

// The parser gets so much of a head, or of chunks, at a time: between two pieces it is checked that
// they end. A body of known length is one piece.
constexpr size_t kPieceBytes = 4'096;

// The bytes of a chunk beside its data: its size, two line ends, and a short extension.
constexpr int64_t kChunkFramingBytes = 24;

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

Http1Session* Self(llhttp_t* parser) { return static_cast<Http1Session*>(parser->data); }

// The Date of answers (RFC 9110, 6.6.1), which each thread makes once a second.
std::string_view DateNow() {
  thread_local std::time_t made = 0;
  thread_local std::array<char, 40> text{};
  thread_local size_t size = 0;
  const std::time_t now = std::time(nullptr);
  if (now != made) {
    std::tm parts{};
    gmtime_r(&now, &parts);
    // The process has C's locale: names are English.
    size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    made = now;
  }
  return {text.data(), size};
}

void AppendField(std::string_view name, std::string_view value, std::string* head) {
  head->append(name).append(": ").append(value).append("\r\n");
}

}  // namespace

Http1Session::Http1Session(const Http1Limits& limits, base::ByteBudget* budget,
                           StreamEvents* streams, SessionEvents* events)
    : limits_(limits),
      streams_(streams),
      events_(events),
      charge_(budget, base::ByteBudget::Use::kConnection) {
  llhttp_init(&parser_, HTTP_REQUEST, Settings());
  parser_.data = this;
}

const llhttp_settings_t* Http1Session::Settings() {
  static const llhttp_settings_t settings = [] {
    llhttp_settings_t made;
    llhttp_settings_init(&made);
    made.on_message_begin = OnMessageBegin;
    made.on_url = OnTarget;
    made.on_header_field = OnFieldName;
    made.on_header_value = OnFieldValue;
    made.on_headers_complete = OnHeadersComplete;
    made.on_body = OnBody;
    made.on_message_complete = OnMessageComplete;
    return made;
  }();
  return &settings;
}

// --- What comes ---

bool Http1Session::Feed(std::string_view bytes) {
  while (!bytes.empty() && wants_input()) {
    if (phase_ == Phase::kBetween) phase_ = Phase::kHead;
    bytes.remove_prefix(Parse(bytes.substr(0, PieceBytes())));
  }
  if (phase_ == Phase::kOver) bytes = {};
  waiting_.append(bytes);
  if (!Charge()) {
    is_broken_ = true;
    return false;
  }
  return true;
}

size_t Http1Session::TakeWaiting(char* to, size_t bytes_max) {
  const size_t size = std::min(bytes_max, waiting_bytes());
  std::memcpy(to, waiting_.data() + waiting_begin_, size);
  waiting_begin_ += size;
  if (waiting_begin_ == waiting_.size()) {
    waiting_ = {};
    waiting_begin_ = 0;
  }
  return size;
}

size_t Http1Session::PieceBytes() const {
  return static_cast<size_t>(std::max<uint64_t>(kPieceBytes, body_bytes_left_));
}

// Returns the number of bytes that were parsed: the parser stops at the end of a request.
size_t Http1Session::Parse(std::string_view piece) {
  const Phase before = phase_;
  const llhttp_errno_t error = llhttp_execute(&parser_, piece.data(), piece.size());
  size_t parsed = piece.size();
  if (error == HPE_PAUSED) {
    parsed = static_cast<size_t>(llhttp_get_error_pos(&parser_) - piece.data());
    llhttp_resume(&parser_);
  } else if (error != HPE_OK) {
    RefuseSyntax(error);
    return parsed;
  }
  CheckParsed(parsed, before);
  return parsed;
}

// The parser does not report a name, a value or a chunk's size before it is complete, so the bytes
// that it got are counted.
void Http1Session::CheckParsed(size_t bytes, Phase before) {
  if (phase_ == Phase::kHead) {
    head_bytes_ += bytes;
    if (head_bytes_ > limits_.head_bytes_max) {
      Refuse(431, "the request line and headers are longer than " +
                      std::to_string(limits_.head_bytes_max) + " bytes; shorten them");
    }
  } else if (phase_ == Phase::kBody && before == Phase::kBody) {
    framing_bytes_ += static_cast<int64_t>(bytes);
    const auto bytes_max = static_cast<int64_t>(limits_.head_bytes_max);
    if (framing_bytes_ > bytes_max + kChunkFramingBytes * piece_count_) {
      Refuse(431, "the body's trailers and chunk extensions are too long; leave them out");
    }
  }
}

int Http1Session::OnMessageBegin(llhttp_t* parser) {
  Http1Session* const self = Self(parser);
  self->phase_ = Phase::kHead;
  self->head_ = {};
  self->is_value_ = false;
  self->framing_bytes_ = self->piece_count_ = 0;
  self->body_bytes_left_ = 0;
  self->events_->OnSpoken();
  return 0;
}

int Http1Session::OnTarget(llhttp_t* parser, const char* at, size_t size) {
  Self(parser)->head_.target.append(at, size);
  return 0;
}

int Http1Session::OnFieldName(llhttp_t* parser, const char* at, size_t size) {
  Http1Session* const self = Self(parser);
  if (self->phase_ != Phase::kHead) return 0;  // trailers
  std::vector<HttpHead::Field>& fields = self->head_.fields;
  if (fields.empty() || self->is_value_) {
    if (fields.size() >= self->limits_.field_count_max) {
      self->Refuse(431, "the request has more than " +
                            std::to_string(self->limits_.field_count_max) + " headers; send fewer");
      return HPE_USER;
    }
    fields.emplace_back();
  }
  self->is_value_ = false;
  fields.back().first += base::LowerOf(std::string_view(at, size));
  return 0;
}

int Http1Session::OnFieldValue(llhttp_t* parser, const char* at, size_t size) {
  Http1Session* const self = Self(parser);
  if (self->phase_ != Phase::kHead || self->head_.fields.empty()) return 0;
  self->is_value_ = true;
  self->head_.fields.back().second.append(at, size);
  return 0;
}

int Http1Session::OnHeadersComplete(llhttp_t* parser) { return Self(parser)->TakeHead(); }

int Http1Session::TakeHead() {
  // llhttp keeps the spaces after a value.
  for (HttpHead::Field& field : head_.fields) {
    const size_t end = field.second.find_last_not_of(" \t");
    field.second.resize(end == std::string::npos ? 0 : end + 1);
  }
  head_.method = llhttp_method_name(static_cast<llhttp_method_t>(parser_.method));
  head_.major = parser_.http_major;
  head_.minor = parser_.http_minor;
  const std::string fault = HeadFault(head_);
  if (head_.major != 1 || head_.minor > 1) {
    Refuse(505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  } else if (parser_.method == HTTP_CONNECT) {
    Refuse(501, "CONNECT is not supported; this server is no proxy");
  } else if (!fault.empty()) {
    Refuse(400, fault);
  } else {
    // The request goes on as if its client had asked for nothing.
    parser_.upgrade = 0;
    BeginStream();
  }
  return phase_ == Phase::kOver ? HPE_USER : 0;
}

void Http1Session::BeginStream() {
  const bool is_chunked = (parser_.flags & F_CHUNKED) != 0;
  body_bytes_left_ = is_chunked ? 0 : parser_.content_length;
  is_head_request_ = parser_.method == HTTP_HEAD;
  keeps_alive_ = llhttp_should_keep_alive(&parser_) != 0;
  const std::string* const expect = head_.Find("expect");
  wants_continue_ = head_.minor == 1 &&
                    (expect != nullptr && base::EqualWithoutCase(*expect, "100-continue")) &&
                    (is_chunked || body_bytes_left_ > 0);
  phase_ = Phase::kBody;
  is_open_ = true;
  ++stream_;
  streams_->OnBegin(stream_);
  if (!is_open_) return;
  streams_->OnHeader(stream_, ":method", head_.method);
  streams_->OnHeader(stream_, ":path", PathOf(head_.target));
  for (const auto& [name, value] : head_.fields) {
    if (is_open_) streams_->OnHeader(stream_, name, value);
  }
  head_ = {};
  head_bytes_ = 0;
  head_seen_ns_.reset();
  if (is_open_) streams_->OnHeadersEnd(stream_);
  if (has_answer_ || !is_open_) wants_continue_ = false;
}

int Http1Session::OnBody(llhttp_t* parser, const char* at, size_t size) {
  Http1Session* const self = Self(parser);
  if (self->phase_ != Phase::kBody) return 0;
  self->body_bytes_left_ -= std::min<uint64_t>(size, self->body_bytes_left_);
  // CheckParsed adds the bytes of the whole piece.
  self->framing_bytes_ -= static_cast<int64_t>(size);
  self->piece_count_ += 1;
  self->wants_continue_ = false;
  self->events_->OnPayload();
  self->streams_->OnData(self->stream_, {at, size});
  return 0;
}

int Http1Session::OnMessageComplete(llhttp_t* parser) {
  Http1Session* const self = Self(parser);
  if (self->phase_ != Phase::kBody) return self->phase_ == Phase::kOver ? HPE_USER : HPE_OK;
  self->phase_ = Phase::kAnswering;
  self->wants_continue_ = false;
  self->events_->OnPayload();
  self->streams_->OnRequestEnd(self->stream_);
  return HPE_PAUSED;
}

// --- What the session answers itself ---

void Http1Session::RefuseSyntax(llhttp_errno_t error) {
  if (error == HPE_USER && phase_ == Phase::kOver) return;
  if (phase_ == Phase::kBody) {
    return Refuse(400, "the body's chunks are not HTTP; send their sizes as RFC 9112, 7.1 says");
  }
  const bool is_encoding =
      error == HPE_INVALID_TRANSFER_ENCODING || error == HPE_UNEXPECTED_CONTENT_LENGTH;
  if (is_encoding) {
    return Refuse(
        400,
        "invalid use of Transfer-Encoding or Content-Length; send 'chunked' alone, or one "
        "Content-Length alone");
  }
  Refuse(400, "Invalid HTTP request received.");
}

// The refusal takes the place of the answer, unless that was submitted.
void Http1Session::Refuse(int status, std::string_view message) {
  if (phase_ == Phase::kOver) return;
  events_->OnSpoken();
  const bool is_answered = is_open_ && has_answer_;
  phase_ = Phase::kOver;
  waiting_ = {};
  waiting_begin_ = 0;
  if (is_answered) return;
  if (std::exchange(is_open_, false)) streams_->OnStreamClosed(stream_);
  const std::string body = ErrorBody(message);
  const std::string code = std::to_string(status);
  refusal_ = "HTTP/1.1 " + code + " " + std::string(ReasonOf(status)) + "\r\n";
  AppendField("content-type", "application/json", &refusal_);
  AppendField("content-length", std::to_string(body.size()), &refusal_);
  AppendField("date", DateNow(), &refusal_);
  AppendField("connection", "close", &refusal_);
  refusal_.append("\r\n").append(body);
}

void Http1Session::CheckTimes(int64_t now_ns) {
  if (phase_ != Phase::kHead) return;
  if (!head_seen_ns_) head_seen_ns_ = now_ns;
  if (now_ns - *head_seen_ns_ < limits_.head_ns) return;
  Refuse(408, "no complete request in " + std::to_string(limits_.head_ns / 1'000'000'000) + " s");
}

void Http1Session::Reset(int32_t stream, ResetReason reason) {
  if (stream != stream_ || !is_open_) return;
  if (reason == ResetReason::kTooMuch) return Refuse(431, "the headers are too long; shorten them");
  if (reason == ResetReason::kRefused) {
    return Refuse(429,
                  "no memory is left for the request: clients take all of --request_memory_bytes; "
                  "try again later, or use another server");
  }
  // A client that does not take its answer gets no further one.
  is_broken_ = true;
}

void Http1Session::SubmitGoaway() {
  is_going_ = true;
  if (phase_ == Phase::kBetween && waiting_bytes() == 0) phase_ = Phase::kOver;
}

// --- Answers ---

void Http1Session::Submit(int32_t stream, const HeaderList& headers) {
  Submit(stream, headers, nullptr);
}

void Http1Session::Submit(int32_t stream, const HeaderList& headers, AnswerBody* body) {
  if (stream != stream_ || !is_open_) return;
  has_answer_ = true;
  wants_continue_ = false;
  // The rest of a request that is answered early is not read (RFC 9112, 9.6).
  if (phase_ == Phase::kBody) phase_ = Phase::kOver;
  keeps_alive_ = keeps_alive_ && !is_going_ && phase_ != Phase::kOver &&
                 stream_ < limits_.requests_per_connection;
  WriteHead(headers);
  body_ = is_head_request_ ? nullptr : body;
}

void Http1Session::WriteHead(const HeaderList& headers) {
  answer_head_ = "HTTP/1.1 ";
  for (const HeaderList::Field& field : headers) {
    if (field.name == ":status") {
      int status = 0;
      for (const char digit : field.value) status = 10 * status + (digit - '0');
      answer_head_.append(field.value).append(" ").append(ReasonOf(status)).append("\r\n");
    } else if (field.name == "connection") {
      keeps_alive_ = false;
    } else {
      AppendField(field.name, field.value, &answer_head_);
    }
  }
  AppendField("date", DateNow(), &answer_head_);
  if (!keeps_alive_) AppendField("connection", "close", &answer_head_);
  answer_head_ += "\r\n";
}

Session::Output Http1Session::Produce(OutputQueue* output) {
  if (is_broken_) return Output::kBroken;
  if (std::exchange(wants_continue_, false)) output->Append(kContinue);
  if (!has_answer_) {
    output->Append(std::exchange(refusal_, {}));
    return Output::kNothing;
  }
  output->Append(answer_head_);
  answer_head_.clear();
  bool is_last = body_ == nullptr;
  if (body_ != nullptr) {
    const size_t offered = body_->Offer(OutputQueue::kCopiedBytesMax * 16, &is_last);
    body_->Take(offered, output);
    events_->OnPayload();
    streams_->OnDataSent(stream_);
    if (offered == 0 && !is_last) return Output::kNothing;
  }
  if (is_last) EndAnswer();
  return Output::kMore;
}

void Http1Session::EndAnswer() {
  has_answer_ = false;
  body_ = nullptr;
  is_open_ = false;
  streams_->OnStreamClosed(stream_);
  if (!keeps_alive_ || (is_going_ && waiting_bytes() == 0)) {
    phase_ = Phase::kOver;
    waiting_ = {};
    waiting_begin_ = 0;
  } else {
    phase_ = Phase::kBetween;
  }
  (void)Charge();
}

// Counts what is held for the client beyond the connection's own charge.
bool Http1Session::Charge() {
  const size_t bytes = waiting_.capacity() + head_.bytes();
  return charge_.Resize(bytes <= limits_.free_bytes ? 0 : static_cast<int64_t>(bytes));
}

}  // namespace millpond::rpc
