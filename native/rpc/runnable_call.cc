#include "native/rpc/runnable_call.h"

#include <utility>

#include "native/base/share_scope.h"

namespace millpond::rpc {
namespace {

// A model's name and what stands before it in a message.
constexpr size_t kModelNameBytes = 1024;

}  // namespace

// --- Before its turn ---

// The name stands at the start of a message, as clients write it.
std::string RunnableCall::StartOfMessage() const {
  if (message_.is_read() || !message_.is_compressed()) return "";
  return message_.StartOf(kModelNameBytes);
}

std::string RunnableCall::ModelName() {
  if (message_.is_read() || !message_.is_compressed()) {
    Read();
    return PeekModelName();
  }
  const std::string start = StartOfMessage();
  shown_ = start;
  std::string name = PeekModelName();
  shown_.reset();
  return name;
}

void RunnableCall::PeekBatchKey() {
  if (is_compressed() || limits_->batches == nullptr || limits_->batches->is_empty()) return;
  Read();
  batch_key_ = method_->handler->BatchKeyOf(*this);
}

void RunnableCall::Refuse(const base::Status& status) {
  CallEnd end;
  end.status = status;
  // gRPC's own retries wait for so long:
  // https://github.com/grpc/proposal/blob/master/A6-client-retries.md
  end.pushback_ms = limits_->admission->NextPushbackMs();
  // The refusal counts for the model that the request names.
  const std::string start = StartOfMessage();
  if (start.empty()) {
    Read();
  } else {
    shown_ = start;
  }
  RecordRefusal(status.code());
  shown_.reset();
  FreeRequest();
  End(std::move(end));
}

// --- Its turn ---

std::unique_ptr<servable::WaitingRequest> RunnableCall::MakeRequest() {
  auto request = message_.Read().ok() ? method_->handler->MakeRequest(shared_from_this()) : nullptr;
  if (request == nullptr) Handle();
  return request;
}

void RunnableCall::Handle() {
  const base::Status& read = message_.Read();
  if (read.ok()) {
    base::ByteBudget::Share decoded(limits_->budget.get());
    const base::ShareScope share_scope(&decoded, run_.reply_limits());
    return method_->handler->Handle(this);
  }
  RecordRefusal(read.code());
  CallEnd end;
  end.status = read;
  end.names_encodings = read.code() == base::Code::kUnimplemented;
  End(std::move(end));
}

void RunnableCall::EndAnswering() {
  // An answer may take long to read; the request is not needed for that.
  if (!awaited_) return FreeRequest();
  const Awaited awaited = *awaited_;
  awaited_.reset();
  message_.ForgetRead();
  limits_->awaiting->Await(std::static_pointer_cast<RunnableCall>(shared_from_this()),
                           awaited.change, awaited.until_ns);
}

void RunnableCall::FreeRequest() {
  message_.Free();
  headers_.Free();
}

}  // namespace millpond::rpc
