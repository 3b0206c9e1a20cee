#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "native/base/status.h"
#include "native/rpc/call_counts.h"
#include "native/rpc/incoming_request.h"
#include "native/rpc/stream.h"

namespace millpond::rpc {

// A stream whose request becomes a call. This class has what does not depend on the protocol: the
// request while it arrives, the call from then on, and the bytes that both count for. A protocol's
// class reads the headers, and frames the answer.
//
// Thread: as Stream.
class CallStream : public Stream {
 public:
  void OnHeader(std::string_view name, std::string_view value) final;
  void OnRequestEnd() final;
  void Close() final;
  void CountUnread() final;
  bool IsReceiving(int64_t since_ns) const final;

 protected:
  // Borrows `context`. `bytes` are those of Protocol::stream_bytes.
  CallStream(StreamContext* context, int32_t number, IncomingRequest request, CallAccount account,
             int64_t bytes)
      : context_(*context),
        number_(number),
        bytes_(bytes),
        request_(std::move(request)),
        account_(std::move(account)) {}

  // Ends a call whose request is still arriving, with an answer that says why.
  virtual void Refuse(const base::Status& status) = 0;
  // The same for headers that are too long.
  virtual void RefuseLongHeaders() = 0;

  StreamContext& context() const { return context_; }
  int32_t number() const { return number_; }
  const IncomingRequest& request() const { return request_; }
  IncomingRequest* mutable_request() { return &request_; }

  // All headers have come, and take these bytes from now on.
  void CountHeaders();
  // Returns the call, which is made at the first request for it.
  StreamCall* MakeCall();
  // Has the connection call StreamCall::Arrive.
  void AddDue();
  // Frees what has arrived, and records that it is refused with `code`.
  void DropRequest(base::Code code);
  // From here on the client's bytes are of no use. The answer follows.
  void MarkAnswered();

 private:
  CallAccount* account() { return call_ == nullptr ? &account_ : call_->account(); }

  StreamContext& context_;
  const int32_t number_;
  const int64_t bytes_;
  IncomingRequest request_;
  CallAccount account_;               // until the call has it
  std::shared_ptr<StreamCall> call_;  // null until it is needed
};

}  // namespace millpond::rpc
