#include "native/rpc/call.h"

#include <algorithm>
#include <cstring>

#include "native/base/clock.h"
#include "native/base/no_memory.h"
#include "native/base/share_scope.h"
#include "native/rpc/connection.h"
#include "native/rpc/grpc_text.h"
#include "native/rpc/request_threads.h"
#include "native/rpc/run_queue.h"

namespace millpond::rpc {
namespace {

// Messages up to it that are no requests to models, and answers to them, have the budget's reserve:
// probes and operators ask most of all while no memory is left.
constexpr int64_t kShortBytesMax = 4096;

// A message up to it is copied into one piece: a copy is cheaper than what decodes several pieces.
constexpr int64_t kSmallBytesMax = 8192;

// RFC 9113, 6.5.2: each header counts so many bytes beside its name and value.
constexpr size_t kHeaderOverheadBytes = 32;

// A model's name and what stands before it in a message.
constexpr size_t kModelNameBytes = 1024;

constexpr int kHttpOk = 200;
constexpr int kHttpMethodNotAllowed = 405;
constexpr int kHttpUnsupportedMediaType = 415;

// Returns the earliest instant that can be the client's deadline if it is `deadline_ns` here:
// gRPC's clients round the timeout that they send up to the millisecond and by at most a hundredth.
// The time on the way is not taken off, because no server can know it.
int64_t EarliestDeadlineNs(int64_t deadline_ns, int64_t received_ns) {
  constexpr int64_t kMillisecondNs = 1'000'000;
  if (deadline_ns == tensor::RunContext::kNoDeadline) return deadline_ns;
  return deadline_ns - (deadline_ns - received_ns) / 100 - kMillisecondNs;
}

// These say how the call is made, and not what it is about.
bool IsOfTheProtocol(std::string_view name) {
  return name == "te" || name == "user-agent" || name == "accept-encoding" ||
         name == "grpc-message-type";
}

}  // namespace

std::string MethodHandler::ModelNameOf(const Call&) const { return ""; }

void MethodHandler::RecordRefusal(const Call&, base::Code) const {}

// PROTOCOL-HTTP2: one byte that says if the message is compressed, and its length, big-endian.
OutMessage::OutMessage(base::ReplyBytes reply, bool is_compressed) : reply_(std::move(reply)) {
  const auto size = static_cast<uint32_t>(reply_.size());
  prefix_[0] = is_compressed ? 1 : 0;
  for (int i = 0; i < 4; ++i) prefix_[1 + i] = static_cast<char>(size >> (24U - 8U * i));
}

int64_t Call::BeginBytes() {
  // Its place in the connection's table takes less.
  constexpr int64_t kPlaceBytes = 128;
  return static_cast<int64_t>(sizeof(Call)) + kPlaceBytes + kHeaderRoomBytes;
}

Call::Call(std::shared_ptr<Connection> connection, const CallLimits* limits, int32_t stream_id,
           base::ByteBudget::Share charge)
    : connection_(std::move(connection)),
      limits_(limits),
      stream_id_(stream_id),
      charge_(std::move(charge)) {}

Call::~Call() { connection_->ForgetCall(*this); }

// --- What the connection brings ---

bool Call::AddHeader(std::string_view name, std::string_view value) {
  header_bytes_ += name.size() + value.size() + kHeaderOverheadBytes;
  const auto room_bytes = static_cast<size_t>(charge_.bytes() - BeginBytes() + kHeaderRoomBytes);
  if (header_bytes_ > room_bytes && charge_.bytes() > 0 &&
      !charge_.Add(static_cast<int64_t>(header_bytes_ - room_bytes) + kHeaderRoomBytes)) {
    return false;
  }
  if (name == ":path") {
    path_ = value;
  } else if (name == ":method") {
    is_post_ = value == "POST";
  } else if (name == "content-type") {
    content_type_ = value;
  } else if (name == "grpc-timeout") {
    timeout_ns_ = ParseTimeout(value);
    has_bad_timeout_ = !timeout_ns_;
  } else if (name == "grpc-encoding") {
    encoding_ = EncodingOf(value);
  } else if (name == "grpc-accept-encoding") {
    accepted_encodings_ = value;
  } else if (name[0] != ':' && !IsOfTheProtocol(name)) {
    metadata_.append(name).push_back('\0');
    metadata_.append(value).push_back('\0');
  }
  return true;
}

int Call::HttpStatus() const {
  if (!is_post_) return kHttpMethodNotAllowed;
  return IsGrpcContentType(content_type_) ? kHttpOk : kHttpUnsupportedMediaType;
}

base::Status Call::Begin(const Method* method, int64_t now_ns) {
  data_ns_ = received_ns_ = now_ns;
  method_ = method;
  if (has_bad_timeout_) {
    return base::InvalidArgument(
        "the header grpc-timeout must be 1 to 8 digits and one of the units H, M, S, m, u and n");
  }
  const bool is_limited = is_of_model_ = method_->handler->IsLimited();
  has_servers_deadline_ = !timeout_ns_ && is_limited && limits_->request_ns_max > 0;
  if (has_servers_deadline_) timeout_ns_ = limits_->request_ns_max;
  if (timeout_ns_) run_.deadline_ns = now_ns + *timeout_ns_;
  run_.is_cancelled = cancellation_.flag();
  run_.reply_bytes_max = limits_->reply_bytes_max;
  run_.budget = limits_->budget.get();
  return {};
}

base::Status Call::AddData(std::string_view data, ReceiveSpace* space, int64_t now_ns) {
  data_ns_ = now_ns;
  while (!data.empty()) {
    if (prefix_bytes_ < OutMessage::kPrefixBytes) {
      const size_t part = std::min(data.size(), OutMessage::kPrefixBytes - prefix_bytes_);
      std::memcpy(prefix_ + prefix_bytes_, data.data(), part);
      prefix_bytes_ += part;
      data.remove_prefix(part);
      if (prefix_bytes_ < OutMessage::kPrefixBytes) break;
      MILLPOND_RETURN_IF_ERROR(BeginMessage());
    } else {
      const auto left = static_cast<size_t>(message_bytes_ - arrived_bytes_);
      const std::string_view part = data.substr(0, left);
      MILLPOND_RETURN_IF_ERROR(AddBody(part, space));
      data.remove_prefix(part.size());
    }
    if (arrived_bytes_ == message_bytes_) MILLPOND_RETURN_IF_ERROR(EndMessage());
  }
  return {};
}

int64_t Call::MessageBytesMax() const {
  return std::min(method_->message_bytes_max, limits_->message_bytes_max);
}

base::Status Call::BeginMessage() {
  if (method_->kind != MethodKind::kBidiStreaming && message_count_ > 0) {
    return {base::Code::kUnimplemented,
            method_->path + " takes one message, and the client sent another"};
  }
  if (static_cast<unsigned char>(prefix_[0]) > 1) {
    return base::Internal("the first byte of a message must be 0 or 1 (compressed)");
  }
  is_compressed_ = prefix_[0] == 1;
  uint32_t size = 0;
  for (int i = 0; i < 4; ++i) size = size << 8U | static_cast<unsigned char>(prefix_[1 + i]);
  message_bytes_ = size;
  arrived_bytes_ = 0;
  if (message_bytes_ > MessageBytesMax()) {
    return {base::Code::kResourceExhausted,
            "the message has " + std::to_string(message_bytes_) +
                " bytes, and its method takes at most " + std::to_string(MessageBytesMax()) +
                " (--max_request_bytes, or less for this method); send less"};
  }
  // A short message may decompress to a long one.
  const int64_t bytes_max = is_compressed_ ? MessageBytesMax() : message_bytes_;
  share_ = base::ByteBudget::Share(limits_->budget.get(), UseOf(bytes_max));
  return {};
}

base::ByteBudget::Use Call::UseOf(int64_t bytes) const {
  const bool is_short = bytes <= kShortBytesMax && !is_of_model_;
  return is_short ? base::ByteBudget::Use::kCall : base::ByteBudget::Use::kMessage;
}

// The bytes count as they come: a client may announce 2 GB and send none.
base::Status Call::AddBody(std::string_view data, ReceiveSpace* space) {
  arrived_bytes_ += static_cast<int64_t>(data.size());
  if (!share_.Add(static_cast<int64_t>(data.size()))) {
    return base::NoMemoryFor("a message of " + std::to_string(message_bytes_) + " bytes",
                             *share_.budget());
  }
  if (message_bytes_ <= kSmallBytesMax || method_->kind == MethodKind::kBidiStreaming) {
    if (small_.capacity() < message_bytes_ && message_bytes_ <= kSmallBytesMax) {
      small_.reserve(static_cast<size_t>(message_bytes_));
    }
    small_.append(data);
  } else if (data.size() >= ReceiveBlock::kHeldBytesMin) {
    const std::shared_ptr<ReceiveBlock>& block = space->Hold();
    if (owners_.empty() || owners_.back() != block) owners_.push_back(block);
    raw_segments_.push_back(data);
  } else {
    AddCopy(data);
  }
  return {};
}

// Small parts share a block, which is no larger than what has arrived: a message in parts of one
// byte takes twice its bytes, and not a hundred times.
void Call::AddCopy(std::string_view data) {
  if (copy_ == nullptr || copy_->capacity() - copy_->size() < data.size()) {
    copy_ = std::make_shared<std::string>();
    copy_->reserve(std::max(
        data.size(), std::min(static_cast<size_t>(arrived_bytes_), ReceiveBlock::kHeldBytesMin)));
    owners_.push_back(copy_);
    raw_segments_.emplace_back(copy_->data(), 0);
  } else if (owners_.back() != copy_) {
    owners_.push_back(copy_);
    raw_segments_.emplace_back(copy_->data() + copy_->size(), 0);
  }
  copy_->append(data);
  raw_segments_.back() = {raw_segments_.back().data(), raw_segments_.back().size() + data.size()};
}

base::Status Call::EndMessage() {
  prefix_bytes_ = 0;
  message_count_ += 1;
  if (method_->kind != MethodKind::kBidiStreaming) {
    if (!small_.empty()) raw_segments_.push_back(small_);
    return {};
  }
  if (is_compressed_) {
    std::vector<std::string> blocks;
    MILLPOND_RETURN_IF_ERROR(Decompress(encoding_, {small_}, MessageBytesMax(), &blocks, &share_));
    small_.clear();
    for (const std::string& block : blocks) small_ += block;
  }
  if (messages_.size() >= kUnreadMessagesMax) {
    return {base::Code::kResourceExhausted,
            std::to_string(kUnreadMessagesMax) + " messages wait; send fewer at once"};
  }
  if (!share_.Add(static_cast<int64_t>(sizeof(base::ChargedText)))) {
    return base::NoMemoryFor("a message that waits", *share_.budget());
  }
  messages_.push_back({std::exchange(small_, {}), std::move(share_)});
  is_due_ = true;
  return {};
}

base::Status Call::EndRequest() {
  has_ended_request_ = true;
  if (prefix_bytes_ > 0) {
    return base::Internal("the client ended its request within a message");
  }
  if (method_->kind != MethodKind::kBidiStreaming && message_count_ == 0) {
    return {base::Code::kUnimplemented,
            method_->path + " takes one message, and the client sent none"};
  }
  is_due_ = true;
  return {};
}

void Call::Close(int64_t now_ns) {
  if (!is_answered_) cancellation_.Cancel(now_ns);
  is_over_.store(true, std::memory_order_release);
}

// --- Its way to a handler ---

bool Call::Arrive() {
  is_due_ = false;
  if (is_over()) return false;
  if (method_->kind == MethodKind::kBidiStreaming) {
    HandleMessages();
    return false;
  }
  received_ns_ = base::MonotonicNs();
  if (!method_->handler->IsLimited()) {
    Handle();
    // Whoever answers later has what is needed for it.
    FreeRequest();
    return false;
  }
  const base::Status entered = Enter();
  if (!entered.ok()) Refuse(entered);
  return entered.ok();
}

// A client that does not read its answers is not read any further: each message may cause an answer
// that is much longer. The connection calls Arrive again when the client has read (OnSendData).
void Call::HandleMessages() {
  FreeHeaders();
  while (!is_over()) {
    if (connection_->WaitsForReader(this)) return;
    if (messages_.empty()) break;
    const base::ChargedText message = std::move(messages_.front());
    messages_.pop_front();
    segments_ = {message.text};
    is_read_ = true;
    method_->handler->Handle(this);
    segments_.clear();
  }
  if (has_ended_request_ && !is_over()) method_->handler->HandleEnd(this);
}

void Call::EndTurn() {
  // An answer may take long to read; the request is not needed for that.
  if (!awaited_) return FreeRequest();
  const Awaited awaited = *awaited_;
  awaited_.reset();
  ForgetRead();
  limits_->threads->Await({shared_from_this(), awaited.change, awaited.until_ns});
}

// The name stands at the start of a message, as clients write it.
std::string Call::StartOfMessage() const {
  return DecompressStart(encoding_, raw_segments_, kModelNameBytes);
}

std::string Call::ModelName() {
  if (is_read_ || !is_compressed_) {
    Read();
    return PeekModelName();
  }
  const std::string start = StartOfMessage();
  segments_ = {start};
  std::string name = PeekModelName();
  segments_.clear();
  return name;
}

void Call::PeekBatchKey() {
  if (is_compressed_ || servable::BatchingCount().load(std::memory_order_relaxed) == 0) return;
  Read();
  batch_key_ = method_->handler->BatchKeyOf(*this);
}

bool Call::TryAwait(const servable::AwaitedChange& change) {
  const int64_t until_ns =
      servable::AwaitEndNs(received_ns_, limits_->first_version_wait_ns, run_.deadline_ns);
  const bool is_wanted = !cancellation_.is_cancelled();
  if (!ticket_ || !is_wanted || base::MonotonicNs() >= until_ns) return false;
  if (!limits_->threads->TakeAwaitingPlace()) return false;
  awaited_ = Awaited{change, until_ns};
  return true;
}

base::Status Call::Enter() {
  servable::Admission& admission = *limits_->admission;
  std::string model;
  // A message that cannot be read is no model's; it fails in its turn.
  if (admission.has_model_limits()) {
    Read();
    if (read_status_.ok()) model = PeekModelName();
    ForgetRead();
  }
  auto entered = admission.Enter(model);
  if (entered.ok()) ticket_ = std::move(entered.value());
  return entered.status();
}

void Call::Handle() {
  Read();
  if (read_status_.ok()) {
    base::ByteBudget::Share decoded(limits_->budget.get());
    const base::ShareScope share_scope(&decoded, run_.reply_limits());
    return method_->handler->Handle(this);
  }
  method_->handler->RecordRefusal(*this, read_status_.code());
  Fail(read_status_);
}

void Call::Refuse(const base::Status& status) {
  // gRPC's own retries wait for so long:
  // https://github.com/grpc/proposal/blob/master/A6-client-retries.md
  out.pushback_ms = limits_->admission->NextPushbackMs();
  // The refusal counts for the model that the request names.
  const std::string start = is_read_ || !is_compressed_ ? "" : StartOfMessage();
  if (start.empty()) {
    Read();
  } else {
    segments_ = {start};
  }
  method_->handler->RecordRefusal(*this, status.code());
  FreeRequest();
  Fail(status);
}

void Call::RefuseForDelay() {
  Refuse(
      {base::Code::kResourceExhausted,
       "the server has more requests than it can run, and the request would wait for longer than "
       "1/" +
           std::to_string(RunQueue::kDelayShare) +
           " of its deadline; try again later, or use another server"});
}

void Call::RefuseForFullBatches() { Refuse(servable::WaitingLimit::Refusal()); }

void Call::RefuseArriving(base::Code code) {
  if (method_ != nullptr) method_->handler->RecordRefusal(*this, code);
  // Another thread may be at the messages of a stream.
  if (method_ == nullptr || method_->kind != MethodKind::kBidiStreaming) FreeRequest();
}

void Call::Read() {
  if (std::exchange(is_read_, true)) return;
  if (!is_compressed_) {
    segments_ = raw_segments_;
    return;
  }
  read_status_ = Decompress(encoding_, raw_segments_, MessageBytesMax(), &inflated_, &share_);
  out.names_encodings = read_status_.code() == base::Code::kUnimplemented;
  segments_.assign(inflated_.begin(), inflated_.end());
}

// A request that waits takes no more memory than it came with. It is decompressed again in its
// turn.
void Call::ForgetRead() {
  is_read_ = false;
  segments_.clear();
  inflated_.clear();
  read_status_ = {};
  if (is_compressed_) share_.Resize(std::min(message_bytes_, share_.bytes()));
}

void Call::FreeRequest() {
  FreeMessage();
  FreeHeaders();
}

void Call::FreeMessage() {
  segments_.clear();
  raw_segments_.clear();
  inflated_.clear();
  owners_.clear();
  copy_.reset();
  small_ = {};
  share_.Resize(0);
}

// An answer may wait for its client for long.
void Call::FreeHeaders() {
  path_ = {};
  content_type_ = {};
  accepted_encodings_ = {};
  metadata_ = {};
  charge_.Resize(std::min(charge_.bytes(), BeginBytes()));
}

// --- For handlers ---

base::StatusOr<base::ChargedText> Call::TakeRequest() {
  int64_t bytes = 0;
  for (const std::string_view segment : segments_) bytes += static_cast<int64_t>(segment.size());
  base::ChargedText copy{{}, base::ByteBudget::Share(limits_->budget.get(), UseOf(bytes))};
  if (!copy.share.Resize(bytes)) {
    return base::NoMemoryFor("a copy of a message of " + std::to_string(bytes) + " bytes",
                             *limits_->budget);
  }
  copy.text.reserve(static_cast<size_t>(bytes));
  request().AppendRest(&copy.text);
  FreeMessage();
  return {std::move(copy)};
}

std::optional<std::string_view> Call::FindMetadata(std::string_view key) const {
  std::string_view rest = metadata_;
  const auto take = [&rest] {
    const std::string_view text = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(text.size() + 1);
    return text;
  };
  while (!rest.empty()) {
    const std::string_view name = take();
    const std::string_view value = take();
    if (name == key) return value;
  }
  return {};
}

const std::string& Call::peer() const { return connection_->peer(); }

std::vector<std::string> Call::ClientNames() const { return connection_->ClientNames(); }

base::Status Call::CheckIsWanted() const {
  if (limits_->is_cut_short->load(std::memory_order_relaxed)) {
    return {base::Code::kUnavailable,
            "the server stopped before the request ran; use another server"};
  }
  if (cancellation_.is_cancelled()) {
    return {base::Code::kCancelled, "the client cancelled the request before it ran"};
  }
  if (run_.deadline_ns != tensor::RunContext::kNoDeadline &&
      base::MonotonicNs() >= run_.deadline_ns) {
    return {base::Code::kDeadlineExceeded, "the request's deadline passed before it ran"};
  }
  return {};
}

base::Status Call::AsSeenByClient(base::Status status) const {
  return cancellation_.Settle(std::move(status),
                              EarliestDeadlineNs(run_.deadline_ns, received_ns_));
}

void Call::Reply(base::ReplyBytes reply) {
  const Encoding encoding =
      ChooseReplyEncoding(limits_->reply_compression, encoding_, accepted_encodings_, reply.size());
  if (encoding != Encoding::kIdentity) {
    // A reply that cannot be compressed, for lack of memory, is sent as it is.
    auto compressed = Compress(encoding, reply.view(), run_.reply_limits());
    if (compressed.ok()) {
      reply = std::move(compressed.value());
      return End(std::make_shared<OutMessage>(std::move(reply), true), encoding, {});
    }
  }
  End(std::make_shared<OutMessage>(std::move(reply), false), Encoding::kIdentity, {});
}

base::StatusOr<std::shared_ptr<OutMessage>> Call::MakeMessage(std::string_view bytes) const {
  base::ReplyLimits limits;
  limits.budget = limits_->budget.get();
  limits.use = UseOf(static_cast<int64_t>(bytes.size()));
  auto copy = base::CopyReply(bytes, limits);
  if (!copy.ok()) return copy.status();
  return std::make_shared<OutMessage>(std::move(copy.value()), false);
}

void Call::Reply(std::string_view bytes) {
  auto message = MakeMessage(bytes);
  if (!message.ok()) return Fail(message.status());
  End(std::move(message.value()), Encoding::kIdentity, {});
}

void Call::Fail(const base::Status& status) {
  if (!has_servers_deadline_ || status.code() != base::Code::kDeadlineExceeded) {
    return End(nullptr, Encoding::kIdentity, status);
  }
  End(nullptr, Encoding::kIdentity,
      {status.code(), status.message() + " (--max_request_seconds; the client set no deadline)"});
}

void Call::Finish(const base::Status& status) { Fail(status); }

// Whoever has the answer is not in flight any more.
void Call::End(std::shared_ptr<OutMessage> message, Encoding encoding, const base::Status& status) {
  ticket_ = {};
  connection_->Answer(this, std::move(message), encoding, status);
}

void Call::Send(std::string_view bytes) {
  auto message = MakeMessage(bytes);
  if (!message.ok()) return Fail(message.status());
  if (!connection_->Send(this, std::move(message.value()), kUnreadMessagesMax)) {
    Fail({base::Code::kResourceExhausted,
          std::to_string(kUnreadMessagesMax) + " messages wait for the client to read them"});
  }
}

}  // namespace millpond::rpc
