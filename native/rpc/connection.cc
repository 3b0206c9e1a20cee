#include "native/rpc/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "native/base/clock.h"
#include "native/rpc/http2_session.h"

namespace millpond::rpc {
namespace {

// The reads of one turn, before other connections have theirs.
constexpr int kReadsPerTurn = 16;

// Bytes wait in the session, which knows the client's windows and its streams, and not here.
constexpr size_t kOutputBytesMax = 262'144;
// So much of it is in a connection's first charge. Beyond it, output is charged for all that may
// be.
constexpr size_t kFreeOutputBytes = 8'192;

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
      now_ns_(now_ns),
      life_(wire_->limits, now_ns),
      flood_(wire_->limits),
      session_(std::make_unique<Http2Session>(wire_->limits, wire_->calls.budget.get(),
                                              static_cast<SessionEvents*>(this))),
      output_charge_(wire_->calls.budget.get(), base::ByteBudget::Use::kConnection) {
  if (!session_->is_made()) CloseLocked();
}

Connection::~Connection() = default;

void Connection::Do(const ConnectionStep& step) {
  switch (step.kind) {
    case ConnectionStep::kNothing:
      break;
    case ConnectionStep::kPing:
      session_->SubmitPing();
      life_.NotePing(now_ns_);
      break;
    case ConnectionStep::kGoaway:
      session_->SubmitGoaway();
      life_.NoteGoaway(now_ns_);
      break;
    case ConnectionStep::kLastGoaway:
      session_->SubmitLastGoaway();
      life_.NoteLastGoaway(now_ns_);
      break;
    case ConnectionStep::kClose:
      if (step.limit) wire_->limit_counts.Add(*step.limit);
      CloseLocked();
      break;
  }
}

void Connection::EndFor(const std::optional<FloodLimits::Excess>& excess) {
  if (!excess || !life_.End()) return;
  wire_->limit_counts.Add(excess->limit);
  session_->SubmitComplaint(excess->reason);
}

// A client may also send what looks like it without having been asked.
void Connection::OnGoawaySeen() {
  if (life_.phase() == ConnectionPhase::kGoingAway) Do(life_.RefuseNewCalls(now_ns_));
}

bool Connection::CheckTimes(int64_t now_ns) {
  ClosedStreams closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed()) return false;
  now_ns_ = now_ns;
  while (true) {
    const ConnectionStep step = life_.Next(now_ns);
    if (step.kind == ConnectionStep::kNothing) break;
    Do(step);
  }
  EndPausedStreams();
  Flush();
  closed.swap(closed_);
  return !due_.empty();
}

bool Connection::IsSettled(int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return life_.IsSettled(now_ns);
}

void Connection::AskToGo(int64_t now_ns) {
  ClosedStreams closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  now_ns_ = now_ns;
  Do(life_.AskToGo(now_ns));
  Flush();
  closed.swap(closed_);
}

void Connection::RefuseNewStreams(int64_t now_ns) {
  ClosedStreams closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  now_ns_ = now_ns;
  Do(life_.RefuseNewCalls(now_ns));
  Flush();
  closed.swap(closed_);
}

void Connection::Close() {
  ClosedStreams closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  CloseLocked();
  closed.swap(closed_);
}

void Connection::CloseLocked() {
  if (!life_.Close()) return;
  for (auto& [number, stream] : streams_) {
    if (stream.call != nullptr) stream.call->Close(now_ns_);
  }
  while (!streams_.empty()) closed_.push_back(streams_.extract(streams_.begin()));
  // The descriptor is closed with the last call that holds the connection; the client learns now.
  (void)shutdown(transport_->fd(), SHUT_RDWR);
  is_closed_.store(true, std::memory_order_release);
}

bool Connection::IsReceiving(int64_t since_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& item) {
    return item.second.is_receiving() && item.second.request.is_arriving(since_ns);
  });
}

std::vector<std::string> Connection::ClientNames() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return transport_->ClientNames();
}

