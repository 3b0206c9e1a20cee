#include "native/rpc/unknown_methods.h"

#include <atomic>
#include <string>

#include "native/base/status.h"
#include "native/rpc/completion_tag.h"

namespace millpond::rpc {

// One call, from the wait for it to the end of its answer. Frees itself.
class UnknownCall {
 public:
  UnknownCall(UnknownMethods* source, CallQueue* queue) : source_(source), queue_(queue) {
    queue_->AddCall();
  }
  UnknownCall(const UnknownCall&) = delete;
  UnknownCall& operator=(const UnknownCall&) = delete;

  void Wait() {
    source_->service_.RequestCall(&context_, &stream_, queue_->get(), queue_->get(),
                                  &received_tag_);
  }

 private:
  ~UnknownCall() = default;

  void OnReceived(bool ok) {
    // The server is stopping, and no other tag comes.
    if (!ok) return Delete();
    PollerPool::HandleThenWait(source_, queue_, [this] { Refuse(); });
    // Held until the next wait has begun: while the call counts, its queue is not shut down.
    Release();
  }

  void Refuse() {
    const base::Status status = base::WithShortMessage(
        {base::Code::kUnimplemented, "this server has no method " + context_.method()});
    stream_.Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, status.message()), &finished_tag_);
  }

  void OnFinished(bool) { Release(); }

  void Release() {
    if (hold_count_.fetch_sub(1) == 1) Delete();
  }

  void Delete() {
    CallQueue* const queue = queue_;
    delete this;
    queue->RemoveCall();
  }

  UnknownMethods* const source_;
  CallQueue* const queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  MemberTag<UnknownCall> received_tag_{this, &UnknownCall::OnReceived};
  MemberTag<UnknownCall> finished_tag_{this, &UnknownCall::OnFinished};
  // The poller that received the call, and its answer.
  std::atomic<int> hold_count_{2};
};

void UnknownMethods::WaitForCall(CallQueue* queue) {
  queue->AskUnless(phase_->is_stopping, [&] { (new UnknownCall(this, queue))->Wait(); });
}

}  // namespace millpond::rpc
