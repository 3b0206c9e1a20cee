#include "native/rpc/message_encoding.h"

#include <grpc/compression.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/native/raw_http2.h"
#include "tests/native/served_models.h"

// A function of gRPC's C core that its headers do not declare.
grpc_compression_algorithm grpc_call_test_only_get_compression_algorithm(grpc_call* call);

namespace millpond::rpc {
namespace {

using testing::kPredictPath;
using testing::ModelSpecMessage;
using testing::PredictMessage;
using testing::RawClient;

class MessageEncodingTest : public testing::ServedModels {
 protected:
  struct Exchange {
    RawClient::Reply reply;
    grpc_compression_algorithm reply_encoding;
  };

  // Sends a Predict with a tensor of `tensor_bytes` in `encoding`. Returns the reply and its
  // encoding.
  Exchange PredictIn(grpc_compression_algorithm encoding, size_t tensor_bytes = 100'000) {
    grpc::ClientContext context;
    context.set_compression_algorithm(encoding);
    tensor_.assign(tensor_bytes, 'a');
    Exchange exchange;
    exchange.reply = client_->Call(
        kPredictPath, PredictMessage(ModelSpecMessage("m"), {{"x", tensor_}}), &context);
    exchange.reply_encoding = grpc_call_test_only_get_compression_algorithm(context.c_call());
    return exchange;
  }

  void ExpectEncoding(const Exchange& exchange, grpc_compression_algorithm encoding) {
    ASSERT_TRUE(exchange.reply.status.ok()) << exchange.reply.status.error_message();
    const auto response = testing::ParsePredictResponse(exchange.reply.bytes);
    EXPECT_TRUE(response.outputs.at("x_back") == tensor_);
    EXPECT_EQ(exchange.reply_encoding, encoding);
  }

  std::string tensor_;
};

TEST_F(MessageEncodingTest, ARepliesEncodingIsItsRequests) {
  Start();
  for (const auto encoding : {GRPC_COMPRESS_NONE, GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP})
    ExpectEncoding(PredictIn(encoding), encoding);
}

TEST_F(MessageEncodingTest, ASmallReplyGoesAsItIs) {
  Start();
  ExpectEncoding(PredictIn(GRPC_COMPRESS_GZIP, 100), GRPC_COMPRESS_NONE);
}

TEST_F(MessageEncodingTest, NoneTakesCompressedRequestsAndNeverCompresses) {
  options_.reply_compression = ReplyCompression::kNone;
  Start();
  ExpectEncoding(PredictIn(GRPC_COMPRESS_GZIP), GRPC_COMPRESS_NONE);
}

TEST_F(MessageEncodingTest, OneEncodingIsUsedForAllRequests) {
  options_.reply_compression = ReplyCompression::kDeflate;
  Start();
  ExpectEncoding(PredictIn(GRPC_COMPRESS_NONE), GRPC_COMPRESS_DEFLATE);
  ExpectEncoding(PredictIn(GRPC_COMPRESS_GZIP), GRPC_COMPRESS_DEFLATE);
}

TEST_F(MessageEncodingTest, AnEncodingThatTheClientDoesNotAcceptIsNotUsed) {
  options_.reply_compression = ReplyCompression::kGzip;
  Start();
  grpc::ChannelArguments only_identity;
  only_identity.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  client_.emplace("127.0.0.1:" + std::to_string(server_->port()),
                  grpc::InsecureChannelCredentials(), only_identity);
  ExpectEncoding(PredictIn(GRPC_COMPRESS_NONE), GRPC_COMPRESS_NONE);
}

TEST_F(MessageEncodingTest, MessageGrowingBeyondTheLimitIsRefused) {
  options_.max_message_bytes = 1'000'000;
  Start();
  for (const auto encoding : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    const Exchange exchange = PredictIn(encoding, 1'000'001);
    EXPECT_EQ(exchange.reply.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_NE(exchange.reply.status.error_message().find("--max_request_bytes"), std::string::npos)
        << exchange.reply.status.error_message();
  }
  const auto code = static_cast<size_t>(base::Code::kResourceExhausted);
  EXPECT_EQ(UnmatchedRequests().count_by_code[code], 2);
  ExpectEncoding(PredictIn(GRPC_COMPRESS_GZIP, 400'000), GRPC_COMPRESS_GZIP);
}

// --- messages that gRPC's own client never sends ---

// Returns the headers of the server's answer to a call whose message is flagged as compressed by
// `encoding`.
std::string AnswerTo(const std::string& encoding, const std::string& message, int port) {
  testing::RawHttp2 connection(port);
  connection.Begin();
  connection.SendFrame(
      testing::kHeadersFrame, testing::kEndHeaders, 1,
      testing::GrpcHeaders(kPredictPath, testing::LiteralHeader("grpc-encoding", encoding)));
  connection.SendFrame(testing::kDataFrame, testing::kEndStream, 1,
                       testing::GrpcMessage(message, true));
  return connection.HeadersToTheEnd();
}

TEST_F(MessageEncodingTest, UnknownCompressionIsUnimplementedAndListsKnown) {
  Start();
  for (const char* const encoding : {"br", "snappy"}) {
    const std::string answer = AnswerTo(encoding, Request("m"), server_->port());
    EXPECT_NE(answer.find("is none of gzip and deflate"), std::string::npos) << encoding;
    EXPECT_NE(answer.find("grpc-accept-encoding"), std::string::npos) << encoding;
  }
  EXPECT_EQ(quick_.servable->run_count(), 0);
  const auto code = static_cast<size_t>(base::Code::kUnimplemented);
  EXPECT_EQ(UnmatchedRequests().count_by_code[code], 2);
}

TEST_F(MessageEncodingTest, CompressedFlagWithoutEncodingIsInternal) {
  Start();
  const std::string answer = AnswerTo("identity", Request("m"), server_->port());
  EXPECT_NE(answer.find("has no grpc-encoding"), std::string::npos);
  EXPECT_EQ(UnmatchedRequests().count_by_code[static_cast<size_t>(base::Code::kInternal)], 1);
}

TEST_F(MessageEncodingTest, AMessageThatDoesNotDecompressIsInternal) {
  Start();
  const std::string answer = AnswerTo("gzip", Request("m"), server_->port());
  EXPECT_NE(answer.find("does not decompress"), std::string::npos);
  EXPECT_EQ(UnmatchedRequests().count_by_code[static_cast<size_t>(base::Code::kInternal)], 1);
}

}  // namespace
}  // namespace millpond::rpc
