#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/rpc/call_counts.h"
#include "native/rpc/incoming_request.h"
#include "native/rpc/outgoing_reply.h"
#include "native/rpc/stream.h"

namespace millpond::rpc {

// One call of gRPC: its request until it has arrived, and its answer.
//
// Thread: as Stream.
class GrpcStream final : public Stream {
 public:
  // Borrows `context`.
  GrpcStream(StreamContext* context, int32_t number, base::ByteBudget::Share charge,
             CallAccount account)
      : context_(*context),
        number_(number),
        request_(std::move(charge)),
        account_(std::move(account)) {}

  void OnHeader(std::string_view name, std::string_view value) override;
  void OnHeadersEnd() override;
  void OnData(std::string_view data) override;
  void OnRequestEnd() override;
  bool TakeMessage(base::ChargedText* message, bool* is_end) override;
  bool Send(std::shared_ptr<OutMessage> message, size_t waiting_max) override;
  void Answer(CallEnd end) override;
  void OnDataSent() override;
  void Close() override;
  void CountUnread() override;
  bool IsReceiving(int64_t since_ns) const override;
  bool EndIfPaused(int64_t since_ns) override;

 private:
  CallAccount* account() { return call_ == nullptr ? &account_ : call_->account(); }
  StreamCall* MakeCall();
  void AddDue(StreamCall* call);
  // These end a call whose request is still arriving.
  void Refuse(const base::Status& status);
  void RefuseHeaders(int http_status);
  void SubmitBody();

  StreamContext& context_;
  const int32_t number_;
  IncomingRequest request_;
  CallAccount account_;               // until the call has it
  std::shared_ptr<StreamCall> call_;  // once its request, or the first of many messages, has come
  OutgoingReply reply_;
  bool resumes_reading_ = false;  // TakeMessage waits for the client to read the reply
};

// gRPC over HTTP/2.
//
// Thread: as Protocol.
class GrpcProtocol final : public Protocol {
 public:
  int64_t stream_bytes() const override;
  std::unique_ptr<Session> MakeSession(const ServerShared& shared, StreamEvents* streams,
                                       SessionEvents* events) const override;
  std::unique_ptr<Stream> MakeStream(StreamContext* context, int32_t number,
                                     base::ByteBudget::Share charge,
                                     CallAccount account) const override;
};

}  // namespace millpond::rpc
