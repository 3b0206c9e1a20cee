#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "native/base/status.h"
#include "native/rpc/call.h"
#include "native/servable/awaited_change.h"
#include "native/servable/batch_queue.h"

namespace millpond::rpc {

// A request to a model, as the threads see it that queue and run it.
//
// Thread: the one that reads or runs it: all but what follows. Any: Cancel, IsWanted. The watchdog:
// PeekModelName, between Read and the end of the request's turn; Refuse of a request that waits.
class RunnableCall : public Call {
 public:
  // Decompresses the message.
  void Read() { (void)mutable_arrived()->Read(); }
  using Call::Cancel;
  using Call::is_cancelled;
  // True if an answer is still waited for.
  bool IsWanted(int64_t now_ns) const {
    return !is_cancelled() && now_ns < run_context().deadline_ns;
  }
  // Returns the model that the request is for. Reads the message if it must.
  std::string ModelName();
  // Returns the same for a message that was read before.
  std::string PeekModelName() const { return handler().ModelNameOf(*this); }
  // Reads the keys by which a queue orders requests, if they have not been read yet. A compressed
  // message has no batch key, because reading that means decompressing the message.
  void PeekQueueKeys();
  ModelKey model_key() const { return model_key_; }
  // Reads the keys again if the name was no model. Returns true if it is one now.
  bool RenewModelKey() {
    model_key_ = kNoModelKey;
    PeekQueueKeys();
    return model_key_ != kNoSuchModelKey;
  }
  servable::BatchKey batch_key() const { return batch_key_; }
  bool is_compressed() const { return arrived().is_compressed(); }
  size_t message_bytes() const {
    return arrived().sent_bytes() / arrived().method().bytes_per_run_byte;
  }
  // Ends the call with `status`, without its handler, and tells the client when to try again.
  void Refuse(const base::Status& status);

  // Postpones the answer, as the last step of WaitingRequest::Prepare: the request has another turn
  // when `change` has come, when the client cancels, and once more before the time to wait for a
  // first version, or the client's deadline, is over. Returns false if it may not wait (longer).
  bool TryAwait(const servable::AwaitedChange& change);

 protected:
  using Call::Call;
  ~RunnableCall() = default;

  // Returns true if the message can be read. Otherwise ends the call with the reason.
  bool ReadOrEnd();
  void FreeRequest() { mutable_arrived()->Free(); }
  void RecordRefusal(base::Code code) const { arrived().method().RecordRefusal(*this, code); }

 private:
  friend class CallBeingAnswered;

  // The version that the request waits for, and for how long.
  struct Awaited {
    servable::AwaitedChange change;
    int64_t until_ns = 0;
  };

  ModelHandler& handler() const { return *std::get<ModelHandler*>(arrived().method().handler); }
  // Returns null if the call is answered.
  std::unique_ptr<servable::WaitingRequest> MakeRequest();
  // Frees the request. After TryAwait the request is kept, and waits for its version.
  void EndAnswering();

  std::optional<Awaited> awaited_;  // what the handler asked for in this turn
  servable::BatchKey batch_key_ = servable::kNoBatchKey;
  ModelKey model_key_ = kNoModelKey;
};

// A request while a thread answers it, which ends with the object.
//
// Thread: one, which answers the request.
class CallBeingAnswered final : public servable::WaitingRequest {
 public:
  explicit CallBeingAnswered(std::shared_ptr<RunnableCall> call) : call_(std::move(call)) {}
  ~CallBeingAnswered() override {
    steps_.reset();
    call_->EndAnswering();
  }
  CallBeingAnswered(const CallBeingAnswered&) = delete;
  CallBeingAnswered& operator=(const CallBeingAnswered&) = delete;

  servable::PreparedRun* Prepare() override {
    steps_ = call_->MakeRequest();
    return steps_ == nullptr ? nullptr : steps_->Prepare();
  }
  void Finish() override { steps_->Finish(); }
  void Send() override { steps_->Send(); }
  void Offer() override { steps_->Offer(); }

 private:
  const std::shared_ptr<RunnableCall> call_;
  std::unique_ptr<servable::WaitingRequest> steps_;
};

}  // namespace millpond::rpc
