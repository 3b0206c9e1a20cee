#include "native/rpc/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "native/base/clock.h"
#include "native/rpc/grpc_text.h"
#include "native/rpc/held_answers.h"

namespace millpond::rpc {
namespace {

// For large tensors: a client may send so much of one message, and of all on a connection, before
// this server has read any of it. It is read as it comes, so this is what a round trip carries.
constexpr int32_t kStreamWindowBytes = 4 << 20;
constexpr int32_t kConnectionWindowBytes = 16 << 20;
// Larger frames than HTTP/2's least: fewer headers between the parts of a tensor.
constexpr uint32_t kFrameBytesMax = 65'536;

// The reads of one turn, before other connections have theirs.
constexpr int kReadsPerTurn = 16;

// Bytes wait in nghttp2, which knows the client's windows and its streams, and not here.
constexpr size_t kOutputBytesMax = 262'144;
// So much of it is in a connection's first charge. Beyond it, output is charged for all that may
// be.
constexpr size_t kFreeOutputBytes = 8'192;

// A thread that says goodbye waits so long for the client to have seen it.
constexpr int64_t kGoodbyeNs = 1'000'000'000;

// A client that took the settings has finished connecting after this time, however busy it is.
constexpr int64_t kSettleNs = 200'000'000;
// The time after which gRPC's client gives up connecting.
constexpr int64_t kConnectNsMax = 20'000'000'000;

// The opaque data of PINGs: which of ours an answer is for.
constexpr std::array<uint8_t, 8> kGoodbyePing = {'g', 'o', 'o', 'd', 'b', 'y', 'e', '\0'};
constexpr std::array<uint8_t, 8> kAlivePing = {'a', 'l', 'i', 'v', 'e', '\0', '\0', '\0'};

std::string_view Text(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// The text must live until nghttp2 has packed the headers: it copies what is no literal.
nghttp2_nv Header(std::string_view name, std::string_view value, bool is_literal) {
  const uint8_t flags = is_literal ? NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE
                                   : NGHTTP2_NV_FLAG_NO_COPY_NAME;
  return {reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
          flags};
}
nghttp2_nv Literal(std::string_view name, std::string_view value) {
  return Header(name, value, true);
}

// The headers of the end of a call. Borrows from itself.
class EndHeaders {
 public:
  EndHeaders(const Call::Outgoing& out, bool is_all) {
    if (is_all) {
      Add(":status", "200");
      Add("content-type", "application/grpc");
    }
    const base::Status& status = *out.end;
    code_ = std::to_string(static_cast<int>(status.code()));
    Add("grpc-status", code_);
    if (!status.ok()) {
      message_ = PercentEncode(base::WithShortMessage(status).message());
      Add("grpc-message", message_);
    }
    if (out.pushback_ms >= 0) {
      pushback_ = std::to_string(out.pushback_ms);
      Add("grpc-retry-pushback-ms", pushback_);
    }
    if (out.names_encodings) Add("grpc-accept-encoding", kAcceptedEncodings);
  }

  const nghttp2_nv* data() const { return headers_.data(); }
  size_t size() const { return size_; }

 private:
  void Add(std::string_view name, std::string_view value) {
    headers_[size_++] = Header(name, value, false);
  }

  std::string code_;
  std::string message_;
  std::string pushback_;
  std::array<nghttp2_nv, 6> headers_;
  size_t size_ = 0;
};

// The first bytes of a client that speaks something else.
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

}  // namespace

// --- Its life ---

Connection::Connection(std::shared_ptr<Wire> wire, std::unique_ptr<Transport> transport,
                       std::string peer, std::string address, int64_t now_ns,
                       base::ByteBudget::Share charge)
    : wire_(std::move(wire)),
      charge_(std::move(charge)),
      transport_(std::move(transport)),
      peer_(std::move(peer)),
      address_(std::move(address)),
      session_memory_(wire_->calls.budget.get()),
      output_charge_(wire_->calls.budget.get(), base::ByteBudget::Use::kConnection),
      begin_ns_(now_ns),
      now_ns_(now_ns),
      read_ns_(now_ns),
      write_ns_(now_ns),
      call_end_ns_(now_ns),
      control_frames_(wire_->limits.control_frames_max, WireLimits::kControlFramesPerSecond),
      forced_resets_(static_cast<double>(wire_->limits.reset_burst),
                     static_cast<double>(wire_->limits.resets_per_second)) {
  Open();
}

Connection::~Connection() { nghttp2_session_del(session_); }

nghttp2_session_callbacks* Connection::Callbacks() {
  static nghttp2_session_callbacks* const callbacks = [] {
    nghttp2_session_callbacks* made = nullptr;
    nghttp2_session_callbacks_new(&made);
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

void Connection::Open() {
  nghttp2_option* option = nullptr;
  nghttp2_option_new(&option);
  // Closed streams are of use to priorities only, which are not served.
  nghttp2_option_set_no_closed_streams(option, 1);
  // More than our own limit, which tells the client why (CountControlFrame).
  nghttp2_option_set_max_outbound_ack(option,
                                      2 * static_cast<size_t>(wire_->limits.control_frames_max));
  nghttp2_option_set_stream_reset_rate_limit(option, wire_->limits.reset_burst,
                                             wire_->limits.resets_per_second);
  nghttp2_session_server_new3(&session_, Callbacks(), this, option, session_memory_.callbacks());
  nghttp2_option_del(option);
  // No memory is left for it.
  if (session_ == nullptr) return CloseLocked();
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, wire_->limits.streams_per_connection},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindowBytes},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kFrameBytesMax},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE,
       static_cast<uint32_t>(wire_->limits.header_list_bytes_max)},
  };
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindowBytes);
}

