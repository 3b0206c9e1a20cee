#include "native/rpc/unary_call.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#include <utility>

#include "native/base/clock.h"
#include "native/base/no_memory.h"
#include "native/base/share_scope.h"

namespace millpond::rpc {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

// Messages up to it that are no requests to models come in while no memory is left: probes and
// operators ask then most of all, and gRPC takes more than that for the call itself.
constexpr int64_t kUncountedBytesMax = 4096;

// Deadlines further away than this (30 years) are none: their nanoseconds would overflow.
constexpr int64_t kMaxDeadlineSeconds = 1'000'000'000;

// Returns the earliest instant that can be the client's deadline if it is `deadline_ns` here:
// gRPC's clients round the timeout that they send up to the millisecond and by at most a hundredth.
// The time on the way is not taken off, because no server can know it.
int64_t EarliestDeadlineNs(int64_t deadline_ns, int64_t received_ns) {
  constexpr int64_t kMillisecondNs = 1'000'000;
  if (deadline_ns == tensor::RunContext::kNoDeadline) return deadline_ns;
  return deadline_ns - (deadline_ns - received_ns) / 100 - kMillisecondNs;
}

// The client's deadline on base::MonotonicNs's clock.
int64_t DeadlineNs(gpr_timespec deadline, int64_t now_ns) {
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) {
    return tensor::RunContext::kNoDeadline;
  }
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  if (left.tv_sec > kMaxDeadlineSeconds) return tensor::RunContext::kNoDeadline;
  if (left.tv_sec < 0) return now_ns;
  return now_ns + left.tv_sec * kNsPerSecond + left.tv_nsec;
}

grpc::Status ToGrpc(const base::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), base::WithShortMessage(status).message()};
}

}  // namespace

std::string UnaryHandler::ModelNameOf(const UnaryCall&) const { return ""; }

void UnaryHandler::RecordRefusal(const UnaryCall&, base::Code) const {}

UnaryMethod::UnaryMethod(std::string path, RawService* service, UnaryHandler* handler,
                         const ServerPhase* phase, const CallLimits* limits,
                         int64_t message_bytes_max)
    : path_(std::move(path)),
      service_(service),
      handler_(handler),
      phase_(phase),
      limits_(limits),
      message_bytes_max_(message_bytes_max),
      index_(service->AddUnaryMethod(path_)) {}

void UnaryMethod::WaitForCall(CallQueue* queue) {
  queue->AskUnless(phase_->is_stopping, [&] { (new UnaryCall(this, queue))->Wait(); });
}

UnaryCall::UnaryCall(UnaryMethod* method, CallQueue* queue) : method_(method), queue_(queue) {
  queue_->AddCall();
}

void UnaryCall::Wait() {
  context_.AsyncNotifyWhenDone(&done_tag_);
  method_->service_->RequestUnary(method_->index_, &context_, &request_, &responder_, queue_->get(),
                                  &received_tag_);
}

void UnaryCall::OnReceived(bool ok) {
  // The server is stopping, and no other tag comes.
  if (!ok) return Delete();
  received_ns_ = base::MonotonicNs();
  run_.deadline_ns = DeadlineNs(context_.raw_deadline(), received_ns_);
  run_.is_cancelled = cancellation_.flag();
  run_.reply_bytes_max = method_->limits_->reply_bytes_max;
  run_.budget = method_->limits_->budget;
  const base::Status entered = Enter();
  if (ticket_ && PollerPool::MustPark()) {
    ForgetRead();
    return PollerPool::Park(method_, queue_, this);
  }
  PollerPool::HandleThenWait(method_, queue_, [&] { entered.ok() ? Handle() : Refuse(entered); });
  // Held until the next wait has begun: while the call counts, its queue is not shut down.
  EndTurn();
}

bool UnaryCall::TryAwait(const servable::AwaitedChange& change) {
  const int64_t until_ns =
      servable::AwaitEndNs(received_ns_, method_->limits_->first_version_wait_ns, run_.deadline_ns);
  const bool is_wanted = !cancellation_.is_cancelled();
  if (!ticket_ || !is_wanted || base::MonotonicNs() >= until_ns || !PollerPool::MayAwait()) {
    return false;
  }
  awaiting_ = AwaitingRequest{this, change, cancellation_.flag(), until_ns};
  return true;
}

// The last step of a poller's turn with the call, which may be gone after it.
void UnaryCall::EndTurn() {
  if (!awaiting_) return Release();
  const AwaitingRequest awaiting = *awaiting_;
  awaiting_.reset();
  ForgetRead();
  PollerPool::Await(awaiting);
}

base::Status UnaryCall::Enter() {
  MILLPOND_RETURN_IF_ERROR(CountRequest());
  if (!method_->handler_->IsLimited()) return {};
  servable::Admission& admission = *method_->limits_->admission;
  std::string model;
  // One that cannot be read is no model's; it fails in its turn.
  if (admission.has_model_limits() && ReadRequest().ok()) {
    model = method_->handler_->ModelNameOf(*this);
  }
  auto entered = admission.Enter(model);
  if (entered.ok()) ticket_ = std::move(entered.value());
  return entered.status();
}

int64_t UnaryCall::RequestBytes() const {
  return static_cast<int64_t>(request_.Valid() ? request_.Length() : 0);
}

// The bytes are here already: a message that the budget has no place for goes as it came.
base::Status UnaryCall::CountRequest() {
  share_ = base::ByteBudget::Share(method_->limits_->budget);
  const int64_t bytes = RequestBytes();
  // ReadRequest refuses it.
  if (bytes > method_->message_bytes_max_) return {};
  if (bytes <= kUncountedBytesMax && !method_->handler_->IsLimited()) return {};
  if (share_.Resize(bytes)) return {};
  request_.Clear();
  return base::NoMemoryFor("a message of " + std::to_string(bytes) + " bytes", *share_.budget());
}

