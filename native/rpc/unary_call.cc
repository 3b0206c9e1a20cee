#include "native/rpc/unary_call.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#include <utility>

#include "native/base/clock.h"
#include "native/base/share_scope.h"

namespace millpond::rpc {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

// Deadlines further away than this (30 years) are none: their nanoseconds would overflow.
constexpr int64_t kMaxDeadlineSeconds = 1'000'000'000;

// Returns the earliest instant that can be the client's deadline if it is `deadline_ns` here:
// gRPC's clients round the timeout that they send up to the millisecond and by at most a hundredth.
// The time on the way is not taken off, because no server can know it.
int64_t EarliestDeadlineNs(int64_t deadline_ns, int64_t received_ns) {
  constexpr int64_t kMillisecondNs = 1'000'000;
  if (deadline_ns == tf::RunContext::kNoDeadline) return deadline_ns;
  return deadline_ns - (deadline_ns - received_ns) / 100 - kMillisecondNs;
}

// The client's deadline on base::MonotonicNs's clock.
int64_t DeadlineNs(gpr_timespec deadline, int64_t now_ns) {
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) {
    return tf::RunContext::kNoDeadline;
  }
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  if (left.tv_sec > kMaxDeadlineSeconds) return tf::RunContext::kNoDeadline;
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
                         const ServerPhase* phase, const CallLimits* limits)
    : path_(std::move(path)),
      service_(service),
      handler_(handler),
      phase_(phase),
      limits_(limits),
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
  if (!method_->handler_->IsLimited()) return {};
  MILLPOND_RETURN_IF_ERROR(CountRequest());
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

// The bytes are here already: a message that the budget has no place for goes as it came.
base::Status UnaryCall::CountRequest() {
  base::ByteBudget* const budget = method_->limits_->budget;
  share_ = base::ByteBudget::Share(budget);
  const auto bytes = static_cast<int64_t>(request_.Valid() ? request_.Length() : 0);
  if (share_.Resize(bytes)) return {};
  request_.Clear();
  return {base::Code::kResourceExhausted,
          "no memory is left for a message of " + std::to_string(bytes) +
              " bytes: requests and replies under way take " +
              std::to_string(budget->in_use_bytes()) + " of the " +
              std::to_string(budget->limit_bytes()) +
              " bytes of --request_memory_bytes; try again later, or ask another server"};
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
  MILLPOND_RETURN_IF_ERROR(
      method_->service_->encoding().Decode(request_, &context_, &slices_, &share_));
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
  share_.Resize(static_cast<int64_t>(request_.Valid() ? request_.Length() : 0));
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

std::string UnaryCall::CopyRequest() const {
  std::string bytes;
  request().AppendRest(&bytes);
  return bytes;
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
  if (run_.deadline_ns != tf::RunContext::kNoDeadline && base::MonotonicNs() >= run_.deadline_ns) {
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