void Connection::Proceed(ReceiveSpace* space, Calls* to_run) {
  int turn = turn_.load();
  while (true) {
    if (turn == kFree) {
      if (turn_.compare_exchange_weak(turn, kTaken)) break;
    } else if (turn_.compare_exchange_weak(turn, kNoted)) {
      return;
    }
  }
  do {
    turn_.store(kTaken);
    bool goes_on = true;
    for (int i = 0; goes_on && i < kReadsPerTurn; ++i) {
      Calls due;
      Calls closed;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        now_ns_ = base::MonotonicNs();
        // A client that does not read what it is sent is not read either: what it sends may cause
        // more to be sent. The kernel tells when it reads again.
        if (!MayOutput()) Flush();
        goes_on = MayOutput() && ReadSome(space);
        // Also within a long message, whose client waits for the window to open.
        if (!goes_on || i + 1 == kReadsPerTurn) Flush();
        due.swap(due_);
        closed.swap(closed_);
      }
      for (std::shared_ptr<Call>& call : due) {
        if (call->Arrive()) to_run->push_back(std::move(call));
      }
    }
    has_more_.store(goes_on, std::memory_order_release);
    turn = kTaken;
  } while (!turn_.compare_exchange_strong(turn, kFree));
}

bool Connection::ReadSome(ReceiveSpace* space) {
  if (is_closed()) return false;
  size_t room = 0;
  char* const to = space->Reserve(&room);
  const Transport::Result read = transport_->Read(to, room);
  if (read.state == Transport::State::kClosed) CloseLocked();
  if (read.state != Transport::State::kOk) return false;
  read_ns_ = now_ns_;
  space_ = space;
  const bool is_fed = is_ending_ || Feed({to, read.bytes});
  space->Use(read.bytes);
  space_ = nullptr;
  if (!is_fed) {
    is_ending_ = true;
    Flush();
    return false;
  }
  // A full buffer means that there may be more; TLS may hold bytes that the socket does not show.
  return read.bytes == room || transport_->is_tls() || has_hung_up_.load(std::memory_order_acquire);
}

