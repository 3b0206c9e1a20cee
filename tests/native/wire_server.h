#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "native/rpc/group_plan.h"
#include "native/rpc/network.h"
#include "native/rpc/request_threads.h"
#include "native/servable/batch_registry.h"
#include "tests/native/group_count.h"
#include "tests/native/raw_http2.h"
#include "tests/native/whole_answers.h"

namespace millpond::testing {

// A server with one method, "/test.Echo/Echo", that answers each message with the same bytes. It
// has no servable, and neither side uses a gRPC library: ThreadSanitizer sees all code.
class WireServerTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kStreamsMax = 10;

  explicit WireServerTest(const rpc::WireLimits& limits = {}) {
    shared_->limits = limits;
    shared_->limits.streams_per_connection = kStreamsMax;
    shared_->calls.admission = admission_;
    shared_->methods["/test.Echo/Echo"] = {"/test.Echo/Echo", &echo_};
    const base::Status listens = network_.Listen({"127.0.0.1:0"}, nullptr);
    EXPECT_TRUE(listens.ok()) << listens.message();
    threads_.emplace(&network_, batches_, rpc::PlanGroups({}, ThreadCount(), GroupCount()), 4);
    shared_->calls.awaiting = threads_->awaiting();
    threads_->Start();
  }
  ~WireServerTest() override { Stop(); }

  // Ends all connections and threads. For tests whose own members the calls use.
  void Stop() {
    if (!threads_) return;
    network_.StopListening(*shared_);
    network_.CloseAll(*shared_);
    threads_->Stop();
    EXPECT_TRUE(threads_->Join(10'000'000'000));
    threads_.reset();
  }

  int port() const { return network_.port(); }

  // Returns true as soon as the server has `count` connections; false after 20 s.
  bool HasConnections(int64_t count) const {
    for (int left = 20'000; left > 0 && network_.connection_count() != count; --left) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return network_.connection_count() == count;
  }

  // Returns the answer to a call on a new connection, with a message in DATA frames of up to
  // `frame_bytes`; "" if the call fails.
  std::string Echo(const std::string& bytes, size_t frame_bytes = 16'384) const {
    RawHttp2 connection(port());
    connection.Begin();
    connection.Send(FrameBytes(kHeadersFrame, kEndHeaders, 1, GrpcHeaders("/test.Echo/Echo")));
    const std::string message = GrpcMessage(bytes);
    for (size_t at = 0; at < message.size(); at += frame_bytes) {
      const bool is_last = at + frame_bytes >= message.size();
      connection.SendFrame(kDataFrame, is_last ? kEndStream : 0, 1,
                           message.substr(at, frame_bytes));
    }
    std::string answer;
    while (const auto frame = connection.Next()) {
      if (frame->type == kDataFrame) answer += frame->payload;
      if (frame->type == kHeadersFrame && (frame->flags & kEndStream) != 0) break;
    }
    return answer.size() < 5 ? "" : answer.substr(5);
  }

 protected:
  const std::shared_ptr<servable::Admission> admission_ = std::make_shared<servable::Admission>();
  const std::shared_ptr<rpc::ServerShared> shared_ = std::make_shared<rpc::ServerShared>();
  rpc::Network network_{shared_, static_cast<size_t>(GroupCount())};

 private:
  struct EchoHandler final : WholeAnswers {
    void Answer(rpc::RunnableCall* call) override {
      std::string bytes;
      call->request().AppendRest(&bytes);
      call->Reply(bytes);
    }
  };

  EchoHandler echo_;
  const servable::BatchRegistry batches_;
  std::optional<rpc::RequestThreads> threads_;
};

}  // namespace millpond::testing