void UnaryCall::Handle() {
  const base::Status read = segments_.empty() ? ReadRequest() : base::Status();
  if (read.ok()) {
    base::ByteBudget::Share decoded(method_->limits_->budget);
    const base::ShareScope share_scope(&decoded);
    return method_->handler_->Handle(this);
  }
  method_->handler_->RecordRefusal(*this, read.code());
  Fail(read);
}

void UnaryCall::RunParked() {
  Handle();
  EndTurn();
}

void UnaryCall::Refuse(const base::Status& status) {
  // What gRPC's own retries wait for:
  // https://github.com/grpc/proposal/blob/master/A6-client-retries.md
  const int64_t pushback_ms = method_->limits_->admission->NextPushbackMs();
  context_.AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(pushback_ms));
  method_->handler_->RecordRefusal(*this, status.code());
  Fail(status);
}

base::Status UnaryCall::ReadRequest() {
  const int64_t bytes_max = method_->message_bytes_max_;
  if (const int64_t bytes = RequestBytes(); bytes > bytes_max) {
    request_.Clear();
    return {base::Code::kResourceExhausted, "the message has " + std::to_string(bytes) +
                                                " bytes, and its method takes at most " +
                                                std::to_string(bytes_max) + "; send less"};
  }
  MILLPOND_RETURN_IF_ERROR(
      method_->service_->encoding().Decode(request_, &context_, &slices_, &share_, bytes_max));
  segments_.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    segments_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return {};
}

// What waits takes no more memory than it came with: it is decompressed again in its turn.
void UnaryCall::ForgetRead() {
  slices_.clear();
  segments_.clear();
  share_.Resize(RequestBytes());
}

void UnaryCall::OnDone(bool) {
  if (context_.IsCancelled()) cancellation_.Cancel(base::MonotonicNs());
  Release();
}

void UnaryCall::OnAnswered(bool) { Release(); }

void UnaryCall::Release() {
  if (hold_count_.fetch_sub(1) == 1) Delete();
}

void UnaryCall::Delete() {
  CallQueue* const queue = queue_;
  delete this;
  queue->RemoveCall();
}

base::StatusOr<std::string> UnaryCall::TakeRequest() {
  int64_t bytes = 0;
  for (const std::string_view segment : segments_) bytes += static_cast<int64_t>(segment.size());
  // One that was too short to count stays so.
  const int64_t counted_bytes = share_.bytes() > 0 ? bytes : 0;
  if (!share_.Resize(share_.bytes() + counted_bytes)) {
    return base::NoMemoryFor("a copy of a message of " + std::to_string(bytes) + " bytes",
                             *share_.budget());
  }
  std::string copy;
  copy.reserve(static_cast<size_t>(bytes));
  request().AppendRest(&copy);
  segments_.clear();
  slices_.clear();
  request_.Clear();
  share_.Resize(counted_bytes);
  return copy;
}

std::optional<std::string_view> UnaryCall::FindMetadata(std::string_view key) const {
  const auto& metadata = context_.client_metadata();
  const auto found = metadata.lower_bound({key.data(), key.size()});
  if (found == metadata.end() || found->first != grpc::string_ref(key.data(), key.size()))
    return {};
  return std::string_view(found->second.data(), found->second.size());
}

std::vector<std::string> UnaryCall::ClientNames() const {
  std::vector<std::string> names;
  const std::shared_ptr<const grpc::AuthContext> identity = context_.auth_context();
  if (identity == nullptr || !identity->IsPeerAuthenticated()) return names;
  for (const char* const property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_X509_SAN_PROPERTY_NAME}) {
    for (const grpc::string_ref value : identity->FindPropertyValues(property)) {
      names.emplace_back(value.data(), value.size());
    }
  }
  return names;
}

base::Status UnaryCall::CheckIsWanted() const {
  if (method_->phase_->is_cut_short.load(std::memory_order_relaxed)) {
    return {base::Code::kUnavailable, "the server stopped before the request ran; ask another"};
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

base::Status UnaryCall::AsSeenByClient(base::Status status) const {
  return cancellation_.Settle(std::move(status),
                              EarliestDeadlineNs(run_.deadline_ns, received_ns_));
}

grpc::ByteBuffer UnaryCall::MakeMessage(base::ReplyBytes reply) {
  auto* const held = new base::ReplyBytes(std::move(reply));
  const auto free_held = [](void* bytes) { delete static_cast<base::ReplyBytes*>(bytes); };
  const grpc::Slice message(
      grpc_slice_new_with_user_data(const_cast<char*>(held->data()), held->size(), free_held, held),
      grpc::Slice::STEAL_REF);
  return {&message, 1};
}

// Whoever has the answer is not in flight any more.
void UnaryCall::Reply(const grpc::ByteBuffer& message) {
  ticket_ = {};
  method_->service_->encoding().EncodeReply(message.Length(), &context_);
  responder_.Finish(message, grpc::Status::OK, &answered_tag_);
}

void UnaryCall::Reply(std::string_view bytes) {
  const grpc::Slice message(bytes.data(), bytes.size());
  Reply(grpc::ByteBuffer(&message, 1));
}

void UnaryCall::Fail(const base::Status& status) {
  ticket_ = {};
  responder_.FinishWithError(ToGrpc(status), &answered_tag_);
}

}  // namespace millpond::rpc
