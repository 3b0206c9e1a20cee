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
#include "native/rpc/call_stream.h"
#include "native/rpc/http_answer.h"
#include "native/rpc/http_service.h"
#include "native/rpc/http_session.h"
#include "native/rpc/outgoing_reply.h"

namespace millpond::rpc {

// One request over HTTP/1.1 or HTTP/2: the meaning of its headers, its body, and its answer.
//
// Thread: as Stream.
class HttpStream final : public CallStream {
 public:
  // Borrows the service and the context.
  HttpStream(const HttpService& service, StreamContext* context, int32_t number,
             base::ByteBudget::Share charge, CallAccount account);

  void OnHeadersEnd() override;
  void OnData(std::string_view data) override;
  void Answer(CallEnd end) override;
  void OnDataSent() override { reply_.NoteSent(context().now_ns); }
  bool EndIfPaused(int64_t since_ns) override;
  std::optional<double> Pace() const override;
  void GiveUp() override;

 private:
  void Refuse(const base::Status& status) override { RefuseWith(status, {}); }
  void RefuseLongHeaders() override;
  // Answers with `http_status`, or with that of the code.
  void RefuseWith(const base::Status& status, std::optional<int> http_status);
  // These return false once they have refused the request.
  bool CheckTarget();
  bool CheckHost();
  bool CheckLength(const Method& method);
  void Submit();

  const HttpService& service_;
  const int64_t begin_ns_;
  HttpReply reply_;
  int64_t body_bytes_ = 0;  // received so far
  bool is_head_ = false;    // its answer has no body
};

// HTTP/1.1 and HTTP/2, for the requests that `service` answers.
//
// Thread: as Protocol.
class HttpProtocol final : public Protocol {
 public:
  // Borrows the service.
  HttpProtocol(const HttpService* service, const Http1Limits& limits)
      : service_(*service), limits_(limits) {}

  std::string_view alpn() const override { return kHttpAlpn; }
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
