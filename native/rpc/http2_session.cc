#include "native/rpc/http2_session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#include "native/base/ascii_text.h"

namespace millpond::rpc {
namespace {

// The bytes of one message, and of all messages on a connection, that a client may send before the
// server has read any. The server reads them as they come, so this is what one round trip carries.
// Large tensors need that much.
constexpr int32_t kStreamWindowBytes = 4 << 20;
constexpr int32_t kConnectionWindowBytes = 16 << 20;
// Frames may be longer than HTTP/2's default of 16 KiB, so that a large tensor comes in fewer
// parts.
constexpr uint32_t kFrameBytesMax = 65'536;

// The opaque data of this server's PINGs. An answer repeats it, and so shows which PING it answers.
constexpr std::array<uint8_t, 8> kGoawayPing = {'g', 'o', 'a', 'w', 'a', 'y', '\0', '\0'};
constexpr std::array<uint8_t, 8> kAlivePing = {'a', 'l', 'i', 'v', 'e', '\0', '\0', '\0'};

std::string_view Text(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// Headers in the form of nghttp2, which copies the values that are no literals when it takes them.
// Without "connection", which HTTP/2 has not (RFC 9113, 8.2.2): GOAWAY says the same.
class Http2Headers {
 public:
  explicit Http2Headers(const HeaderList& headers) {
    for (const HeaderList::Field& field : headers) {
      if (field.name == "connection") continue;
      const uint8_t copies =
          field.is_literal ? NGHTTP2_NV_FLAG_NO_COPY_VALUE : NGHTTP2_NV_FLAG_NONE;
      fields_[size_++] = {Bytes(field.name), Bytes(field.value), field.name.size(),
                          field.value.size(),
                          static_cast<uint8_t>(NGHTTP2_NV_FLAG_NO_COPY_NAME | copies)};
    }
  }
  const nghttp2_nv* data() const { return fields_.data(); }
  size_t size() const { return size_; }

 private:
  static uint8_t* Bytes(std::string_view text) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  }

  std::array<nghttp2_nv, HeaderList::kSizeMax> fields_;
  size_t size_ = 0;
};

// Returns true if the bytes may begin a request of HTTP/1.
bool IsHttp1(std::string_view bytes) {
  for (const std::string_view method :
       {"GET ", "POST ", "HEAD ", "PUT ", "DELETE ", "OPTIONS ", "PATCH "}) {
    const size_t size = std::min(bytes.size(), method.size());
    if (bytes.substr(0, size) == method.substr(0, size)) return true;
  }
  return false;
}

constexpr std::string_view kHttp1Answer =
    "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    "content-length: 83\r\n\r\n"
    "This port speaks gRPC, which needs HTTP/2. REST has its own port: --rest_api_port.\n";

// A client can make the server reset a stream with a frame that is wrong: its request runs in vain,
// and a limit on the client's own resets does not see it (CVE-2025-8671).
bool IsForcedReset(uint32_t error_code) {
  return error_code != NGHTTP2_NO_ERROR && error_code != NGHTTP2_REFUSED_STREAM &&
         error_code != NGHTTP2_CANCEL && error_code != NGHTTP2_ENHANCE_YOUR_CALM;
}

uint32_t ErrorCodeOf(ResetReason reason) {
  switch (reason) {
    case ResetReason::kRefused:
      return NGHTTP2_REFUSED_STREAM;
    case ResetReason::kTooMuch:
      return NGHTTP2_ENHANCE_YOUR_CALM;
    case ResetReason::kCancelled:
      break;
  }
  return NGHTTP2_CANCEL;
}

bool IsLast(const nghttp2_frame& frame) { return (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0; }

bool IsAck(const nghttp2_frame_hd& header) { return (header.flags & NGHTTP2_FLAG_ACK) != 0; }

// Returns true if the frame may be a part of a request. Data of a closed stream is not counted:
// many frames of it may be on their way when the stream is refused.
bool MayCarryPayload(nghttp2_session* session, const nghttp2_frame_hd& header) {
  if (header.type == NGHTTP2_DATA && header.length > 0) return true;
  const bool is_open = nghttp2_session_find_stream(session, header.stream_id) != nullptr;
  if (header.type == NGHTTP2_DATA) {
    return is_open && (header.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  }
  return header.type == NGHTTP2_HEADERS &&
         (is_open || header.stream_id > nghttp2_session_get_last_proc_stream_id(session));
}

bool IsOfRequest(const nghttp2_frame& frame) {
  return frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST;
}

}  // namespace

nghttp2_session_callbacks* Http2Session::Callbacks() {
  static nghttp2_session_callbacks* const callbacks = [] {
    nghttp2_session_callbacks* made = nullptr;
    nghttp2_session_callbacks_new(&made);
    nghttp2_session_callbacks_set_on_begin_frame_callback(made, OnBeginFrame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(made, OnBeginHeaders);
    nghttp2_session_callbacks_set_on_header_callback(made, OnHeader);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(made, OnDataChunk);
    nghttp2_session_callbacks_set_on_frame_recv_callback(made, OnFrameReceived);
    nghttp2_session_callbacks_set_on_frame_send_callback(made, OnFrameSent);
    nghttp2_session_callbacks_set_on_stream_close_callback(made, OnStreamClosed);
    nghttp2_session_callbacks_set_send_data_callback(made, OnSendData);
    return made;
  }();
  return callbacks;
}

Http2Session::Http2Session(const WireLimits& limits, base::ByteBudget* budget,
                           StreamEvents* streams, SessionEvents* events)
    : head_bytes_max_(limits.header_list_bytes_max * WireLimits::kHeadExcess),
      head_ns_(limits.head_ns),
      streams_(streams),
      events_(events),
      memory_(budget) {
  nghttp2_option* option = nullptr;
  nghttp2_option_new(&option);
  // Closed streams are of use to priorities only, which are not served.
  nghttp2_option_set_no_closed_streams(option, 1);
  // Twice the limit on control frames, so that our own limit ends the connection first, and says
  // why.
  nghttp2_option_set_max_outbound_ack(option, 2 * static_cast<size_t>(limits.control_frames_max));
  nghttp2_option_set_stream_reset_rate_limit(option, limits.reset_burst, limits.resets_per_second);
  nghttp2_session_server_new3(&session_, Callbacks(), this, option, memory_.callbacks());
  nghttp2_option_del(option);
  if (session_ == nullptr) return;
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.streams_per_connection},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindowBytes},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kFrameBytesMax},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<uint32_t>(limits.header_list_bytes_max)},
  };
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindowBytes);
}