// --- A turn ---

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
      ClosedStreams closed;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        now_ns_ = base::MonotonicNs();
        // A client that does not read what it is sent is not read either: what it sends may cause
        // more to be sent. The kernel tells when it reads again.
        if (!ReserveOutput()) Flush();
        goes_on = ReserveOutput() && ReadSome(space);
        // Also within a long message, whose client waits for the window to open.
        if (!goes_on || i + 1 == kReadsPerTurn) Flush();
        due.swap(due_);
        closed.swap(closed_);
      }
      for (std::shared_ptr<Call>& call : due) {
        if (call->takes_many()) {
          HandleMessages(call.get());
        } else if (call->Arrive()) {
          to_run->push_back(std::move(call));
        }
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
  life_.NoteRead(now_ns_);
  space_ = space;
  const bool goes_on = life_.is_ending() || session_->Feed({to, read.bytes});
  space->Use(read.bytes);
  space_ = nullptr;
  if (!goes_on) {
    life_.End();
    Flush();
    // A client that speaks something else is not waited for.
    if (!life_.times().spoken_ns) CloseLocked();
    return false;
  }
  // A full buffer means that there may be more; TLS may hold bytes that the socket does not show.
  return read.bytes == room || transport_->is_tls() || has_hung_up_.load(std::memory_order_acquire);
}

void Connection::Flush() {
  WriteOutput();
  CountUnread();
}

// Charges the output that may follow. Returns false while the client has too much to read, and
// while no memory is left for more.
bool Connection::ReserveOutput() {
  if (output_.size() >= kOutputBytesMax) return false;
  const bool is_free = output_.copied_bytes() < kFreeOutputBytes;
  return output_charge_.Resize(is_free ? 0 : static_cast<int64_t>(kOutputBytesMax));
}

void Connection::WriteOutput() {
  if (is_closed()) return;
  bool is_any = false;
  while (true) {
    while (ReserveOutput()) {
      const Session::Output produced = session_->Produce(&output_);
      if (produced == Session::Output::kBroken) return CloseLocked();
      if (produced == Session::Output::kNothing) break;
    }
    if (output_.empty()) break;
    const size_t before = output_.size();
    const Transport::State state = output_.WriteTo(transport_.get());
    is_any = is_any || output_.size() < before;
    if (state == Transport::State::kClosed) return CloseLocked();
    if (state == Transport::State::kWouldBlock) return life_.NoteWritten(false, is_any, now_ns_);
  }
  life_.NoteWritten(true, is_any, now_ns_);
  const bool is_over = life_.is_ending() || session_->is_over();
  if (is_over && !life_.times().writes_ended_ns) {
    // The client reads what is on its way, and closes; CheckTimes closes if it does not.
    transport_->EndWrites();
    life_.NoteWritesEnded(now_ns_);
  }
}

// --- Requests ---

int64_t Connection::StreamBytes() {
  // Its place in the table takes less.
  constexpr int64_t kPlaceBytes = 128;
  return static_cast<int64_t>(sizeof(Stream) + sizeof(Call)) + kPlaceBytes +
         RequestHeaders::kRoomBytes;
}

Connection::Stream* Connection::Find(int32_t stream) {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : &found->second;
}

// Beyond the limit each connection has its share still: a flood on one connection refuses no stream
// of another. So all connections together take at most twice the limit.
bool Connection::MayBeginStream(int64_t bytes) const {
  const int64_t bytes_max = wire_->limits.open_call_bytes_max;
  const int64_t share = bytes_max / std::max<int64_t>(wire_->connection_count.load(), 1);
  return wire_->call_counts.open_bytes.load(std::memory_order_relaxed) + bytes <= bytes_max ||
         open_bytes_.load(std::memory_order_relaxed) + bytes <= share;
}

void Connection::OnBegin(int32_t number) {
  life_.NoteCallBegun();
  const int64_t bytes = StreamBytes();
  base::ByteBudget::Share charge(wire_->calls.budget.get(), base::ByteBudget::Use::kCall);
  if (!MayBeginStream(bytes) || !charge.Resize(bytes)) {
    wire_->limit_counts.Add(ReachedLimit::kArrivingBytes);
    return session_->Reset(number, ResetReason::kRefused);
  }
  const auto begun =
      streams_.try_emplace(number, std::move(charge), &wire_->call_counts, &open_bytes_);
  begun.first->second.open_bytes.Resize(bytes);
  life_.NoteCalls(true, now_ns_);
}

