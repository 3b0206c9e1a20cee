// The bytes of requests of all methods of a real server: counted, bounded and released.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/byte_budget.h"
#include "tests/native/served_models.h"

namespace millpond::rpc {
namespace {

using testing::kCheckPath;
using testing::kForeverNs;
using testing::kPredictPath;
using testing::kRarePath;
using testing::RawClient;

constexpr int64_t kMib = 1 << 20;

class RequestBytesOfCallsTest : public testing::ServedModels {
 protected:
  void StartWith(int64_t budget_bytes) {
    options_.budget = std::make_shared<base::ByteBudget>(budget_bytes);
    Start();
  }

  std::future<RawClient::Reply> BeginRare(size_t bytes) {
    return client_->Begin(kRarePath, std::string(bytes, 'x'));
  }
  std::unique_ptr<RareCall> Take() { return server_->TakeRareCall(kForeverNs); }

  RawClient::Reply CallZipped(const char* path, size_t bytes) {
    grpc::ClientContext context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return client_->Call(path, std::string(bytes, '\0'), &context);
  }

  void ExpectRefused(const RawClient::Reply& reply, const std::string& reason) {
    EXPECT_EQ(reply.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_NE(reply.status.error_message().find(reason), std::string::npos)
        << reply.status.error_message();
  }

  // Connections and calls take little beside the messages.
  void ExpectMessageBytes(int64_t bytes) {
    EXPECT_GE(options_.budget->in_use_bytes(), bytes);
    EXPECT_LT(options_.budget->in_use_bytes(), bytes + kMib / 2);
  }
  // With the client's connection.
  void ExpectAllBytesBack() {
    client_.reset();
    while (options_.budget->in_use_bytes() > 0) std::this_thread::yield();
  }

  int64_t RareCount(base::Code code) const {
    return statistics_->MethodWithoutModel("GetModelStatus")
        ->Summary()
        .count_by_code[static_cast<size_t>(code)];
  }
};

TEST_F(RequestBytesOfCallsTest, ARareCallCountsOnceUntilItIsAnswered) {
  StartWith(8 * kMib);
  auto reply = BeginRare(2 * kMib);
  const auto call = Take();
  EXPECT_EQ(call->request().size(), 2 * kMib);
  ExpectMessageBytes(2 * kMib);
  ASSERT_TRUE(call->Reply("").ok());
  EXPECT_TRUE(reply.get().status.ok());
  ExpectAllBytesBack();
}

TEST_F(RequestBytesOfCallsTest, RareCallsThatWaitStayWithinTheBudget) {
  // With room for the connection and the calls themselves.
  StartWith(8 * kMib + kMib / 2);
  // A request takes twice its bytes while it is copied.
  std::vector<std::future<RawClient::Reply>> replies;
  std::vector<std::unique_ptr<RareCall>> calls;
  for (int i = 0; i < 3; ++i) {
    replies.push_back(BeginRare(2 * kMib));
    calls.push_back(Take());
  }
  for (int i = 0; i < 5; ++i) ExpectRefused(BeginRare(3 * kMib).get(), "--request_memory_bytes");
  ExpectMessageBytes(6 * kMib);
  EXPECT_EQ(RareCount(base::Code::kResourceExhausted), 5);
  for (auto& call : calls) EXPECT_TRUE(call->Reply("").ok());
  for (auto& reply : replies) EXPECT_TRUE(reply.get().status.ok());
  ExpectAllBytesBack();
}

TEST_F(RequestBytesOfCallsTest, ARareCallThatIsTooLongIsRefused) {
  StartWith(1024 * kMib);
  ExpectRefused(BeginRare(4 * kMib + 1).get(), "4194304");
  ExpectRefused(CallZipped(kRarePath, 4 * kMib + 1), "4194304");
  EXPECT_EQ(RareCount(base::Code::kResourceExhausted), 2);
  auto reply = BeginRare(4 * kMib);
  ASSERT_TRUE(Take()->Reply("").ok());
  EXPECT_TRUE(reply.get().status.ok());
  ExpectAllBytesBack();
}

TEST_F(RequestBytesOfCallsTest, ADecompressedRareCallCountsToo) {
  StartWith(3 * kMib);
  ExpectRefused(CallZipped(kRarePath, 4 * kMib), "--request_memory_bytes");
  ExpectAllBytesBack();
}

TEST_F(RequestBytesOfCallsTest, AMethodMayHaveALimitOfItsOwn) {
  options_.rare_message_bytes_max = {{kRarePath, 5 * kMib}};
  StartWith(1024 * kMib);
  auto reply = BeginRare(5 * kMib);
  ASSERT_TRUE(Take()->Reply("").ok());
  EXPECT_TRUE(reply.get().status.ok());
  ExpectRefused(BeginRare(5 * kMib + 1).get(), "5242880");
}

TEST_F(RequestBytesOfCallsTest, AHealthCheckTakesNoLongMessage) {
  StartWith(1024 * kMib);
  ExpectRefused(client_->Call(kCheckPath, std::string(kMib, 'x')), "4096");
  ExpectRefused(CallZipped(kCheckPath, kMib), "4096");
}

TEST_F(RequestBytesOfCallsTest, ShortQuestionsAreAnsweredWithoutMemoryLeft) {
  StartWith(0);
  server_->SetHealth("", true);
  ExpectRefused(client_->Call(kPredictPath, Request("m")), "--request_memory_bytes");
  EXPECT_TRUE(client_->Call(kCheckPath, "").status.ok());
  auto reply = BeginRare(1000);
  ASSERT_TRUE(Take()->Reply("").ok());
  EXPECT_TRUE(reply.get().status.ok());
  EXPECT_EQ(options_.budget->refused_count(), 1);
}

}  // namespace
}  // namespace millpond::rpc