Http2Session::~Http2Session() { nghttp2_session_del(session_); }

// --- What comes ---

bool Http2Session::Feed(std::string_view bytes) {
  if (first_bytes_.size() < kHttp2Preface.size()) {
    const std::string_view part = bytes.substr(0, kHttp2Preface.size() - first_bytes_.size());
    first_bytes_ += part;
    is_foreign_ = first_bytes_ != kHttp2Preface.substr(0, first_bytes_.size());
    if (is_foreign_) return false;
    if (first_bytes_.size() == kHttp2Preface.size()) events_->OnSpoken();
    bytes.remove_prefix(part.size());
    if (!FeedSession(part)) return false;
  }
  return frames_.Filter(
      bytes, [this](std::string_view part) { return FeedSession(part); },
      [this](unsigned type, int32_t stream) { TakeStrayFrame(type, stream); });
}

void Http2Session::TakeStrayFrame(unsigned type, int32_t stream) {
  if (type != NGHTTP2_DATA) {
    events_->OnForcedReset();
  } else if (nghttp2_session_find_stream(session_, stream) == nullptr) {
    events_->OnControlFrame();
  }
}

bool Http2Session::FeedSession(std::string_view bytes) {
  if (bytes.empty()) return true;
  return nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()),
                                  bytes.size()) >= 0;
}

// Frames that nghttp2 ignores, because their stream is closed, are counted too.
int Http2Session::OnBeginFrame(nghttp2_session* session, const nghttp2_frame_hd* header,
                               void* self) {
  if (!MayCarryPayload(session, *header)) {
    static_cast<Http2Session*>(self)->events_->OnControlFrame();
  }
  return 0;
}

int Http2Session::OnBeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  auto* const session = static_cast<Http2Session*>(self);
  session->head_bytes_ = 0;
  if (!IsOfRequest(*frame)) return 0;
  session->events_->OnPayload();
  session->streams_->OnBegin(frame->hd.stream_id);
  return 0;
}

