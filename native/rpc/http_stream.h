#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/rpc/call_counts.h"
#include "native/rpc/http_answer.h"
#include "native/rpc/http_service.h"
#include "native/rpc/incoming_request.h"
#include "native/rpc/outgoing_reply.h"
#include "native/rpc/stream.h"

namespace millpond::rpc {

// One request over HTTP, until its answer has gone.
//
// Thread: as Stream.
class HttpStream final : public Stream {
 public:
  // Borrows both.
  HttpStream(const HttpService& service, StreamContext* context, int32_t number,
             base::ByteBudget::Share charge, CallAccount account);

  void OnHeader(std::string_view name, std::string_view value) override;
  void OnHeadersEnd() override;
  void OnData(std::string_view data) override;
  void OnRequestEnd() override;
  // A request over HTTP has one body, and one answer.
  bool TakeMessage(base::ChargedText*, bool*) override { return false; }
  bool Send(std::shared_ptr<OutMessage>, size_t) override { return false; }
  void Answer(CallEnd end) override;
  void OnDataSent() override { reply_.NoteSent(context_.now_ns); }
  void Close() override;
  void CountUnread() override;
  bool IsReceiving(int64_t since_ns) const override;
  bool EndIfPaused(int64_t since_ns) override;
  std::optional<double> Pace() const override;
  void GiveUp() override;

 private:
  CallAccount* account() { return call_ == nullptr ? &account_ : call_->account(); }
  StreamCall* MakeCall();
  bool CheckHost();
  bool CheckLength(const Method& method);
  void Refuse(const base::Status& status, int http_status);
  void SetAnswered();

  const HttpService& service_;
  StreamContext& context_;
  const int32_t number_;
  const int64_t begin_ns_;
  IncomingRequest request_;
  CallAccount account_;               // until the call has it
  std::shared_ptr<StreamCall> call_;  // once its request has come, or is refused
  HttpReply reply_;
  int64_t body_bytes_ = 0;  // that have come
};

// HTTP/1.1, for the requests that `service` answers.
//
// Thread: as Protocol.
class HttpProtocol final : public Protocol {
 public:
  // Borrows the service.
  HttpProtocol(const HttpService* service, const Http1Limits& limits)
      : service_(*service), limits_(limits) {}

  int64_t stream_bytes() const override;
  std::unique_ptr<Session> MakeSession(const ServerShared& shared, StreamEvents* streams,
                                       SessionEvents* events) const override;
  std::unique_ptr<Stream> MakeStream(StreamContext* context, int32_t number,
                                     base::ByteBudget::Share charge,
                                     CallAccount account) const override;

 private:
  const HttpService& service_;
  const Http1Limits limits_;
};

}  // namespace millpond::rpc
