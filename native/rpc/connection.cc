#include "native/rpc/connection.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <utility>

#include "native/base/clock.h"

namespace millpond::rpc {
namespace {

// The reads of one turn, before other connections have theirs.
constexpr int kReadsPerTurn = 16;

// Up to so many bytes of a client are read and dropped after its last answer.
constexpr size_t kDroppedBytesMax = 262'144;

// After a client has ended its side, its connection stays open this long for the answer.
constexpr int64_t kHalfClosedNs = 2'000'000'000;

// A connection that has sent nothing for so long may be closed to make room for another client.
constexpr int64_t kSilentNs = 300'000'000;

}  // namespace

// Holds the lock of a connection. Streams that close meanwhile are destroyed after its release.
class Connection::Section {
 public:
  explicit Section(Connection* connection) : connection_(*connection), lock_(connection->mutex_) {}
  ~Section() { closed_ = connection_.streams_.TakeClosed(); }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

 private:
  Connection& connection_;
  StreamTable::Closed closed_;
  const std::lock_guard<std::mutex> lock_;  // last: released first
};

// --- Its life ---

Connection::Connection(std::shared_ptr<ServerShared> shared, const Protocol& protocol, Waker* waker,
                       std::unique_ptr<Transport> transport, Ends ends, int64_t now_ns,
                       base::ByteBudget::Share charge)
    : shared_(std::move(shared)),
      charge_(std::move(charge)),
      transport_(std::move(transport)),
      ends_(std::move(ends)),
      waker_(waker),
      context_{shared_.get(), this, now_ns},
      life_(shared_->limits, now_ns),
      flood_(shared_->limits),
      streams_(protocol, &context_, &life_),
      session_(protocol.MakeSession(*shared_, &streams_, this)),
      output_(shared_->calls.budget.get()) {
  context_.session = session_.get();
  if (!session_->is_made()) CloseLocked();
}

Connection::~Connection() = default;

void Connection::Do(const ConnectionStep& step) {
  switch (step.kind) {
    case ConnectionStep::kNothing:
      break;
    case ConnectionStep::kPing:
      session_->SubmitPing();
      life_.NotePing(context_.now_ns);
      break;
    case ConnectionStep::kGoaway:
      session_->SubmitGoaway();
      life_.NoteGoaway(context_.now_ns);
      break;
    case ConnectionStep::kLastGoaway:
      session_->SubmitLastGoaway();
      life_.NoteLastGoaway(context_.now_ns);
      break;
    case ConnectionStep::kClose:
      if (step.limit) shared_->limit_counts.Add(*step.limit);
      CloseLocked();
      break;
  }
}

void Connection::EndFor(const std::optional<FloodLimits::Excess>& excess) {
  if (!excess || !life_.End()) return;
  shared_->limit_counts.Add(excess->limit);
  session_->SubmitComplaint(excess->reason);
}

// A client may acknowledge a goaway that it was never sent, which means nothing.
void Connection::OnGoawaySeen() {
  if (life_.phase() == ConnectionPhase::kGoingAway) Do(life_.RefuseNewCalls(context_.now_ns));
}

bool Connection::CheckTimes(int64_t now_ns) {
  const Section section(this);
  if (is_closed()) return false;
  context_.now_ns = now_ns;
  while (true) {
    const ConnectionStep step = life_.Next(now_ns);
    if (step.kind == ConnectionStep::kNothing) break;
    Do(step);
  }
  session_->CheckTimes(now_ns);
  streams_.EndPaused();
  EndIfAbandoned();
  Flush();
  return !context_.due.empty();
}

bool Connection::IsSettled(int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return life_.IsSettled(now_ns);
}

void Connection::AskToGo(int64_t now_ns) {
  const Section section(this);
  context_.now_ns = now_ns;
  Do(life_.AskToGo(now_ns));
  Flush();
}

void Connection::RefuseNewStreams(int64_t now_ns) {
  const Section section(this);
  context_.now_ns = now_ns;
  Do(life_.RefuseNewCalls(now_ns));
  Flush();
}

void Connection::Close() {
  const Section section(this);
  CloseLocked();
}

void Connection::CloseLocked() {
  if (!life_.Close()) return;
  streams_.CloseAll();
  // Calls may hold the connection, and so its descriptor, for longer. The client learns of the end
  // now.
  (void)shutdown(transport_->fd(), SHUT_RDWR);
  is_closed_.store(true, std::memory_order_release);
}

bool Connection::IsReceiving(int64_t since_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return streams_.IsReceiving(since_ns);
}

// --- A turn ---

void Connection::Proceed(ReceiveSpace* space, std::vector<std::shared_ptr<RunnableCall>>* to_run) {
  if (!turn_.TryTake()) return;
  do {
    has_more_.store(ReadAndHandle(space, to_run), std::memory_order_release);
  } while (!turn_.TryEnd());
}

bool Connection::ReadAndHandle(ReceiveSpace* space,
                               std::vector<std::shared_ptr<RunnableCall>>* to_run) {
  bool goes_on = true;
  for (int i = 0; goes_on && i < kReadsPerTurn; ++i) {
    std::vector<std::shared_ptr<StreamCall>> due;
    {
      const Section section(this);
      context_.now_ns = base::MonotonicNs();
      // A client that does not read what it is sent is not read either: what it sends may cause
      // more to be sent. The kernel tells when it reads again.
      if (!output_.Reserve()) Flush();
      goes_on = output_.Reserve() && ReadSome(space);
      // Also within a long message, whose client waits for the window to open.
      if (!goes_on || i + 1 == kReadsPerTurn) Flush();
      due.swap(context_.due);
    }
    for (std::shared_ptr<StreamCall>& call : due) {
      if (call->Arrive()) to_run->push_back(std::move(call));
    }
  }
  return goes_on;
}

bool Connection::ReadSome(ReceiveSpace* space) {
  if (is_closed()) return false;
  // After the last answer, what the client still sends is read only to be dropped, because the
  // kernel would otherwise end the connection by a reset, and the client might lose the answer.
  if (life_.is_ending() && dropped_bytes_ >= kDroppedBytesMax) return false;
  if (is_reset_.load(std::memory_order_acquire)) {
    CloseLocked();
    return false;
  }
  if ((!session_->wants_input() && !session_->is_over()) || MustWriteFirst()) {
    input_waits_ = true;
    return false;
  }
  if (session_->waiting_bytes() > 0) return FeedWaiting(space);
  size_t room = 0;
  char* const to = space->Reserve(&room);
  const Transport::Result read = transport_->Read(to, room);
  if (read.state == Transport::State::kClosed) CloseLocked();
  if (read.state != Transport::State::kOk) return false;
  life_.NoteRead(context_.now_ns);
  if (!Feed(space, {to, read.bytes})) return false;
  // A full buffer means that there may be more; TLS may hold bytes that the socket does not show.
  return read.bytes == room || transport_->is_tls() || has_hung_up_.load(std::memory_order_acquire);
}

// Feeds the bytes that the session kept while an answer was due. They are copied into a block
// first, because the body of a request stays in the block from which it was fed.
bool Connection::FeedWaiting(ReceiveSpace* space) {
  size_t room = 0;
  char* const to = space->Reserve(&room);
  return Feed(space, {to, session_->TakeWaiting(to, room)});
}

// `bytes` lie in the free end of `space`.
bool Connection::Feed(ReceiveSpace* space, std::string_view bytes) {
  context_.space = space;
  const bool is_dropped = life_.is_ending() || session_->is_over();
  if (is_dropped) dropped_bytes_ += bytes.size();
  const bool goes_on = is_dropped || session_->Feed(bytes);
  space->Use(bytes.size());
  context_.space = nullptr;
  if (goes_on) return true;
  life_.End();
  Flush();
  // A client that never spoke the protocol is closed at once.
  if (!life_.times().spoken_ns) CloseLocked();
  return false;
}

void Connection::Flush() {
  WriteOutput();
  streams_.CountUnread();
  WakeIfInputWaits();
}

// The end of the client's bytes closes the connection, and would lose the rest of an answer. TLS
// has an end of its own, of which the kernel knows nothing before it is read.
bool Connection::MustWriteFirst() const {
  const bool may_end = has_hung_up_.load(std::memory_order_acquire) || transport_->is_tls();
  return may_end && session_->answers_half_closed() && !output_.empty();
}

// Has the socket's event reported again if there is input that may be read now. The event came
// while the session took nothing, and comes once. A client that must read its answers first causes
// another event when it reads.
void Connection::WakeIfInputWaits() {
  const bool waits = input_waits_ || session_->waiting_bytes() > 0;
  const bool is_taken = session_->wants_input() || session_->is_over();
  if (!waits || !is_taken || is_closed() || MustWriteFirst() || !output_.Reserve()) return;
  input_waits_ = false;
  waker_->WakeFor(*this);
}

// Closes the connection if its client ended its side kHalfClosedNs ago and has no answer yet. Such
// a client may still read its answer, or may be gone altogether, which looks the same until
// something is written to it. So a long run does not go on for it.
void Connection::EndIfAbandoned() {
  const bool is_due = has_hung_up_.load(std::memory_order_acquire) && !session_->wants_input() &&
                      !session_->is_over();
  if (!is_due) {
    hung_up_ns_.reset();
  } else if (!hung_up_ns_) {
    hung_up_ns_ = context_.now_ns;
  } else if (context_.now_ns - *hung_up_ns_ >= kHalfClosedNs) {
    CloseLocked();
  }
}

std::optional<Idleness> Connection::IdleSince(int64_t now_ns, bool is_urgent,
                                              const std::optional<Idleness>& least) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::optional<Idleness> idleness = life_.idleness();
  if (is_closed() || !idleness || (least && !(*idleness < *least))) return {};
  const bool had_its_time = now_ns - life_.times().read_ns >= kSilentNs;
  const bool must_wait = !had_its_time && (idleness->has_asked || !is_urgent);
  if (must_wait || session_->waiting_bytes() > 0) return {};
  int unread_bytes = 0;
  idleness->is_unread = ioctl(transport_->fd(), FIONREAD, &unread_bytes) != 0 || unread_bytes > 0;
  if (!idleness->is_unread) return idleness;
  // In a flood all clients may be unread, and the newest of them may be a probe.
  const bool may_ask = idleness->has_asked || !is_urgent;
  if (may_ask || (least && !(*idleness < *least))) return {};
  return idleness;
}

