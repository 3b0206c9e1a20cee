// A request as it arrives: headers, prefix, parts, and what they take of the budget.

#include "native/rpc/incoming_request.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "tests/native/raw_http2.h"

namespace millpond::rpc {
namespace {

using testing::GrpcMessage;

struct Nobody final : CallHandler {
  void Handle(Call*) override {}
};

struct NobodyOfMany final : StreamingHandler {
  void HandleMessage(Call*) override {}
  void HandleEnd(Call*) override {}
};

std::string Deflated(const std::string& text) {
  uLongf size = compressBound(text.size());
  std::string bytes(size, '\0');
  EXPECT_EQ(compress(reinterpret_cast<Bytef*>(bytes.data()), &size,
                     reinterpret_cast<const Bytef*>(text.data()), text.size()),
            Z_OK);
  bytes.resize(size);
  return bytes;
}

std::string TextOf(ArrivedRequest* arrived) {
  EXPECT_TRUE(arrived->Read().ok());
  std::string text;
  arrived->bytes().AppendRest(&text);
  return text;
}

class IncomingRequestTest : public ::testing::Test {
 protected:
  IncomingRequest Begun(const std::string& encoding = "", bool takes_many = false) {
    IncomingRequest request{base::ByteBudget::Share(&budget_)};
    if (!encoding.empty()) request.headers()->Add("grpc-encoding", encoding);
    method_ = {"/test/m", &nobody_, 1 << 20};
    if (takes_many) method_.handler = &nobody_of_many_;
    MessageOptions options;
    options.budget = &budget_;
    EXPECT_TRUE(request.Begin(&method_, options, 7).ok());
    return request;
  }
  // Adds `bytes` in parts of 1 to `part_bytes_max` bytes, each in the thread's block, as reads do.
  base::Status AddInParts(IncomingRequest* request, const std::string& bytes,
                          size_t part_bytes_max) {
    for (size_t at = 0; at < bytes.size();) {
      size_t room = 0;
      char* const to = space_.Reserve(&room);
      const size_t part = std::min({room, bytes.size() - at, 1 + random_() % part_bytes_max});
      std::memcpy(to, bytes.data() + at, part);
      const base::Status added = request->AddData({to, part}, &space_, 8);
      if (!added.ok()) return added;
      space_.Use(part);
      at += part;
    }
    return {};
  }