bool Connection::Feed(std::string_view bytes) {
  if (!has_preface_) {
    constexpr std::string_view kPreface = NGHTTP2_CLIENT_MAGIC;
    const std::string_view part = bytes.substr(0, kPreface.size() - first_bytes_.size());
    first_bytes_ += part;
    if (first_bytes_ != kPreface.substr(0, first_bytes_.size())) {
      AnswerForeigner(first_bytes_);
      return false;
    }
    has_preface_ = first_bytes_.size() == kPreface.size();
    bytes.remove_prefix(part.size());
    if (!FeedSession(part)) return false;
  }
  return frames_.Filter(bytes, [this](std::string_view part) { return FeedSession(part); });
}

bool Connection::FeedSession(std::string_view bytes) {
  if (bytes.empty()) return true;
  return nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()),
                                  bytes.size()) >= 0;
}

void Connection::AnswerForeigner(std::string_view bytes) {
  if (IsHttp1(bytes)) output_.Append(kHttp1Answer);
  // A client that does not speak HTTP/2 gets no preface of it.
  (void)nghttp2_session_terminate_session(session_, NGHTTP2_PROTOCOL_ERROR);
  nghttp2_session_del(session_);
  session_ = nullptr;
  (void)output_.WriteTo(transport_.get());
  CloseLocked();
}

void Connection::Flush() {
  WriteOutput();
  CountUnread();
}

// False while the client has too much to read, and while no memory is left for more.
bool Connection::MayOutput() {
  if (output_.size() >= kOutputBytesMax) return false;
  const bool is_free = output_.copied_bytes() < kFreeOutputBytes;
  return output_charge_.Resize(is_free ? 0 : static_cast<int64_t>(kOutputBytesMax));
}

void Connection::WriteOutput() {
  if (is_closed() || session_ == nullptr) return;
  // A client that speaks HTTP/1 would read the first frames as its answer, so the client begins.
  // RFC 9113, 3.4, makes each client send its preface without waiting for the server's.
  if (!has_preface_) return;
  while (true) {
    while (MayOutput()) {
      const uint8_t* data = nullptr;
      const ssize_t size = nghttp2_session_mem_send(session_, &data);
      if (size < 0) return CloseLocked();
      if (size == 0) break;
      output_.Append(Text(data, static_cast<size_t>(size)));
    }
    if (output_.empty()) break;
    const size_t before = output_.size();
    const Transport::State state = output_.WriteTo(transport_.get());
    if (output_.size() < before) write_ns_ = now_ns_;
    if (state == Transport::State::kClosed) return CloseLocked();
    if (state == Transport::State::kWouldBlock) return;
  }
  const bool is_over =
      is_ending_ || (!nghttp2_session_want_read(session_) && !nghttp2_session_want_write(session_));
  if (is_over && ended_writes_ns_ == 0) {
    // The client reads what is on its way, and closes; CheckTimes closes if it does not.
    ended_writes_ns_ = now_ns_;
    is_ending_ = true;
    transport_->EndWrites();
    if (goodbye_ns_ == 0) goodbye_ns_ = now_ns_;
  }
}

void Connection::Close() {
  Calls closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  CloseLocked();
  closed.swap(closed_);
}

void Connection::CloseLocked() {
  if (is_closed()) return;
  for (auto& [stream_id, call] : calls_) {
    call->Close(now_ns_);
    closed_.push_back(std::move(call));
  }
  calls_.clear();
  // The descriptor is closed with the last call that holds the connection; the client learns now.
  (void)shutdown(transport_->fd(), SHUT_RDWR);
  is_closed_.store(true, std::memory_order_release);
}

bool Connection::IsReceiving(int64_t since_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(calls_.begin(), calls_.end(),
                     [&](const auto& item) { return item.second->is_arriving(since_ns); });
}

std::vector<std::string> Connection::ClientNames() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return transport_->ClientNames();
}

// --- What nghttp2 brings ---

int Connection::OnBeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  const bool is_request =
      frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST;
  return is_request ? static_cast<Connection*>(self)->BeginCall(frame->hd.stream_id) : 0;
}

