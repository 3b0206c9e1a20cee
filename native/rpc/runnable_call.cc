#include "native/rpc/runnable_call.h"

#include <utility>

#include "native/base/clock.h"

namespace millpond::rpc {

// --- Before its turn ---

std::string RunnableCall::ModelName() {
  std::string name;
  mutable_arrived()->ShowingModelName([&] { name = PeekModelName(); });
  return name;
}

void RunnableCall::PeekQueueKeys() {
  if (model_key_ != kNoModelKey) return;
  if (is_compressed()) {
    model_key_ = handler().KeyOf(ModelName());
    return;
  }
  Read();
  const QueueKeys keys = handler().QueueKeysOf(*this);
  model_key_ = keys.model;
  if (limits().batches != nullptr && !limits().batches->is_empty()) batch_key_ = keys.batch;
}

void RunnableCall::Refuse(const base::Status& status) {
  CallEnd end;
  end.status = status;
  // gRPC's own retries wait for so long:
  // https://github.com/grpc/proposal/blob/master/A6-client-retries.md
  end.pushback_ms = limits().admission->NextPushbackMs();
  // The refusal counts for the model that the request names.
  mutable_arrived()->ShowingModelName([&] { RecordRefusal(status.code()); });
  FreeRequest();
  End(std::move(end));
}

// --- Its turn ---

std::unique_ptr<servable::WaitingRequest> RunnableCall::MakeRequest() {
  if (!ReadOrEnd()) return nullptr;
  return handler().MakeRequest(std::static_pointer_cast<RunnableCall>(shared_from_this()));
}

bool RunnableCall::ReadOrEnd() {
  const base::Status& read = mutable_arrived()->Read();
  if (read.ok()) return true;
  RecordRefusal(read.code());
  CallEnd end;
  end.status = read;
  end.names_encodings = read.code() == base::Code::kUnimplemented;
  End(std::move(end));
  return false;
}

bool RunnableCall::TryAwait(const servable::AwaitedChange& change) {
  const int64_t until_ns = servable::AwaitEndNs(received_ns(), limits().first_version_wait_ns,
                                                run_context().deadline_ns);
  if (!is_in_flight() || is_cancelled() || base::MonotonicNs() >= until_ns) return false;
  if (!limits().awaiting->TakeAwaitingPlace()) return false;
  awaited_ = Awaited{change, until_ns};
  return true;
}

void RunnableCall::EndAnswering() {
  // An answer may take long to read; the request is not needed for that.
  if (!awaited_) return FreeRequest();
  const Awaited awaited = *awaited_;
  awaited_.reset();
  mutable_arrived()->ForgetRead();
  // Its model is known only once it has a version.
  model_key_ = kNoModelKey;
  batch_key_ = servable::kNoBatchKey;
  limits().awaiting->Await(std::static_pointer_cast<RunnableCall>(shared_from_this()),
                           awaited.change, awaited.until_ns);
}

}  // namespace millpond::rpc
