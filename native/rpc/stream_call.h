#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "native/base/status.h"
#include "native/rpc/call_counts.h"
#include "native/rpc/runnable_call.h"

namespace millpond::rpc {

// A call of any method, as its stream and its connection see it.
//
// Thread: Arrive: the one that has the connection's turn. All else: under the connection's lock.
class StreamCall final : public RunnableCall {
 public:
  // Takes what has arrived of a request: all of it, or a part if the call is only to be refused.
  StreamCall(std::shared_ptr<CallCarrier> carrier, const CallLimits* limits, int32_t stream,
             ArrivedRequest arrived, CallAccount account)
      : RunnableCall(std::move(carrier), limits, stream, std::move(arrived), std::move(account)) {}

  CallAccount* account() { return mutable_account(); }
  // Handles what has come: the request, or the next of many messages. Returns true for a request to
  // a model that was admitted: a thread that runs requests is to answer it (CallBeingAnswered).
  bool Arrive();
  // Records that the connection refuses the call with `code`, and frees the part of the request
  // that has come. The connection sends the answer after that.
  void RefuseArriving(base::Code code);
  void MarkAnswered() { (void)SetOver(); }
  // Ends the call, because nothing can be sent any more. Cancels a call that was not answered.
  void Close(int64_t now_ns);

 private:
  // Arrive for each kind of method.
  bool ArriveAt(CallHandler* handler);
  bool ArriveAt(StreamingHandler* handler);
  bool ArriveAt(ModelHandler* handler);
  base::Status Enter();
};

}  // namespace millpond::rpc