int Connection::BeginCall(int32_t stream_id) {
  CountData();
  const int64_t bytes = Call::BeginBytes();
  base::ByteBudget::Share charge(wire_->calls.budget.get(), base::ByteBudget::Use::kCall);
  if (!MayBeginCall(bytes) || !charge.Resize(bytes)) {
    wire_->limit_counts.Add(ReachedLimit::kArrivingBytes);
    nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream_id, NGHTTP2_REFUSED_STREAM);
    return 0;
  }
  wire_->call_count.fetch_add(1);
  auto call =
      std::make_shared<Call>(shared_from_this(), &wire_->calls, stream_id, std::move(charge));
  CountOpen(call.get(), bytes);
  nghttp2_session_set_stream_user_data(session_, stream_id, call.get());
  calls_.emplace(stream_id, std::move(call));
  return 0;
}

// Beyond the limit each connection has its share still: a flood on one connection refuses no stream
// of another. So all connections together take at most twice the limit.
bool Connection::MayBeginCall(int64_t bytes) const {
  const int64_t bytes_max = wire_->limits.open_call_bytes_max;
  const int64_t share = bytes_max / std::max<int64_t>(wire_->connection_count.load(), 1);
  return wire_->open_call_bytes.load(std::memory_order_relaxed) + bytes <= bytes_max ||
         open_call_bytes_.load(std::memory_order_relaxed) + bytes <= share;
}

void Connection::CountOpen(Call* call, int64_t bytes) {
  AddOpenBytes(bytes - std::exchange(call->counted_open_bytes, bytes));
}

// A call with an answer that its client does not read counts again. Most are gone by now.
void Connection::CountUnread() {
  for (const int32_t stream_id : answered_) {
    const auto call = calls_.find(stream_id);
    if (call == calls_.end() || call->second->counted_open_bytes > 0) continue;
    CountOpen(call->second.get(), Call::BeginBytes());
  }
  answered_.clear();
}

void Connection::AddOpenBytes(int64_t bytes) {
  if (bytes == 0) return;
  wire_->open_call_bytes.fetch_add(bytes, std::memory_order_relaxed);
  open_call_bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

Call* Connection::FindCall(int32_t stream_id) {
  return static_cast<Call*>(nghttp2_session_get_stream_user_data(session_, stream_id));
}

int Connection::OnHeader(nghttp2_session* session, const nghttp2_frame* frame, const uint8_t* name,
                         size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                         void* self) {
  auto* const connection = static_cast<Connection*>(self);
  Call* const call = connection->FindCall(frame->hd.stream_id);
  // A stream that was refused, or the trailers of a client, which gRPC does not have.
  if (call == nullptr || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  const bool is_taken = call->AddHeader(Text(name, name_size), Text(value, value_size));
  if (is_taken && call->header_bytes() <= connection->wire_->limits.header_list_bytes_max) return 0;
  connection->wire_->limit_counts.Add(is_taken ? ReachedLimit::kHeaderBytes
                                               : ReachedLimit::kArrivingBytes);
  nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                            is_taken ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_REFUSED_STREAM);
  nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, nullptr);
  return 0;
}

int Connection::OnFrameReceived(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  auto* const connection = static_cast<Connection*>(self);
  const bool is_last = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  Call* const call = connection->FindCall(frame->hd.stream_id);
  switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
      if (call == nullptr) break;
      if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        connection->BeginRequest(call, is_last);
      } else if (is_last) {
        connection->EndRequest(call);
      }
      break;
    case NGHTTP2_DATA:
      if (frame->hd.length > 0) {
        connection->CountData();
      } else if (!is_last) {
        return connection->CountControlFrame();
      }
      if (is_last && call != nullptr) connection->EndRequest(call);
      break;
    case NGHTTP2_PING:
      return connection->TakePing(frame->ping);
    case NGHTTP2_SETTINGS:
      if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0 && connection->acknowledged_ns_ == 0) {
        connection->acknowledged_ns_ = connection->now_ns_;
      }
      return connection->CountControlFrame();
    default:
      return connection->CountControlFrame();
  }
  return 0;
}