std::optional<double> Connection::Pace(int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  context_.now_ns = now_ns;
  return is_closed() ? std::nullopt : streams_.Pace();
}

void Connection::GiveUp(int64_t now_ns) {
  const Section section(this);
  context_.now_ns = now_ns;
  streams_.GiveUp();
  if (life_.End()) session_->SubmitLastGoaway();
  Flush();
}

void Connection::WriteOutput() {
  if (is_closed()) return;
  const OutputWriter::Written written = output_.Write(session_.get(), transport_.get());
  if (written.state == Transport::State::kClosed) return CloseLocked();
  const bool is_all = written.state == Transport::State::kOk;
  life_.NoteWritten(is_all, written.is_any, context_.now_ns);
  if (!is_all) return;
  const bool is_over = life_.is_ending() || session_->is_over();
  if (is_over && !life_.times().writes_ended_ns) {
    // The client reads what is on its way, and closes; CheckTimes closes if it does not.
    transport_->EndWrites();
    life_.NoteWritesEnded(context_.now_ns);
  }
}

// --- For calls ---

std::vector<std::string> Connection::ClientNames() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return transport_->ClientNames();
}

bool Connection::TakeMessage(int32_t number, base::ChargedText* message, bool* is_end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Stream* const stream = streams_.FindUnanswered(number);
  return stream != nullptr && stream->TakeMessage(message, is_end);
}

void Connection::Answer(int32_t number, CallEnd end) {
  const Section section(this);
  Stream* const stream = streams_.FindUnanswered(number);
  if (stream == nullptr) return;
  context_.now_ns = base::MonotonicNs();
  const bool is_held = end.is_held;
  stream->Answer(std::move(end));
  if (!is_held) Flush();
}

void Connection::WriteAnswers() {
  const Section section(this);
  context_.now_ns = base::MonotonicNs();
  Flush();
}

bool Connection::Send(int32_t number, std::shared_ptr<OutMessage> message, size_t waiting_max) {
  const Section section(this);
  Stream* const stream = streams_.FindUnanswered(number);
  if (stream == nullptr) return true;
  context_.now_ns = base::MonotonicNs();
  if (!stream->Send(std::move(message), waiting_max)) return false;
  Flush();
  return true;
}

}  // namespace millpond::rpc