void Connection::OnHeader(int32_t number, std::string_view name, std::string_view value) {
  Stream* const stream = Find(number);
  if (stream == nullptr || stream->is_answered) return;
  RequestHeaders* const headers = stream->request.headers();
  const bool is_taken = headers->Add(name, value);
  if (is_taken && headers->bytes() <= wire_->limits.header_list_bytes_max) return;
  wire_->limit_counts.Add(is_taken ? ReachedLimit::kHeaderBytes : ReachedLimit::kArrivingBytes);
  session_->Reset(number, is_taken ? ResetReason::kTooMuch : ResetReason::kRefused);
  stream->is_answered = true;
}

void Connection::OnHeadersEnd(int32_t number) {
  Stream* const stream = Find(number);
  if (stream == nullptr || stream->is_answered) return;
  const RequestHeaders& headers = *stream->request.headers();
  stream->open_bytes.Resize(std::max(headers.charged_bytes(), StreamBytes()));
  const int http_status = headers.HttpStatus();
  if (http_status != RequestHeaders::kHttpOk) return RefuseHeaders(number, stream, http_status);
  const auto method = wire_->methods.find(headers.path());
  if (method == wire_->methods.end()) {
    return Refuse(number, stream,
                  {base::Code::kUnimplemented, "this server has no method " + headers.path()});
  }
  MessageOptions options;
  options.bytes_max = wire_->calls.message_bytes_max;
  options.budget = wire_->calls.budget.get();
  const base::Status begun = stream->request.Begin(&method->second, options, now_ns_);
  if (!begun.ok()) Refuse(number, stream, begun);
}

void Connection::OnData(int32_t number, std::string_view data) {
  Stream* const stream = Find(number);
  if (stream == nullptr || !stream->is_receiving()) return;
  const base::Status taken = stream->request.AddData(data, space_, now_ns_);
  if (!taken.ok()) return Refuse(number, stream, taken);
  if (stream->request.has_messages()) AddDue(MakeCall(number, stream));
}

void Connection::OnRequestEnd(int32_t number) {
  Stream* const stream = Find(number);
  if (stream == nullptr || !stream->is_receiving()) return;
  const base::Status ended = stream->request.End();
  // From here on the admission counts it, or refuses it.
  if (stream->request.method()->handler->IsLimited()) stream->open_bytes.Resize(0);
  if (!ended.ok()) return Refuse(number, stream, ended);
  Call* const call = MakeCall(number, stream);
  call->MarkArrived();
  AddDue(call);
}

Call* Connection::MakeCall(int32_t number, Stream* stream) {
  if (stream->call == nullptr) {
    stream->call =
        std::make_shared<Call>(shared_from_this(), &wire_->calls, number, &stream->request,
                               std::move(stream->live), std::move(stream->open_bytes));
  }
  return stream->call.get();
}

void Connection::AddDue(Call* call) {
  if (due_.empty() || due_.back().get() != call) due_.push_back(call->shared_from_this());
}

void Connection::HandleMessages(Call* call) {
  base::ChargedText message;
  bool is_end = false;
  while (TakeMessage(call, &message, &is_end)) call->ArriveOne(message.text);
  if (is_end) call->ArriveEnd();
}

// A client that does not read its answers is not read any further: each message may cause an answer
// that is much longer. Its next messages wait until it has read (OnDataSent).
bool Connection::TakeMessage(Call* call, base::ChargedText* message, bool* is_end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (call->is_over()) return false;
  Stream* const stream = Find(call->stream());
  stream->resumes_reading = stream->reply.waiting_count() > 0;
  if (stream->resumes_reading) return false;
  *is_end = stream->request.has_ended() && !stream->request.has_messages();
  if (!stream->request.has_messages()) return false;
  *message = stream->request.TakeNext();
  return true;
}

void Connection::OnStreamClosed(int32_t number) {
  const auto found = streams_.find(number);
  if (found == streams_.end()) return;
  if (found->second.call != nullptr) found->second.call->Close(now_ns_);
  closed_.push_back(streams_.extract(found));
  if (streams_.empty()) life_.NoteCalls(false, now_ns_);
}

