#include "native/rpc/health_service.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/native/served_models.h"
#include "tests/native/threads.h"

namespace millpond::rpc {
namespace {

using testing::kCheckPath;
using testing::kForeverNs;
using testing::kWatchPath;
using testing::RawClient;
using testing::WireMessage;

std::string HealthRequest(const std::string& service) {
  return WireMessage().Bytes(1, service).bytes();
}

std::string HealthReply(HealthStatus status) {
  return WireMessage().Varint(1, static_cast<uint64_t>(status)).bytes();
}

class HealthTest : public testing::ServedModels {
 protected:
  void SetUp() override { Start(); }

  RawClient::Reply Check(const std::string& service) {
    return client_->Call(kCheckPath, HealthRequest(service));
  }
  void ExpectCheck(const std::string& service, HealthStatus status) {
    const RawClient::Reply reply = Check(service);
    EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
    EXPECT_EQ(reply.bytes, HealthReply(status));
  }
};

// A Watch of one service.
class Watch {
 public:
  Watch(const RawClient& client, const std::string& request)
      : stream_(client.Watch(kWatchPath, request, &context_)) {}

  // Returns the next status as its number on the wire, or "" at the end.
  std::string Next() {
    grpc::ByteBuffer message;
    return stream_->Read(&message) ? testing::ToString(message) : "";
  }
  grpc::Status Finish() { return stream_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  RawClient::Stream stream_;
};

TEST_F(HealthTest, CheckReturnsTheStatusOfServerOrModel) {
  server_->SetHealth("", true);
  server_->SetHealth("m", false);
  ExpectCheck("", HealthStatus::kServing);
  ExpectCheck("m", HealthStatus::kNotServing);
  server_->SetHealth("m", true);
  ExpectCheck("m", HealthStatus::kServing);
}

TEST_F(HealthTest, EmptyRequestMeansTheServer) {
  server_->SetHealth("", true);
  EXPECT_EQ(client_->Call(kCheckPath, "").bytes, HealthReply(HealthStatus::kServing));
}

TEST_F(HealthTest, CheckOfAnUnknownOrRemovedServiceIsNotFound) {
  EXPECT_EQ(Check("m").code(), grpc::StatusCode::NOT_FOUND);
  server_->SetHealth("m", true);
  server_->RemoveHealth("m");
  EXPECT_EQ(Check("m").code(), grpc::StatusCode::NOT_FOUND);
  server_->RemoveHealth("m");
}

TEST_F(HealthTest, OtherBytesAreInvalidInCheckAndInWatch) {
  EXPECT_EQ(client_->Call(kCheckPath, "\xff").code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Check("\xff").code(), grpc::StatusCode::INVALID_ARGUMENT);
  Watch watch(*client_, "\xff");
  EXPECT_EQ(watch.Next(), "");
  EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(HealthTest, WatchSendsTheStatusAndEachChange) {
  server_->SetHealth("m", false);
  Watch watch(*client_, HealthRequest("m"));
  EXPECT_EQ(watch.Next(), HealthReply(HealthStatus::kNotServing));
  server_->SetHealth("m", false);  // no change, so no message
  server_->SetHealth("other", true);
  server_->SetHealth("m", true);
  EXPECT_EQ(watch.Next(), HealthReply(HealthStatus::kServing));
  server_->RemoveHealth("m");
  EXPECT_EQ(watch.Next(), HealthReply(HealthStatus::kServiceUnknown));
  server_->SetHealth("m", true);
  EXPECT_EQ(watch.Next(), HealthReply(HealthStatus::kServing));
  watch.Cancel();
  EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(HealthTest, WatchOfAnUnknownServiceWaitsForIt) {
  Watch watch(*client_, HealthRequest("later"));
  EXPECT_EQ(watch.Next(), HealthReply(HealthStatus::kServiceUnknown));
  server_->SetHealth("later", true);
  EXPECT_EQ(watch.Next(), HealthReply(HealthStatus::kServing));
}

TEST_F(HealthTest, ManyWatchersHearTheLastStatus) {
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < 20; ++i) {
    watches.push_back(std::make_unique<Watch>(*client_, HealthRequest("m")));
    EXPECT_EQ(watches.back()->Next(), HealthReply(HealthStatus::kServiceUnknown));
  }
  for (int change = 0; change < 50; ++change) server_->SetHealth("m", change % 2 == 1);
  server_->SetHealth("m", true);
  server_->RemoveHealth("other");
  for (auto& watch : watches) {
    // Intermediate changes may be skipped; the last change is always sent.
    std::string last;
    do {
      last = watch->Next();
      ASSERT_NE(last, "");
    } while (last != HealthReply(HealthStatus::kServing));
  }
}

TEST_F(HealthTest, WatchersThatComeAndGoLeaveTheServerWhole) {
  server_->SetHealth("m", true);
  testing::RunTogether(4, [&](int thread) {
    for (int i = 0; i < 100; ++i) {
      if (thread == 0) {
        server_->SetHealth("m", i % 2 == 0);
        continue;
      }
      Watch watch(*client_, HealthRequest("m"));
      if (i % 2 == 0) {
        EXPECT_NE(watch.Next(), "");
      }
      watch.Cancel();
      (void)watch.Finish();
    }
  });
  server_->SetHealth("m", true);
  ExpectCheck("m", HealthStatus::kServing);
}

TEST_F(HealthTest, ShutdownSendsWatchersTheLastStatusAndEnds) {
  server_->SetHealth("", true);
  Watch watch(*client_, HealthRequest(""));
  EXPECT_EQ(watch.Next(), HealthReply(HealthStatus::kServing));
  server_->SetHealth("", false);
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
  EXPECT_EQ(watch.Next(), HealthReply(HealthStatus::kNotServing));
  EXPECT_EQ(watch.Next(), "");
  EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(HealthTest, AWatcherThatIsGoneDoesNotHoldUpShutdown) {
  auto client = std::make_unique<RawClient>(server_->port());
  auto watch = std::make_unique<Watch>(*client, HealthRequest(""));
  EXPECT_NE(watch->Next(), "");
  watch->Cancel();
  (void)watch->Finish();
  watch.reset();
  client.reset();
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
}

}  // namespace
}  // namespace millpond::rpc