int Connection::TakePing(const nghttp2_ping& ping) {
  if ((ping.hd.flags & NGHTTP2_FLAG_ACK) == 0) {
    // A client that measures its bandwidth pings while data flows.
    const bool is_early = !std::exchange(has_data_since_ping_, false) && ping_received_ns_ != 0 &&
                          now_ns_ - ping_received_ns_ < wire_->limits.ping_interval_ns;
    early_ping_count_ = is_early ? early_ping_count_ + 1 : 0;
    ping_received_ns_ = now_ns_;
    if (early_ping_count_ > kEarlyPingsMax) CalmDown(ReachedLimit::kPings, "too_many_pings");
    return CountControlFrame();
  }
  if (std::memcmp(ping.opaque_data, kGoodbyePing.data(), kGoodbyePing.size()) == 0) {
    SubmitLastGoaway();
  } else {
    ping_sent_ns_ = 0;
  }
  return 0;
}

int Connection::CountControlFrame() {
  if (!control_frames_.Take(now_ns_)) {
    CalmDown(ReachedLimit::kControlFrames, "too_many_control_frames");
  }
  return 0;
}

void Connection::CalmDown(ReachedLimit limit, const char* reason) {
  if (std::exchange(is_gone_, true)) return;
  wire_->limit_counts.Add(limit);
  nghttp2_submit_goaway(
      session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
      NGHTTP2_ENHANCE_YOUR_CALM, reinterpret_cast<const uint8_t*>(reason), std::strlen(reason));
  is_ending_ = true;
}

void Connection::BeginRequest(Call* call, bool is_last) {
  CountOpen(call, std::max(call->charged_bytes(), Call::BeginBytes()));
  const int http_status = call->HttpStatus();
  const auto method = wire_->methods.find(call->header_path());
  base::Status begun;
  if (http_status != kHttpOk) {
    call->RefuseArriving(base::Code::kUnimplemented);
    SubmitHttpStatus(call, http_status);
  } else if (method == wire_->methods.end()) {
    const std::string path = call->header_path();
    RefuseCall(call, {base::Code::kUnimplemented, "this server has no method " + path});
  } else if (begun = call->Begin(&method->second, now_ns_); !begun.ok()) {
    RefuseCall(call, begun);
  }
  if (is_last) EndRequest(call);
}

int Connection::OnDataChunk(nghttp2_session*, uint8_t, int32_t stream_id, const uint8_t* data,
                            size_t size, void* self) {
  auto* const connection = static_cast<Connection*>(self);
  Call* const call = connection->FindCall(stream_id);
  if (call == nullptr || !call->is_receiving()) return 0;
  const base::Status taken =
      call->AddData(Text(data, size), connection->space_, connection->now_ns_);
  if (!taken.ok()) {
    connection->RefuseCall(call, taken);
  } else if (call->is_due()) {
    connection->AddDue(call);
  }
  return 0;
}

void Connection::EndRequest(Call* call) {
  if (!call->is_receiving()) return call->MarkRequestEnded();
  const base::Status ended = call->EndRequest();
  // A call without a place in the admission counts here until its end.
  if (call->is_limited()) CountOpen(call, 0);
  if (ended.ok()) {
    call->has_arrived = true;
    wire_->arrived_call_count.fetch_add(1);
    return AddDue(call);
  }
  RefuseCall(call, ended);
}

void Connection::AddDue(Call* call) {
  if (due_.empty() || due_.back().get() != call) due_.push_back(call->shared_from_this());
}

int Connection::OnStreamClosed(nghttp2_session*, int32_t stream_id, uint32_t, void* self) {
  auto* const connection = static_cast<Connection*>(self);
  const auto found = connection->calls_.find(stream_id);
  if (found == connection->calls_.end()) return 0;
  found->second->Close(connection->now_ns_);
  connection->closed_.push_back(std::move(found->second));
  connection->calls_.erase(found);
  if (connection->calls_.empty()) connection->call_end_ns_ = connection->now_ns_;
  return 0;
}

void Connection::ForgetCall(const Call& call) {
  AddOpenBytes(-call.counted_open_bytes);
  if (call.has_arrived) wire_->arrived_call_count.fetch_sub(1);
  wire_->call_count.fetch_sub(1);
}

