#include "native/rpc/reflection_service.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/native/served_models.h"
#include "tests/native/threads.h"

namespace millpond::rpc {
namespace {

using testing::kForeverNs;
using testing::RawClient;
using testing::WireMessage;

constexpr char kV1Path[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
constexpr char kV1AlphaPath[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

ReflectionTable Table() {
  ReflectionTable table;
  table.services = "the services";
  table.files = {{"a.proto", "the file a"}, {"b.proto", "the file b"}};
  table.symbols = {{"pkg.A", "a.proto"}, {"pkg.B", "b.proto"}};
  table.extensions = {{"pkg.A", {{7, "b.proto"}, {1000, "a.proto"}}}};
  return table;
}

WireMessage Ask(uint32_t field, const std::string& name) {
  return WireMessage().Bytes(field, name);
}

WireMessage Extension(const std::string& type, uint64_t number) {
  return WireMessage().Message(5, WireMessage().Bytes(1, type).Varint(2, number));
}

// Returns the whole response to `request`, which has no host.
std::string Response(const WireMessage& request, uint32_t field, const std::string& body) {
  return WireMessage().Bytes(1, "").Bytes(2, request.bytes()).Bytes(field, body).bytes();
}

std::string ErrorBody(int code, const std::string& message) {
  return WireMessage().Varint(1, code).Bytes(2, message).bytes();
}

std::string Answer(const std::string& request) {
  const std::string_view segment = request;
  const auto answer = AnswerReflection(Table(), {&segment, 1});
  return answer.ok() ? answer.value() : answer.status().message();
}

std::string AnswerTo(const WireMessage& request) { return Answer(request.bytes()); }

TEST(AnswerReflectionTest, EachQuestionHasItsAnswer) {
  EXPECT_EQ(AnswerTo(Ask(7, "*")), Response(Ask(7, "*"), 6, "the services"));
  EXPECT_EQ(AnswerTo(Ask(3, "b.proto")), Response(Ask(3, "b.proto"), 4, "the file b"));
  EXPECT_EQ(AnswerTo(Ask(4, "pkg.A")), Response(Ask(4, "pkg.A"), 4, "the file a"));
  EXPECT_EQ(AnswerTo(Extension("pkg.A", 7)), Response(Extension("pkg.A", 7), 4, "the file b"));
  EXPECT_EQ(AnswerTo(Ask(6, "pkg.A")),
            Response(Ask(6, "pkg.A"), 5,
                     WireMessage().Bytes(1, "pkg.A").Varint(2, 7).Varint(2, 1000).bytes()));
  EXPECT_EQ(AnswerTo(Ask(6, "pkg.B")),
            Response(Ask(6, "pkg.B"), 5, WireMessage().Bytes(1, "pkg.B").bytes()));
}

TEST(AnswerReflectionTest, UnknownNamesAreAnswered) {
  const auto expect_not_found = [](const WireMessage& request, const std::string& what) {
    EXPECT_EQ(AnswerTo(request), Response(request, 7, ErrorBody(5, "the server has no " + what)));
  };
  expect_not_found(Ask(3, "c.proto"), "file 'c.proto'");
  expect_not_found(Ask(4, "pkg.C"), "symbol 'pkg.C'");
  expect_not_found(Extension("pkg.A", 8), "extension 8 of 'pkg.A'");
  expect_not_found(Extension("pkg.B", 7), "extension 7 of 'pkg.B'");
  expect_not_found(Ask(6, "pkg.C"), "message 'pkg.C'");
  const WireMessage nothing;
  EXPECT_EQ(AnswerTo(nothing),
            Response(nothing, 7, ErrorBody(12, "the request asks for nothing that is known here")));
}

TEST(AnswerReflectionTest, TheHostIsSentBackAndTheLastQuestionCounts) {
  const WireMessage request =
      WireMessage().Bytes(1, "host:1").Bytes(4, "pkg.A").Varint(99, 1).Bytes(3, "b.proto");
  EXPECT_EQ(
      AnswerTo(request),
      WireMessage().Bytes(1, "host:1").Bytes(2, request.bytes()).Bytes(4, "the file b").bytes());
}

TEST(AnswerReflectionTest, OtherBytesAreInvalid) {
  for (const std::string& bytes : {std::string("\xff"), std::string("\x1a\x09short"),
                                   std::string("\x2a\x02\x0a\x07"), std::string("\x22\x01\xff")}) {
    EXPECT_NE(Answer(bytes).find("are no grpc.reflection.v1.ServerReflectionRequest"),
              std::string::npos)
        << Answer(bytes);
  }
}

// One call of ServerReflectionInfo.
class Dialogue {
 public:
  explicit Dialogue(const RawClient& client, const char* path = kV1Path,
                    grpc_compression_algorithm encoding = GRPC_COMPRESS_NONE) {
    context_.set_compression_algorithm(encoding);
    stream_ = client.BeginWithoutMessage(path, &context_);
  }

  // Returns the answer, or "" if the stream has ended.
  std::string Ask(const std::string& request) {
    grpc::ByteBuffer answer;
    if (!stream_->Write(testing::ToByteBuffer(request))) return "";
    return stream_->Read(&answer) ? testing::ToString(answer) : "";
  }
  grpc::Status End() {
    stream_->WritesDone();
    return stream_->Finish();
  }
  // Returns the status with which the server ends the call.
  grpc::Status WaitForEnd() {
    grpc::ByteBuffer none;
    EXPECT_FALSE(stream_->Read(&none));
    return stream_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  RawClient::UnsentCall stream_;
};

class ReflectionTest : public testing::ServedModels {
 protected:
  void SetUp() override {
    options_.reflection = std::make_shared<ReflectionTable>(Table());
    Start();
  }
};

TEST_F(ReflectionTest, AStreamAnswersOneQuestionAfterTheOther) {
  for (const char* const path : {kV1Path, kV1AlphaPath}) {
    Dialogue dialogue(*client_, path);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(dialogue.Ask(Ask(7, "").bytes()), Response(Ask(7, ""), 6, "the services"));
      EXPECT_EQ(dialogue.Ask(Ask(4, "pkg.B").bytes()), Response(Ask(4, "pkg.B"), 4, "the file b"));
    }
    EXPECT_TRUE(dialogue.End().ok());
  }
}

TEST_F(ReflectionTest, CompressedQuestionsAndPlainOnesMayFollowEachOther) {
  Dialogue dialogue(*client_, kV1Path, GRPC_COMPRESS_GZIP);
  const WireMessage compressed = Ask(4, "pkg.B").Bytes(99, std::string(10'000, 'a'));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(dialogue.Ask(compressed.bytes()), Response(compressed, 4, "the file b"));
    // gRPC sends a message uncompressed if compression does not shorten it.
    EXPECT_EQ(dialogue.Ask(Ask(7, "").bytes()), Response(Ask(7, ""), 6, "the services"));
  }
  EXPECT_TRUE(dialogue.End().ok());
}

TEST_F(ReflectionTest, OtherBytesEndTheStreamAsInvalid) {
  Dialogue dialogue(*client_);
  EXPECT_EQ(dialogue.Ask("\xff"), "");
  EXPECT_EQ(dialogue.WaitForEnd().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ReflectionTest, AnOpenStreamDoesNotDelayShutdown) {
  Dialogue silent(*client_);
  Dialogue asking(*client_);
  EXPECT_NE(asking.Ask(Ask(7, "").bytes()), "");
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
  EXPECT_EQ(asking.WaitForEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ReflectionTest, StreamsThatComeAndGoLeaveTheServerWhole) {
  testing::RunTogether(4, [&](int thread) {
    for (int i = 0; i < 100; ++i) {
      Dialogue dialogue(*client_, thread % 2 == 0 ? kV1Path : kV1AlphaPath);
      if (i % 3 != 0) {
        EXPECT_NE(dialogue.Ask(Ask(7, "").bytes()), "");
      }
      if (i % 2 == 0) dialogue.Cancel();
      (void)dialogue.End();
    }
  });
  Dialogue dialogue(*client_);
  EXPECT_NE(dialogue.Ask(Ask(7, "").bytes()), "");
  EXPECT_TRUE(dialogue.End().ok());
}

using ServerWithoutReflectionTest = testing::ServedModels;

TEST_F(ServerWithoutReflectionTest, IsUnimplemented) {
  Start();
  Dialogue dialogue(*client_);
  EXPECT_EQ(dialogue.Ask(Ask(7, "").bytes()), "");
  EXPECT_EQ(dialogue.WaitForEnd().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace millpond::rpc