// --- Answers ---

void Connection::Answer(Call* call, CallEnd end) {
  ClosedStreams closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (call->is_over()) return;
  now_ns_ = base::MonotonicNs();
  const bool is_held = end.is_held;
  SubmitEnd(call->stream(), Find(call->stream()), std::move(end));
  if (is_held) return;
  Flush();
  closed.swap(closed_);
}

void Connection::WriteAnswers() {
  ClosedStreams closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  now_ns_ = base::MonotonicNs();
  Flush();
  closed.swap(closed_);
}

bool Connection::Send(Call* call, std::shared_ptr<OutMessage> message, size_t waiting_max) {
  ClosedStreams closed;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (call->is_over()) return true;
  Stream* const stream = Find(call->stream());
  if (stream->reply.waiting_count() >= waiting_max) return false;
  now_ns_ = base::MonotonicNs();
  stream->reply.Add(std::move(message), now_ns_);
  SubmitBody(call->stream(), stream);
  Flush();
  closed.swap(closed_);
  return true;
}

void Connection::Refuse(int32_t number, Stream* stream, const base::Status& status) {
  if (stream->request.method() == nullptr) {
    stream->request.headers()->Free();
  } else {
    MakeCall(number, stream)->RefuseArriving(status.code());
  }
  if (stream->is_answered) return;
  CallEnd end;
  end.status = status;
  SubmitEnd(number, stream, std::move(end));
}

void Connection::RefuseHeaders(int32_t number, Stream* stream, int http_status) {
  stream->is_answered = true;
  stream->request.headers()->Free();
  const std::string text = std::to_string(http_status);
  HeaderList headers;
  headers.Add(":status", text);
  session_->Submit(number, headers);
}

void Connection::SubmitEnd(int32_t number, Stream* stream, CallEnd end) {
  stream->is_answered = true;
  if (stream->call != nullptr) stream->call->MarkAnswered();
  stream->reply.End(std::move(end), now_ns_);
  answered_.push_back(number);
  if (stream->reply.waiting_count() > 0 || stream->reply.is_begun()) {
    return SubmitBody(number, stream);
  }
  session_->Submit(number, stream->reply.HeadersWithEnd());
}

void Connection::SubmitBody(int32_t number, Stream* stream) {
  if (stream->reply.is_begun()) return session_->Resume(number);
  stream->reply.MarkBegun();
  session_->Submit(number, stream->reply.Headers(), &stream->reply);
}

void Connection::OnDataSent(int32_t number) {
  flood_.TakePayload();
  Stream* const stream = Find(number);
  stream->reply.NoteSent(now_ns_);
  if (stream->reply.waiting_count() == 0 && std::exchange(stream->resumes_reading, false)) {
    AddDue(stream->call.get());
  }
}

// A call with an answer that its client does not read counts again. Most are gone by now.
void Connection::CountUnread() {
  for (const int32_t number : answered_) {
    Stream* const stream = Find(number);
    if (stream == nullptr || stream->open_bytes.bytes() > 0) continue;
    if (stream->call != nullptr && stream->call->open_bytes() > 0) continue;
    stream->unread_bytes.Resize(StreamBytes());
  }
  answered_.clear();
}

// A message that began to arrive and stopped would hold its memory for ever, and so would an answer
// for which the client opens no window.
void Connection::EndPausedStreams() {
  const int64_t pause_ns = wire_->limits.pause_ns;
  if (pause_ns <= 0) return;
  const int64_t since_ns = now_ns_ - pause_ns;
  for (auto& [number, stream] : streams_) {
    if (stream.reply.is_left_unread(since_ns)) {
      wire_->limit_counts.Add(ReachedLimit::kPause);
      session_->Reset(number, ResetReason::kCancelled);
    } else if (stream.is_receiving() && stream.request.is_paused(since_ns)) {
      wire_->limit_counts.Add(ReachedLimit::kPause);
      Refuse(number, &stream,
             {base::Code::kDeadlineExceeded, "no part of the message came for " +
                                                 std::to_string(pause_ns / 1'000'000'000) +
                                                 " s; send it without a pause"});
    }
  }
}

}  // namespace millpond::rpc
