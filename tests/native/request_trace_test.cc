// Spans of a real server's calls, and their fields.
#include "native/rpc/request_trace.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "tests/native/served_models.h"
#include "tests/native/serving_maps.h"
#include "tests/native/wire_message.h"

namespace millpond::rpc {
namespace {

using base::Code;
using metrics::Phase;
using metrics::PhaseTimes;
using metrics::RequestSpan;
using metrics::SpanBuffer;
using testing::kForeverNs;
using testing::kMetadataPath;
using testing::kPredictPath;
using testing::kRarePath;
using testing::ModelSpecMessage;
using testing::RawClient;
using testing::WireMessage;

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParentId[] = "00f067aa0ba902b7";

std::string Traceparent(const char* flags) {
  return std::string("00-") + kTraceId + "-" + kParentId + "-" + flags;
}

class TracedCalls : public testing::ServedModels {
 protected:
  TracedCalls() { options_.spans = spans_; }

  RawClient::Reply CallWith(const std::string& traceparent, const char* path,
                            const std::string& request) {
    grpc::ClientContext context;
    if (!traceparent.empty()) context.AddMetadata("traceparent", traceparent);
    context.AddMetadata("tracestate", "vendor=1");
    return client_->Call(path, request, &context);
  }
  // A span is offered after the reply has gone out.
  RequestSpan TakeOne() {
    std::vector<RequestSpan> taken;
    while (taken.empty()) {
      taken = spans_->Take(1);
      std::this_thread::yield();
    }
    return std::move(taken.front());
  }

  const std::shared_ptr<SpanBuffer> spans_ = std::make_shared<SpanBuffer>(SpanBuffer::Limits());
};

TEST_F(TracedCalls, SampledPredictReportsTraceVersionAndPhases) {
  Start();
  const std::string request = Request("m");
  const int64_t before_ns = base::MonotonicNs();
  const RawClient::Reply reply = CallWith(Traceparent("01"), kPredictPath, request);
  ASSERT_TRUE(reply.status.ok());
  const RequestSpan span = TakeOne();
  EXPECT_EQ(span.context.trace_id, kTraceId);
  EXPECT_EQ(span.context.parent_id, kParentId);
  EXPECT_EQ(span.context.state, "vendor=1");
  EXPECT_EQ(span.method, metrics::Method::kPredict);
  EXPECT_EQ(span.model, "m");
  EXPECT_EQ(span.version, 7);
  EXPECT_TRUE(span.status.ok());
  EXPECT_GE(span.received_ns, before_ns);
  EXPECT_LE(span.received_ns + span.times[Phase::kTotal], base::MonotonicNs());
  EXPECT_EQ(span.times[Phase::kQueue] + span.times[Phase::kDecode] + span.times[Phase::kRun] +
                span.times[Phase::kEncode],
            span.times[Phase::kTotal]);
  EXPECT_EQ(span.request_bytes, request.size());
  EXPECT_EQ(span.response_bytes, reply.bytes.size());
}

TEST_F(TracedCalls, UnsampledRequestsHaveNoSpan) {
  Start();
  for (const std::string& traceparent : {Traceparent("00"), std::string(), std::string("00-x")}) {
    ASSERT_TRUE(CallWith(traceparent, kPredictPath, Request("m")).status.ok());
  }
  // It follows the others on the same connection, perhaps on another thread: its span comes alone.
  ASSERT_TRUE(CallWith(Traceparent("01"), kPredictPath, Request("m", 7)).status.ok());
  EXPECT_EQ(TakeOne().context.trace_id, kTraceId);
  EXPECT_TRUE(spans_->Take(100).empty());
  EXPECT_EQ(spans_->dropped().over_rate, 0);
}

TEST_F(TracedCalls, SpanOfAFailureHasModelAndReason) {
  Start();
  EXPECT_FALSE(CallWith(Traceparent("01"), kPredictPath, Request("nobody")).status.ok());
  const RequestSpan unmatched = TakeOne();
  EXPECT_EQ(unmatched.model, "nobody");
  EXPECT_EQ(unmatched.version, std::nullopt);
  EXPECT_EQ(unmatched.status.code(), Code::kNotFound);
  EXPECT_NE(unmatched.status.message().find("nobody"), std::string::npos);
  EXPECT_EQ(unmatched.times[Phase::kRun], PhaseTimes::kNone);
  EXPECT_EQ(unmatched.response_bytes, 0U);

  EXPECT_FALSE(CallWith(Traceparent("01"), kPredictPath, "\xff").status.ok());
  const RequestSpan unread = TakeOne();
  EXPECT_EQ(unread.model, "");
  EXPECT_EQ(unread.status.code(), Code::kInvalidArgument);
}

TEST_F(TracedCalls, MetadataIsTracedToo) {
  Start();
  const std::string request =
      WireMessage().Message(1, ModelSpecMessage("m")).Bytes(2, "signature_def").bytes();
  ASSERT_TRUE(CallWith(Traceparent("01"), kMetadataPath, request).status.ok());
  const RequestSpan span = TakeOne();
  EXPECT_EQ(span.method, metrics::Method::kGetModelMetadata);
  EXPECT_EQ(span.model, "m");
  EXPECT_EQ(span.version, 7);
}

TEST_F(TracedCalls, AVersionGoesWhileItsSpanWaits) {
  Start();
  ASSERT_TRUE(CallWith(Traceparent("01"), kPredictPath, Request("m")).status.ok());
  ASSERT_TRUE(servable::RetireVersion(map_, "m", 7).ok());
  ASSERT_TRUE(quick_.entry->Quiesce(kForeverNs).value());
  ASSERT_TRUE(quick_.entry->Destroy().ok());
  EXPECT_EQ(TakeOne().model, "m");
}

TEST_F(TracedCalls, RareCallsHaveTheirTraceWithoutTracing) {
  options_.spans = nullptr;
  Start();
  grpc::ClientContext context;
  context.AddMetadata("traceparent", Traceparent("00"));
  auto traced = client_->Begin(kRarePath, "", &context);
  auto call = server_->TakeRareCall(kForeverNs);
  ASSERT_TRUE(call->trace_context());
  EXPECT_EQ(call->trace_context()->trace_id, kTraceId);
  EXPECT_FALSE(call->trace_context()->is_sampled);
  ASSERT_TRUE(call->Reply("").ok());
  EXPECT_TRUE(traced.get().status.ok());  // it uses the context until then
  auto plain = client_->Begin(kRarePath, "");
  call = server_->TakeRareCall(kForeverNs);
  EXPECT_FALSE(call->trace_context());
  ASSERT_TRUE(call->Reply("").ok());
  EXPECT_TRUE(plain.get().status.ok());
  EXPECT_TRUE(CallWith(Traceparent("01"), kPredictPath, Request("m")).status.ok());
  EXPECT_TRUE(spans_->Take(100).empty());
}

}  // namespace
}  // namespace millpond::rpc
