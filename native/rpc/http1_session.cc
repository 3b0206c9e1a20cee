#include "native/rpc/http1_session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "native/base/ascii_text.h"
#include "native/rpc/http_answer.h"

namespace millpond::rpc {
namespace {

// Heads and chunks are parsed in pieces of this size, and their limits are checked after each
// piece. A body of known length needs no check, so it is one piece.
constexpr size_t kPieceBytes = 4'096;

// The bytes of a chunk beside its data: its size, two line ends, and a short extension.
constexpr int64_t kChunkFramingBytes = 24;

constexpr std::string_view kConnection = "connection";
constexpr std::string_view kExpected = "100-continue";
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

Http1Session* Self(llhttp_t* parser) { return static_cast<Http1Session*>(parser->data); }

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

bool Http1Session::Move(Http1Event event) {
  const auto next = NextState(state_, event);
  if (next) state_ = *next;
  return next.has_value();
}

bool Http1Session::Feed(std::string_view bytes) {
  while (!bytes.empty() && wants_input()) {
    (void)Move(Http1Event::kHeadBegins);  // unless it has
    bytes.remove_prefix(Parse(bytes.substr(0, PieceBytes())));
  }
  if (MayHaveMore(state_)) waiting_.append(bytes);
  if (Charge()) return true;
  (void)Move(Http1Event::kBreak);
  return false;
}

size_t Http1Session::TakeWaiting(char* to, size_t bytes_max) {
  const size_t size = std::min(bytes_max, waiting_bytes());
  std::memcpy(to, waiting_.data() + waiting_begin_, size);
  waiting_begin_ += size;
  if (waiting_begin_ == waiting_.size()) DropWaiting();
  return size;
}

void Http1Session::DropWaiting() {
  waiting_ = {};
  waiting_begin_ = 0;
}

size_t Http1Session::PieceBytes() const {
  return static_cast<size_t>(std::max<uint64_t>(kPieceBytes, body_.bytes_left));
}

// Returns the number of bytes that were parsed: the parser stops at the end of a request.
size_t Http1Session::Parse(std::string_view piece) {
  const Http1State before = state_;
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

// Counts the bytes that the parser got, and refuses too many. The parser reports a name, a value or
// a chunk's size only when it is complete, so an endless one would pass unseen.
void Http1Session::CheckParsed(size_t bytes, Http1State before) {
  if (state_ == Http1State::kHead) {
    head_.bytes += bytes;
    if (head_.bytes > limits_.head_bytes_max) {
      Refuse(431, "the request line and headers are longer than " +
                      std::to_string(limits_.head_bytes_max) + " bytes; shorten them");
    }
  } else if (IsInBody(state_) && IsInBody(before)) {
    body_.framing_bytes += static_cast<int64_t>(bytes);
    const auto bytes_max = static_cast<int64_t>(limits_.head_bytes_max);
    if (body_.framing_bytes > bytes_max + kChunkFramingBytes * body_.piece_count) {
      Refuse(431, "the body's trailers and chunk extensions are too long; leave them out");
    }
  }
}

int Http1Session::OnMessageBegin(llhttp_t* parser) {
  Self(parser)->events_->OnSpoken();
  return 0;
}

int Http1Session::OnTarget(llhttp_t* parser, const char* at, size_t size) {
  Self(parser)->head_.head.target.append(at, size);
  return 0;
}

int Http1Session::OnFieldName(llhttp_t* parser, const char* at, size_t size) {
  Http1Session* const self = Self(parser);
  if (self->state_ != Http1State::kHead) return 0;  // trailers
  std::vector<HttpHead::Field>& fields = self->head_.head.fields;
  if (fields.empty() || self->head_.is_value) {
    if (fields.size() >= self->limits_.field_count_max) {
      self->Refuse(431, "the request has more than " +
                            std::to_string(self->limits_.field_count_max) + " headers; send fewer");
      return HPE_USER;
    }
    fields.emplace_back();
  }
  self->head_.is_value = false;
  fields.back().first += base::LowerOf(std::string_view(at, size));
  return 0;
}

int Http1Session::OnFieldValue(llhttp_t* parser, const char* at, size_t size) {
  IncomingHead& head = Self(parser)->head_;
  if (Self(parser)->state_ != Http1State::kHead || head.head.fields.empty()) return 0;
  head.is_value = true;
  head.head.fields.back().second.append(at, size);
  return 0;
}

int Http1Session::OnHeadersComplete(llhttp_t* parser) { return Self(parser)->TakeHead(); }

int Http1Session::TakeHead() {
  HttpHead& head = head_.head;
  // llhttp keeps the spaces after a value.
  for (HttpHead::Field& field : head.fields) {
    const size_t end = field.second.find_last_not_of(" \t");
    field.second.resize(end == std::string::npos ? 0 : end + 1);
  }
  head.method = llhttp_method_name(static_cast<llhttp_method_t>(parser_.method));
  head.major = parser_.http_major;
  head.minor = parser_.http_minor;
  const std::string fault = HeadFault(head);
  if (head.major != 1 || head.minor > 1) {
    Refuse(505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  } else if (parser_.method == HTTP_CONNECT) {
    Refuse(501, "CONNECT is not supported; this server is no proxy");
  } else if (!fault.empty()) {
    Refuse(400, fault);
  } else {
    // An Upgrade is ignored: the connection goes on with HTTP/1.1.
    parser_.upgrade = 0;
    BeginStream();
  }
  return wants_input() ? HPE_OK : HPE_USER;
}

void Http1Session::BeginStream() {
  const HttpHead head = std::exchange(head_, {}).head;
  const bool is_chunked = (parser_.flags & F_CHUNKED) != 0;
  body_ = {};
  if (!is_chunked) body_.bytes_left = parser_.content_length;
  const std::string* const expect = head.Find("expect");
  const bool expects_continue = head.minor == 1 &&
                                (expect != nullptr && base::EqualWithoutCase(*expect, kExpected)) &&
                                (is_chunked || body_.bytes_left > 0);
  ++stream_;
  if (llhttp_should_keep_alive(&parser_) == 0 || stream_ >= limits_.requests_per_connection) {
    is_last_ = true;
  }
  (void)Move(expects_continue ? Http1Event::kHeadEndsExpecting : Http1Event::kHeadEnds);
  streams_->OnBegin(stream_);
  if (!HasStream(state_)) return;
  streams_->OnHeader(stream_, ":method", head.method);
  streams_->OnHeader(stream_, ":path", PathOf(head.target));
  for (const auto& [name, value] : head.fields) {
    if (HasStream(state_)) streams_->OnHeader(stream_, name, value);
  }
  if (HasStream(state_)) streams_->OnHeadersEnd(stream_);
}

int Http1Session::OnBody(llhttp_t* parser, const char* at, size_t size) {
  Http1Session* const self = Self(parser);
  if (!IsInBody(self->state_)) return 0;
  (void)self->Move(Http1Event::kBodyGoesOn);  // if the client was to wait
  IncomingBody& body = self->body_;
  body.bytes_left -= std::min<uint64_t>(size, body.bytes_left);
  // CheckParsed adds all bytes of the piece, so those of the data are taken off here.
  body.framing_bytes -= static_cast<int64_t>(size);
  body.piece_count += 1;
  self->events_->OnPayload();
  self->streams_->OnData(self->stream_, {at, size});
  return 0;
}

int Http1Session::OnMessageComplete(llhttp_t* parser) {
  Http1Session* const self = Self(parser);
  if (!self->Move(Http1Event::kRequestEnds)) return HPE_USER;
  self->events_->OnPayload();
  self->streams_->OnRequestEnd(self->stream_);
  return HPE_PAUSED;
}

// --- What the session answers itself ---

void Http1Session::RefuseSyntax(llhttp_errno_t error) {
  if (!wants_input()) return;
  if (IsInBody(state_)) {
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

// Answers with an error of the session's own instead of the stream's answer, and ends after it.
void Http1Session::Refuse(int status, std::string_view message) {
  const bool had_stream = HasStream(state_);
  if (!Move(Http1Event::kRefuse)) return;
  events_->OnSpoken();
  DropWaiting();
  if (had_stream) streams_->OnStreamClosed(stream_);
  const std::string body = ErrorBody(message);
  const std::string code = std::to_string(status);
  text_ = "HTTP/1.1 " + code + " " + std::string(ReasonOf(status)) + "\r\n";
  AppendField("content-type", "application/json", &text_);
  AppendField("content-length", std::to_string(body.size()), &text_);
  AppendField("date", DateNow(), &text_);
  AppendField("connection", "close", &text_);
  text_.append("\r\n").append(body);
}

void Http1Session::CheckTimes(int64_t now_ns) {
  if (state_ != Http1State::kHead) return;
  if (!head_.seen_ns) head_.seen_ns = now_ns;
  if (now_ns - *head_.seen_ns < limits_.head_ns) return;
  Refuse(408, "no complete request in " + std::to_string(limits_.head_ns / 1'000'000'000) + " s");
}

void Http1Session::Reset(int32_t stream, ResetReason reason) {
  if (stream != stream_ || !HasStream(state_)) return;
  if (reason == ResetReason::kTooMuch) return Refuse(431, "the headers are too long; shorten them");
  if (reason == ResetReason::kRefused) {
    return Refuse(429,
                  "no memory is left for the request: clients take all of --request_memory_bytes; "
                  "try again later, or use another server");
  }
  // The client does not read its answer, so the connection ends.
  (void)Move(Http1Event::kBreak);
}

void Http1Session::SubmitGoaway() {
  is_last_ = true;
  if (waiting_bytes() == 0) (void)Move(Http1Event::kLeave);
}

// --- Answers ---

void Http1Session::Submit(int32_t stream, const HeaderList& headers) {
  Submit(stream, headers, nullptr);
}

void Http1Session::Submit(int32_t stream, const HeaderList& headers, AnswerBody* body) {
  if (stream != stream_) return;
  const bool closes = std::any_of(headers.begin(), headers.end(),
                                  [](const auto& field) { return field.name == kConnection; });
  if (!Move(is_last_ || closes ? Http1Event::kLastAnswer : Http1Event::kAnswer)) return;
  if (!MayHaveMore(state_)) DropWaiting();
  WriteHead(headers);
  answer_ = body;
}

void Http1Session::WriteHead(const HeaderList& headers) {
  text_ = "HTTP/1.1 ";
  for (const HeaderList::Field& field : headers) {
    if (field.name == ":status") {
      int status = 0;
      for (const char digit : field.value) status = 10 * status + (digit - '0');
      text_.append(field.value).append(" ").append(ReasonOf(status)).append("\r\n");
    } else if (field.name != kConnection) {
      AppendField(field.name, field.value, &text_);
    }
  }
  if (state_ == Http1State::kLastAnswer) {
    AppendField(kConnection, "close", &text_);
  } else if (parser_.http_minor == 0) {
    // A client of HTTP/1.0 that reads no such field waits for the end of the connection.
    AppendField(kConnection, "keep-alive", &text_);
  }
  text_ += "\r\n";
}

Session::Output Http1Session::Produce(OutputQueue* output) {
  switch (state_) {
    case Http1State::kExpecting:
      output->Append(kContinue);
      (void)Move(Http1Event::kBodyGoesOn);
      return Output::kNothing;
    case Http1State::kAnswering:
    case Http1State::kLastAnswer:
      return ProduceAnswer(output);
    case Http1State::kRefusing:
      output->Append(std::exchange(text_, {}));
      (void)Move(Http1Event::kAnswerEnds);
      return Output::kNothing;
    case Http1State::kBroken:
      return Output::kBroken;
    default:
      return Output::kNothing;
  }
}

Session::Output Http1Session::ProduceAnswer(OutputQueue* output) {
  output->Append(text_);
  text_.clear();
  bool is_last = answer_ == nullptr;
  if (answer_ != nullptr) {
    const size_t offered = answer_->Offer(OutputQueue::kCopiedBytesMax * 16, &is_last);
    answer_->Take(offered, output);
    events_->OnPayload();
    streams_->OnDataSent(stream_);
    if (offered == 0 && !is_last) return Output::kNothing;
  }
  if (is_last) EndAnswer();
  return Output::kMore;
}

void Http1Session::EndAnswer() {
  answer_ = nullptr;
  (void)Move(Http1Event::kAnswerEnds);
  streams_->OnStreamClosed(stream_);
  // If the client was asked to go meanwhile, a request that has already come is still served.
  if (is_last_ && waiting_bytes() == 0) (void)Move(Http1Event::kLeave);
  (void)Charge();
}

// Counts what is held for the client beyond the connection's own charge.
bool Http1Session::Charge() {
  const size_t bytes = waiting_.capacity() + head_.head.bytes();
  return charge_.Resize(bytes <= limits_.free_bytes ? 0 : static_cast<int64_t>(bytes));
}

}  // namespace millpond::rpc
