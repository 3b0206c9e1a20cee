#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/rpc/call.h"
#include "native/servable/batch_queue.h"

namespace millpond::rpc {

// A call, as the threads see it that queue and run it.
//
// Thread: the one that reads or runs it: all but what follows. Any: Cancel, IsWanted. The watchdog:
// PeekModelName, between Read and the end of the call's turn; Refuse of a call that waits.
class RunnableCall : public Call {
 public:
  // Decompresses the message.
  void Read() { (void)message_.Read(); }
  void Cancel(int64_t now_ns) { cancellation_.Cancel(now_ns); }
  // True if the client is gone; what waits for a version is answered then.
  bool is_cancelled() const { return cancellation_.is_cancelled(); }
  // True if an answer is still waited for.
  bool IsWanted(int64_t now_ns) const { return !is_cancelled() && now_ns < run_.deadline_ns; }
  // Returns the model that a request is for. Reads the message if it must.
  std::string ModelName();
  // The same for a message that was read.
  std::string PeekModelName() const { return method_->handler->ModelNameOf(*this); }
  // Reads the key of the batches that the request may join, if there are any batches. A compressed
  // message has none: it would have to be decompressed for it.
  void PeekBatchKey();
  servable::BatchKey batch_key() const { return batch_key_; }
  bool is_compressed() const { return message_.is_compressed(); }
  size_t message_bytes() const { return message_.bytes() / method_->bytes_per_run_byte; }
  // Instead of an answer by the handler: ends the call with `status`, and tells the client when to
  // try again.
  void Refuse(const base::Status& status);

 protected:
  using Call::Call;
  ~RunnableCall() = default;

  // Has the handler answer the call as a whole.
  void Handle();
  void RecordRefusal(base::Code code) const { method_->handler->RecordRefusal(*this, code); }
  void FreeRequest();  // the message and the headers

 private:
  friend class CallBeingAnswered;

  // Returns null if the call is answered.
  std::unique_ptr<servable::WaitingRequest> MakeRequest();
  // Frees the request, or puts it aside if its handler asked for that.
  void EndAnswering();
  // Returns the start of a message that is not read yet and compressed; "" of any other.
  std::string StartOfMessage() const;

  servable::BatchKey batch_key_ = servable::kNoBatchKey;
};

// A call while a thread answers it, which ends with the object.
//
// Thread: one, which answers the call.
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

 private:
  const std::shared_ptr<RunnableCall> call_;
  std::unique_ptr<servable::WaitingRequest> steps_;
};

}  // namespace millpond::rpc
