#include "native/rpc/rare_call_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "native/base/clock.h"
#include "native/rpc/call.h"
#include "native/rpc/http_answer.h"
#include "native/rpc/request_trace.h"

namespace millpond::rpc {
namespace {

base::Status ShuttingDown() {
  return {base::Code::kUnavailable, "the server is shutting down; use another server"};
}

// Proxies add one of these headers. serving/rpc/operator_access.py has the same list for HTTP.
bool IsForwarded(const Call& call) {
  for (const char* const key : {"forwarded", "via", "x-forwarded-for", "x-real-ip"}) {
    if (call.FindMetadata(key)) return true;
  }
  return false;
}

}  // namespace

RareCall::RareCall(Call* call, base::ChargedText request,
                   std::shared_ptr<metrics::MethodRecorder> requests)
    : call_(call->shared_from_this()),
      requests_(std::move(requests)),
      watch_(call->received_ns()),
      deadline_ns_(call->run_context().deadline_ns),
      path_(call->path()),
      http_method_(call->http_method()),
      target_(call->is_http() ? call->target() : ""),
      metadata_(call->is_http() ? call->metadata() : ""),
      request_(std::move(request)),
      trace_context_(FindTraceContext(*call)),
      peer_(call->peer()),
      client_names_(call->ClientNames()),
      is_forwarded_(IsForwarded(*call)) {}

RareCall::~RareCall() {
  if (call_ != nullptr) (void)Fail(base::Internal(path_ + " was dropped without an answer"));
}

std::optional<int64_t> RareCall::RemainingNs(int64_t now_ns) const {
  if (deadline_ns_ == tensor::RunContext::kNoDeadline) return std::nullopt;
  return std::max<int64_t>(deadline_ns_ - now_ns, 0);
}

bool RareCall::IsWanted() const { return call_ != nullptr && call_->CheckIsWanted().ok(); }

base::StatusOr<std::shared_ptr<Call>> RareCall::TakeCall() {
  if (call_ == nullptr) return base::FailedPrecondition(path_ + " was answered before");
  return std::exchange(call_, nullptr);
}

base::Status RareCall::Reply(const std::string& response) {
  const auto call = TakeCall();
  if (!call.ok()) return call.status();
  Record(base::Code::kOk);
  call.value()->Reply(response);
  FreeRequest();
  return {};
}

base::Status RareCall::ReplyHttp(int status, std::string fields, std::string_view body) {
  const auto call = TakeCall();
  if (!call.ok()) return call.status();
  base::ReplyLimits limits;
  limits.budget = call.value()->run_context().budget;
  // A page may be long. It is the server's own text, and its client asked for nothing large.
  limits.use = base::ByteBudget::Use::kCall;
  auto copy = base::CopyReply(body, limits);
  if (copy.ok()) {
    auto answer = std::make_shared<HttpAnswer>();
    answer->status = status;
    answer->fields = std::move(fields);
    answer->body = std::move(copy.value());
    call.value()->ReplyHttp(std::move(answer));
  } else {
    call.value()->Fail(copy.status());
  }
  FreeRequest();
  return {};
}

base::Status RareCall::Fail(const base::Status& status) {
  const auto call = TakeCall();
  if (!call.ok()) return call.status();
  Record(status.code());
  call.value()->Fail(status);
  FreeRequest();
  return {};
}

// Frees what only the request needed, because Python may keep this object. Called after the answer
// is made, because the answer may be the request's own bytes.
void RareCall::FreeRequest() { request_ = {}; }

void RareCall::Record(base::Code code) {
  if (requests_ != nullptr) requests_->Record(code, watch_.End(base::MonotonicNs()));
}

void RareCallQueue::Put(std::unique_ptr<RareCall> call) {
  const std::unique_lock<std::mutex> lock(mutex_);
  if (is_closed_) return (void)call->Fail(ShuttingDown());
  if (waiting_.size() >= kMaxWaiting) {
    return (void)call->Fail(
        {base::Code::kResourceExhausted,
         std::to_string(kMaxWaiting) + " calls of rare methods wait; try again"});
  }
  waiting_.push_back(std::move(call));
  changed_.notify_one();
}

std::unique_ptr<RareCall> RareCallQueue::Take(int64_t timeout_ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                    [this] { return is_closed_ || !waiting_.empty(); });
  if (waiting_.empty()) return nullptr;
  std::unique_ptr<RareCall> call = std::move(waiting_.front());
  waiting_.pop_front();
  call->MarkTaken(base::MonotonicNs());
  return call;
}

bool RareCallQueue::is_closed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_closed_;
}

void RareCallQueue::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  for (const auto& call : waiting_) (void)call->Fail(ShuttingDown());
  waiting_.clear();
  changed_.notify_all();
}

}  // namespace millpond::rpc