// --- Answers ---

void Connection::Answer(Call* call, std::shared_ptr<OutMessage> message, Encoding encoding,
                        const base::Status& status) {
  Calls closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (call->is_over()) return;
  now_ns_ = base::MonotonicNs();
  call->out.encoding = encoding;
  if (message != nullptr) call->out.messages.push_back(std::move(message));
  SubmitEnd(call, status);
  if (HeldAnswers::Hold(shared_from_this())) return;
  Flush();
  closed.swap(closed_);
}

bool Connection::WaitsForReader(Call* call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  call->out.resumes_reading = !call->out.messages.empty();
  return call->out.resumes_reading;
}

void Connection::WriteAnswers() {
  Calls closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  now_ns_ = base::MonotonicNs();
  Flush();
  closed.swap(closed_);
}

bool Connection::Send(Call* call, std::shared_ptr<OutMessage> message, size_t messages_max) {
  Calls closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (call->is_over()) return true;
  if (call->out.messages.size() >= messages_max) return false;
  now_ns_ = base::MonotonicNs();
  if (call->out.messages.empty()) call->out.progress_ns = now_ns_;
  call->out.messages.push_back(std::move(message));
  SubmitData(call);
  Flush();
  closed.swap(closed_);
  return true;
}

void Connection::RefuseCall(Call* call, const base::Status& status) {
  call->RefuseArriving(status.code());
  EndCall(call, status);
}

// Ends a call whose request is still arriving, or is refused as it is.
void Connection::EndCall(Call* call, const base::Status& status) {
  if (!call->is_over()) SubmitEnd(call, status);
}

void Connection::SubmitEnd(Call* call, const base::Status& status) {
  call->out.end = status;
  call->out.progress_ns = now_ns_;
  call->MarkAnswered();
  answered_.push_back(call->stream_id());
  if (!call->out.messages.empty() || call->out.is_submitted) return SubmitData(call);
  const EndHeaders headers(call->out, true);
  nghttp2_submit_response(session_, call->stream_id(), headers.data(), headers.size(), nullptr);
}

void Connection::SubmitData(Call* call) {
  if (call->out.is_submitted) {
    if (std::exchange(call->out.is_deferred, false)) {
      nghttp2_session_resume_data(session_, call->stream_id());
    }
    return;
  }
  call->out.is_submitted = true;
  const nghttp2_nv headers[] = {
      Literal(":status", "200"),
      Literal("content-type", "application/grpc"),
      Literal("grpc-accept-encoding", kAcceptedEncodings),
      Literal("grpc-encoding", NameOf(call->out.encoding)),
  };
  const size_t count = std::size(headers) - (call->out.encoding == Encoding::kIdentity ? 1 : 0);
  nghttp2_data_provider provider{};
  provider.source.ptr = call;
  provider.read_callback = OnReadData;
  nghttp2_submit_response(session_, call->stream_id(), headers, count, &provider);
}

void Connection::SubmitHttpStatus(Call* call, int status) {
  call->MarkAnswered();
  const std::string text = std::to_string(status);
  const nghttp2_nv headers[] = {Header(":status", text, false)};
  nghttp2_submit_response(session_, call->stream_id(), headers, 1, nullptr);
}