  Nobody nobody_;
  NobodyOfMany nobody_of_many_;
  Method method_;
  base::ByteBudget budget_;
  ReceiveSpace space_;
  std::mt19937 random_{1};
};

// The message is the same however it is cut, and the budget has its bytes until it is freed.
TEST_F(IncomingRequestTest, MessageIsWhatWasSent) {
  for (const size_t size : {0, 1, 15, 16, 8'192, 8'193, 200'000}) {
    for (const size_t part_bytes_max : {1, 5'000, 100'000}) {
      std::string text(size, '\0');
      for (char& byte : text) byte = static_cast<char>(random_());
      for (const bool is_compressed : {false, true}) {
        IncomingRequest request = Begun("deflate");
        const std::string sent = is_compressed ? Deflated(text) : text;
        ASSERT_TRUE(AddInParts(&request, GrpcMessage(sent, is_compressed), part_bytes_max).ok());
        ASSERT_TRUE(request.End().ok());
        // The bytes that were read before are in use still: the next read must not change them.
        size_t room = 0;
        std::memset(space_.Reserve(&room), '!', room);
        ArrivedRequest arrived = request.Take();
        EXPECT_EQ(arrived.sent_bytes(), sent.size());
        EXPECT_GE(budget_.in_use_bytes(), static_cast<int64_t>(sent.size()));
        ASSERT_EQ(TextOf(&arrived), text);
        EXPECT_GE(budget_.in_use_bytes(), static_cast<int64_t>(text.size()));
        arrived.ForgetRead();
        ASSERT_EQ(TextOf(&arrived), text);
        const auto taken = arrived.TakeText();
        EXPECT_EQ(taken.value().text, text);
        EXPECT_EQ(arrived.bytes().remaining_bytes(), 0U);
      }
      EXPECT_EQ(budget_.in_use_bytes(), 0);
    }
  }
}

TEST_F(IncomingRequestTest, ManyMessagesComeOneByOne) {
  IncomingRequest request = Begun("deflate", /*takes_many=*/true);
  const std::string bytes = GrpcMessage("one") + GrpcMessage("") +
                            GrpcMessage(Deflated(std::string(10'000, 'x')), true) +
                            GrpcMessage(std::string(10'000, 'y'));
  ASSERT_TRUE(AddInParts(&request, bytes, 3).ok());
  ASSERT_TRUE(request.End().ok());
  for (const std::string& text :
       {std::string("one"), std::string(), std::string(10'000, 'x'), std::string(10'000, 'y')}) {
    ASSERT_TRUE(request.has_messages());
    EXPECT_EQ(request.TakeNext().text, text);
  }
  EXPECT_FALSE(request.has_messages());
  EXPECT_EQ(budget_.in_use_bytes(), 0);
}

TEST_F(IncomingRequestTest, TooManyMessagesThatNobodyReadsAreRefused) {
  IncomingRequest request = Begun("", /*takes_many=*/true);
  for (size_t i = 0; i < IncomingRequest::kUnreadMessagesMax; ++i) {
    ASSERT_TRUE(AddInParts(&request, GrpcMessage("x"), 10).ok());
  }
  EXPECT_EQ(AddInParts(&request, GrpcMessage("x"), 10).code(), base::Code::kResourceExhausted);
}

TEST_F(IncomingRequestTest, WrongRequestsHaveTheirCodes) {
  const auto code_of = [this](const std::string& bytes) {
    IncomingRequest request = Begun();
    const base::Status added = AddInParts(&request, bytes, 100);
    return added.ok() ? request.End().code() : added.code();
  };
  EXPECT_EQ(code_of(""), base::Code::kUnimplemented);
  EXPECT_EQ(code_of(GrpcMessage("x") + GrpcMessage("y")), base::Code::kUnimplemented);
  EXPECT_EQ(code_of(GrpcMessage("xy").substr(0, 6)), base::Code::kInternal);
  EXPECT_EQ(code_of("\x02" + GrpcMessage("x").substr(1)), base::Code::kInternal);
  EXPECT_EQ(code_of(std::string("\0\x00\x10\x00\x01", 5)), base::Code::kResourceExhausted);
}

TEST_F(IncomingRequestTest, BytesCountAsTheyComeAndNotAsAnnounced) {
  base::ByteBudget small(50'000);
  IncomingMessage message([&] {
    MessageOptions options;
    options.budget = &small;
    options.is_of_model = true;
    return options;
  }());
  const std::string bytes = GrpcMessage(std::string(100'000, 'x'));
  std::string_view rest = std::string_view(bytes).substr(0, 40'000);
  ASSERT_TRUE(message.Add(&rest, &space_).ok());
  EXPECT_EQ(small.in_use_bytes(), 40'000 - static_cast<int64_t>(kMessagePrefixBytes));
  rest = std::string_view(bytes).substr(40'000, 20'000);
  EXPECT_EQ(message.Add(&rest, &space_).code(), base::Code::kResourceExhausted);
}

TEST_F(IncomingRequestTest, PauseIsSeenUntilTheMessageIsComplete) {
  IncomingRequest request = Begun();
  EXPECT_TRUE(request.is_paused(8));
  EXPECT_TRUE(request.is_arriving(7));
  ASSERT_TRUE(AddInParts(&request, GrpcMessage("x"), 100).ok());
  EXPECT_TRUE(request.is_arriving(8));
  ASSERT_TRUE(request.End().ok());
  EXPECT_FALSE(request.is_arriving(0) || request.is_paused(1'000));
}

TEST_F(IncomingRequestTest, HeadersSayWhatTheCallIs) {
  RequestHeaders headers{base::ByteBudget::Share()};
  headers.Add(":method", "POST");
  headers.Add("content-type", "application/grpc+proto");
  EXPECT_TRUE(headers.is_post());
  EXPECT_EQ(headers.content_type(), "application/grpc+proto");
  headers.Add("grpc-timeout", "250m");
  EXPECT_EQ(headers.timeout_ns(), 250'000'000);
  headers.Add("x-key", "first");
  headers.Add("x-key", "second");
  EXPECT_EQ(headers.FindMetadata("x-key"), "first");
  EXPECT_EQ(headers.FindMetadata("first"), std::nullopt);
  headers.Add("grpc-timeout", "soon");
  EXPECT_EQ(headers.Check().code(), base::Code::kInvalidArgument);
  headers.Add(":method", "GET");
  EXPECT_FALSE(headers.is_post());
}

}  // namespace
}  // namespace millpond::rpc
