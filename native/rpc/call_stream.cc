#include "native/rpc/call_stream.h"

#include <algorithm>

namespace millpond::rpc {

void CallStream::OnHeader(std::string_view name, std::string_view value) {
  RequestHeaders* const headers = request_.headers();
  ServerShared* const shared = context_.shared;
  if (!headers->Add(name, value)) {
    shared->limit_counts.Add(ReachedLimit::kArrivingBytes);
    is_answered_ = true;
    context_.session->Reset(number_, ResetReason::kRefused);
  } else if (headers->bytes() > shared->limits.header_list_bytes_max) {
    shared->limit_counts.Add(ReachedLimit::kHeaderBytes);
    RefuseLongHeaders();
  }
}

void CallStream::CountHeaders() {
  account_.SetOpenBytes(std::max(request_.headers()->charged_bytes(), bytes_));
}

void CallStream::OnRequestEnd() {
  if (!request_.is_receiving()) return;
  const base::Status ended = request_.End();
  // From here on the admission counts it, or refuses it.
  if (request_.method()->is_of_model()) account()->SetOpenBytes(0);
  if (!ended.ok()) return Refuse(ended);
  MakeCall()->account()->MarkArrived();
  AddDue();
}

StreamCall* CallStream::MakeCall() {
  if (call_ == nullptr) {
    call_ =
        std::make_shared<StreamCall>(context_.carrier->shared_from_this(), &context_.shared->calls,
                                     number_, request_.Take(), std::move(account_));
  }
  return call_.get();
}

void CallStream::AddDue() {
  StreamCall* const call = MakeCall();
  if (context_.due.empty() || context_.due.back().get() != call) context_.due.push_back(call_);
}

void CallStream::DropRequest(base::Code code) {
  if (request_.method() == nullptr) return request_.headers()->Free();
  MakeCall()->RefuseArriving(code);
}

void CallStream::MarkAnswered() {
  is_answered_ = true;
  if (call_ != nullptr) call_->MarkAnswered();
  context_.answered.push_back(number_);
}

void CallStream::Close() {
  if (call_ != nullptr) call_->Close(context_.now_ns);
}

void CallStream::CountUnread() {
  if (account()->open_bytes() == 0) account()->SetOpenBytes(bytes_);
}

bool CallStream::IsReceiving(int64_t since_ns) const {
  return !is_answered_ && request_.is_arriving(since_ns);
}

}  // namespace millpond::rpc