int Http2Session::OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                           size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                           void* self) {
  auto* const session = static_cast<Http2Session*>(self);
  if (!session->TakeField(name_size + value_size)) return NGHTTP2_ERR_CALLBACK_FAILURE;
  // Trailers are ignored.
  if (!IsOfRequest(*frame)) return 0;
  const std::string_view key = Text(name, name_size);
  const std::string_view text = Text(value, value_size);
  if (key == "expect" && base::EqualWithoutCase(text, "100-continue") && !IsLast(*frame)) {
    session->expecting_stream_ = frame->hd.stream_id;
  }
  session->streams_->OnHeader(frame->hd.stream_id, key, text);
  return 0;
}

// Counts a decoded field of a head. Returns false if the connection must end at once.
bool Http2Session::TakeField(size_t bytes) {
  constexpr size_t kFieldBytes = 32;
  head_bytes_ += bytes + kFieldBytes;
  if (head_bytes_ <= head_bytes_max_) return true;
  events_->OnExcess({ReachedLimit::kHeaderBytes, "headers_too_long"});
  return false;
}

void Http2Session::CheckTimes(int64_t now_ns) {
  if (!frames_.is_in_head()) return;
  if (std::exchange(seen_head_, frames_.head_count()) != frames_.head_count()) {
    head_seen_ns_ = now_ns;
  } else if (now_ns - head_seen_ns_ >= head_ns_) {
    events_->OnExcess({ReachedLimit::kPause, "headers_too_slow"});
  }
}

int Http2Session::OnDataChunk(nghttp2_session*, uint8_t, int32_t stream, const uint8_t* data,
                              size_t size, void* self) {
  static_cast<Http2Session*>(self)->streams_->OnData(stream, Text(data, size));
  return 0;
}

int Http2Session::OnFrameReceived(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  StreamEvents* const streams = static_cast<Http2Session*>(self)->streams_;
  SessionEvents* const events = static_cast<Http2Session*>(self)->events_;
  switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
      if (IsOfRequest(*frame)) streams->OnHeadersEnd(frame->hd.stream_id);
      static_cast<Http2Session*>(self)->ContinueIfExpected(*frame);
      if (IsLast(*frame)) {
        events->OnPayload();
        streams->OnRequestEnd(frame->hd.stream_id);
      }
      break;
    case NGHTTP2_DATA:
      if (frame->hd.length > 0 || IsLast(*frame)) events->OnPayload();
      if (IsLast(*frame)) streams->OnRequestEnd(frame->hd.stream_id);
      break;
    case NGHTTP2_PING:
      static_cast<Http2Session*>(self)->TakePing(frame->ping);
      break;
    case NGHTTP2_SETTINGS:
      if (IsAck(frame->hd)) events->OnAcknowledged();
      break;
    default:
      break;
  }
  return 0;
}

// A client that is answered already need not send its body.
void Http2Session::ContinueIfExpected(const nghttp2_frame& headers) {
  if (std::exchange(expecting_stream_, 0) != headers.hd.stream_id) return;
  HeaderList list;
  list.AddLiteral(":status", "100");
  const Http2Headers fields(list);
  nghttp2_submit_headers(session_, NGHTTP2_FLAG_NONE, headers.hd.stream_id, nullptr, fields.data(),
                         fields.size(), nullptr);
}

void Http2Session::TakePing(const nghttp2_ping& ping) {
  if (!IsAck(ping.hd)) {
    events_->OnPing();
  } else if (std::memcmp(ping.opaque_data, kGoawayPing.data(), kGoawayPing.size()) == 0) {
    events_->OnGoawaySeen();
  }
}

int Http2Session::OnStreamClosed(nghttp2_session*, int32_t stream, uint32_t, void* self) {
  static_cast<Http2Session*>(self)->streams_->OnStreamClosed(stream);
  return 0;
}

// --- What goes ---

Session::Output Http2Session::Produce(OutputQueue* output) {
  if (is_foreign_) {
    if (!first_bytes_.empty() && IsHttp1(first_bytes_)) output->Append(kHttp1Answer);
    first_bytes_.clear();
  }
  if (first_bytes_.size() < kHttp2Preface.size()) return Output::kNothing;
  const uint8_t* data = nullptr;
  output_ = output;
  const ssize_t size = nghttp2_session_mem_send(session_, &data);
  output_ = nullptr;
  if (size < 0) return Output::kBroken;
  if (size == 0) return Output::kNothing;
  output->Append(Text(data, static_cast<size_t>(size)));
  return Output::kMore;
}

bool Http2Session::is_over() const {
  return is_foreign_ ||
         (nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0);
}