ssize_t Connection::OnReadData(nghttp2_session* session, int32_t stream_id, uint8_t*, size_t size,
                               uint32_t* flags, nghttp2_data_source* source, void*) {
  Call::Outgoing& out = static_cast<Call*>(source->ptr)->out;
  size_t taken = 0;
  bool is_all = out.messages.empty();
  if (!is_all) {
    const size_t left = out.messages.front()->size() - out.sent_bytes;
    taken = std::min(size, left);
    is_all = taken == left && out.messages.size() == 1;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  }
  if (is_all && out.end) {
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    const EndHeaders headers(out, false);
    nghttp2_submit_trailer(session, stream_id, headers.data(), headers.size());
  } else if (taken == 0) {
    out.is_deferred = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  return static_cast<ssize_t>(taken);
}

int Connection::OnSendData(nghttp2_session*, nghttp2_frame*, const uint8_t* header, size_t size,
                           nghttp2_data_source* source, void* self) {
  constexpr size_t kFrameHeaderBytes = 9;
  // WINDOW_UPDATE frames are how a client takes a large answer.
  static_cast<Connection*>(self)->CountData();
  OutputQueue& output = static_cast<Connection*>(self)->output_;
  Call::Outgoing& out = static_cast<Call*>(source->ptr)->out;
  out.progress_ns = static_cast<Connection*>(self)->now_ns_;
  output.Append(Text(header, kFrameHeaderBytes));
  if (size == 0) return 0;
  const std::shared_ptr<OutMessage>& message = out.messages.front();
  if (out.sent_bytes < OutMessage::kPrefixBytes) {
    const std::string_view part = message->prefix().substr(out.sent_bytes, size);
    output.Append(part);
    out.sent_bytes += part.size();
    size -= part.size();
  }
  // The client's window may end within the prefix.
  if (size > 0) {
    output.Append(message, message->body().substr(out.sent_bytes - OutMessage::kPrefixBytes, size));
    out.sent_bytes += size;
  }
  if (out.sent_bytes == message->size()) {
    out.messages.pop_front();
    out.sent_bytes = 0;
  }
  if (out.messages.empty() && std::exchange(out.resumes_reading, false)) {
    static_cast<Connection*>(self)->AddDue(static_cast<Call*>(source->ptr));
  }
  return 0;
}

// A client that still sends when it has its answer is told to stop (RFC 9113, 8.1).
int Connection::OnFrameSent(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
  // nghttp2 ends the connection of a client that resets too many streams, with this code.
  if (frame->hd.type == NGHTTP2_GOAWAY && frame->goaway.error_code == NGHTTP2_INTERNAL_ERROR) {
    static_cast<Connection*>(self)->wire_->limit_counts.Add(ReachedLimit::kResets);
  }
  if (frame->hd.type == NGHTTP2_RST_STREAM) {
    static_cast<Connection*>(self)->CountReset(frame->rst_stream.error_code);
  }
  if (frame->hd.type != NGHTTP2_HEADERS || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) {
    return 0;
  }
  const Call* const call = static_cast<Connection*>(self)->FindCall(frame->hd.stream_id);
  if (call != nullptr && !call->has_ended_request()) {
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
  }
  return 0;
}

// A client can make the server reset a stream with a frame that is wrong: its request runs in vain,
// and a limit on the client's own resets does not see it (CVE-2025-8671).
void Connection::CountReset(uint32_t error_code) {
  switch (error_code) {
    case NGHTTP2_NO_ERROR:
    case NGHTTP2_REFUSED_STREAM:
    case NGHTTP2_CANCEL:
    case NGHTTP2_ENHANCE_YOUR_CALM:
      return;
    default:
      if (!forced_resets_.Take(now_ns_)) CalmDown(ReachedLimit::kResets, "too_many_resets");
  }
}

// --- Time ---

bool Connection::IsSettled(int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return IsSettledAt(now_ns);
}

bool Connection::IsSettledAt(int64_t now_ns) const {
  if (is_closed() || session_ == nullptr) return true;
  // A client that has begun a call has finished connecting.
  if (nghttp2_session_get_last_proc_stream_id(session_) != 0) return true;
  if (now_ns - begin_ns_ >= kConnectNsMax) return true;
  return acknowledged_ns_ != 0 && now_ns - acknowledged_ns_ >= kSettleNs;
}

void Connection::SayGoodbye(int64_t now_ns) {
  Calls closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed() || session_ == nullptr || goodbye_ns_ != 0 || !IsSettledAt(now_ns)) return;
  if (!has_preface_) return CloseLocked();
  now_ns_ = now_ns;
  goodbye_ns_ = now_ns;
  nghttp2_submit_shutdown_notice(session_);
  nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, kGoodbyePing.data());
  Flush();
  closed.swap(closed_);
}

