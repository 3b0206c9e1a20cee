#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/rpc/call_counts.h"
#include "native/rpc/call_stream.h"
#include "native/rpc/outgoing_reply.h"

namespace millpond::rpc {

// One call of gRPC: the meaning of its headers, its messages, and its answer.
//
// Thread: as Stream.
class GrpcStream final : public CallStream {
 public:
  // Borrows `context`.
  GrpcStream(StreamContext* context, int32_t number, base::ByteBudget::Share charge,
             CallAccount account);

  void OnHeadersEnd() override;
  void OnData(std::string_view data) override;
  bool TakeMessage(base::ChargedText* message, bool* is_end) override;
  bool Send(std::shared_ptr<OutMessage> message, size_t waiting_max) override;
  void Answer(CallEnd end) override;
  void OnDataSent() override;
  bool EndIfPaused(int64_t since_ns) override;

 private:
  void Refuse(const base::Status& status) override;
  void RefuseLongHeaders() override;
  // Answers headers that are no call of gRPC.
  void RefuseHeaders(int http_status);
  void SubmitBody();

  OutgoingReply reply_;
  bool resumes_reading_ = false;  // TakeMessage waits for the client to read the reply
};

// gRPC over HTTP/2.
//
// Thread: as Protocol.
class GrpcProtocol final : public Protocol {
 public:
  std::string_view alpn() const override { return "\x02h2"; }
  int64_t stream_bytes() const override;
  std::unique_ptr<Session> MakeSession(const ServerShared& shared, StreamEvents* streams,
                                       SessionEvents* events) const override;
  std::unique_ptr<Stream> MakeStream(StreamContext* context, int32_t number,
                                     base::ByteBudget::Share charge,
                                     CallAccount account) const override;
};

}  // namespace millpond::rpc