void Http2Session::Submit(int32_t stream, const HeaderList& headers) {
  if (stream == expecting_stream_) expecting_stream_ = 0;
  const Http2Headers fields(headers);
  nghttp2_submit_response(session_, stream, fields.data(), fields.size(), nullptr);
}

void Http2Session::Submit(int32_t stream, const HeaderList& headers, AnswerBody* body) {
  if (stream == expecting_stream_) expecting_stream_ = 0;
  const Http2Headers fields(headers);
  nghttp2_data_provider provider{};
  provider.source.ptr = body;
  provider.read_callback = OnReadData;
  nghttp2_submit_response(session_, stream, fields.data(), fields.size(), &provider);
}

void Http2Session::Resume(int32_t stream) { nghttp2_session_resume_data(session_, stream); }

void Http2Session::Reset(int32_t stream, ResetReason reason) {
  if (stream == expecting_stream_) expecting_stream_ = 0;
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream, ErrorCodeOf(reason));
}

ssize_t Http2Session::OnReadData(nghttp2_session* session, int32_t stream, uint8_t*, size_t size,
                                 uint32_t* flags, nghttp2_data_source* source, void*) {
  const auto* const body = static_cast<const AnswerBody*>(source->ptr);
  bool is_last = false;
  const size_t offered = body->Offer(size, &is_last);
  if (offered == 0 && !is_last) return NGHTTP2_ERR_DEFERRED;
  if (offered > 0) *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  if (!is_last) return static_cast<ssize_t>(offered);
  *flags |= NGHTTP2_DATA_FLAG_EOF;
  const HeaderList trailers = body->Trailers();
  if (trailers.size() > 0) {
    *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    const Http2Headers fields(trailers);
    nghttp2_submit_trailer(session, stream, fields.data(), fields.size());
  }
  return static_cast<ssize_t>(offered);
}

int Http2Session::OnSendData(nghttp2_session*, nghttp2_frame* frame, const uint8_t* header,
                             size_t size, nghttp2_data_source* source, void* self) {
  constexpr size_t kFrameHeaderBytes = 9;
  auto* const session = static_cast<Http2Session*>(self);
  session->output_->Append(Text(header, kFrameHeaderBytes));
  static_cast<AnswerBody*>(source->ptr)->Take(size, session->output_);
  session->events_->OnPayload();
  session->streams_->OnDataSent(frame->hd.stream_id);
  return 0;
}

int Http2Session::OnFrameSent(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
  SessionEvents* const events = static_cast<Http2Session*>(self)->events_;
  switch (frame->hd.type) {
    case NGHTTP2_GOAWAY:
      // nghttp2 ends the connection of a client that resets too many streams, with this code.
      if (frame->goaway.error_code == NGHTTP2_INTERNAL_ERROR) events->OnTooManyResets();
      // The client has seen the notice when it answers. Submitted together, nghttp2 would send the
      // PING first.
      if (frame->goaway.last_stream_id == INT32_MAX) {
        nghttp2_submit_ping(session, NGHTTP2_FLAG_NONE, kGoawayPing.data());
      }
      break;
    case NGHTTP2_RST_STREAM:
      if (IsForcedReset(frame->rst_stream.error_code)) events->OnForcedReset();
      break;
    case NGHTTP2_HEADERS:
    case NGHTTP2_DATA:
      // A client that still sends when it has its answer is told to stop (RFC 9113, 8.1).
      if (IsLast(*frame) &&
          nghttp2_session_get_stream_remote_close(session, frame->hd.stream_id) == 0) {
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                  NGHTTP2_NO_ERROR);
      }
      break;
    default:
      break;
  }
  return 0;
}

void Http2Session::SubmitPing() {
  nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, kAlivePing.data());
}

// RFC 9113, 6.8. A PING follows once the notice is out (OnFrameSent).
void Http2Session::SubmitGoaway() { nghttp2_submit_shutdown_notice(session_); }

void Http2Session::SubmitLastGoaway() { SubmitGoawayOf(NGHTTP2_NO_ERROR, ""); }

void Http2Session::SubmitComplaint(std::string_view reason) {
  SubmitGoawayOf(NGHTTP2_ENHANCE_YOUR_CALM, reason);
}

void Http2Session::SubmitGoawayOf(uint32_t error_code, std::string_view reason) {
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE,
                        nghttp2_session_get_last_proc_stream_id(session_), error_code,
                        reinterpret_cast<const uint8_t*>(reason.data()), reason.size());
}

}  // namespace millpond::rpc