void Connection::RefuseNewStreams(int64_t now_ns) {
  Calls closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed() || session_ == nullptr) return;
  now_ns_ = now_ns;
  if (has_preface_ && IsSettledAt(now_ns)) {
    SubmitLastGoaway();
    Flush();
  } else {
    CloseLocked();
  }
  closed.swap(closed_);
}

void Connection::SubmitLastGoaway() {
  if (std::exchange(is_gone_, true)) return;
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE,
                        nghttp2_session_get_last_proc_stream_id(session_), NGHTTP2_NO_ERROR,
                        nullptr, 0);
}

bool Connection::CheckTimes(int64_t now_ns) {
  bool says_goodbye = false;
  bool has_due = false;
  {
    Calls closed;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed()) return false;
    now_ns_ = now_ns;
    says_goodbye = CheckTimesLocked();
    Flush();
    has_due = !due_.empty();
    closed.swap(closed_);
  }
  if (says_goodbye) SayGoodbye(now_ns);
  return has_due;
}

bool Connection::CheckTimesLocked() {
  const WireLimits& limits = wire_->limits;
  if (limits.handshake_ns > 0 && !has_preface_ && now_ns_ - begin_ns_ > limits.handshake_ns) {
    CloseFor(ReachedLimit::kHandshake);
  }
  if (ended_writes_ns_ != 0 && now_ns_ - ended_writes_ns_ > kGoodbyeNs) CloseLocked();
  const bool is_unread =
      limits.pause_ns > 0 && !output_.empty() && now_ns_ - write_ns_ > limits.pause_ns;
  if (is_unread) CloseFor(ReachedLimit::kPause);
  const bool is_silent = ping_sent_ns_ != 0 && read_ns_ < ping_sent_ns_ &&
                         now_ns_ - ping_sent_ns_ > limits.keepalive_timeout_ns;
  if (is_silent) CloseFor(ReachedLimit::kKeepalive);
  if (is_closed() || session_ == nullptr) return false;
  if (limits.pause_ns > 0) EndPausedCalls();
  // Bytes that came since show that the client lives.
  if (read_ns_ >= ping_sent_ns_) ping_sent_ns_ = 0;
  if (limits.keepalive_ns > 0 && ping_sent_ns_ == 0 && now_ns_ - read_ns_ > limits.keepalive_ns) {
    ping_sent_ns_ = now_ns_;
    nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, kAlivePing.data());
  }
  if (goodbye_ns_ != 0) {
    if (now_ns_ - goodbye_ns_ > kGoodbyeNs) SubmitLastGoaway();
    return false;
  }
  const bool is_idle =
      limits.idle_ns > 0 && calls_.empty() && now_ns_ - call_end_ns_ > limits.idle_ns;
  return is_idle || (limits.age_ns > 0 && now_ns_ - begin_ns_ > limits.age_ns);
}

void Connection::CloseFor(ReachedLimit limit) {
  if (!is_closed()) wire_->limit_counts.Add(limit);
  CloseLocked();
}

// A message that began to arrive and stopped would hold its memory for ever, and so would an answer
// for which the client opens no window.
void Connection::EndPausedCalls() {
  const int64_t pause_ns = wire_->limits.pause_ns;
  std::vector<Call*> paused;
  for (const auto& [stream_id, call] : calls_) {
    if (call->is_paused(now_ns_ - pause_ns)) paused.push_back(call.get());
    if (call->is_left_unread(now_ns_ - pause_ns)) {
      wire_->limit_counts.Add(ReachedLimit::kPause);
      nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream_id, NGHTTP2_CANCEL);
    }
  }
  for (Call* const call : paused) {
    wire_->limit_counts.Add(ReachedLimit::kPause);
    RefuseCall(call, {base::Code::kDeadlineExceeded, "no part of the message came for " +
                                                         std::to_string(pause_ns / 1'000'000'000) +
                                                         " s; send it without a pause"});
  }
}

}  // namespace millpond::rpc
