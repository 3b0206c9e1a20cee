#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/base/clock.h"
#include "native/rpc/connection.h"
#include "native/rpc/grpc_stream.h"
#include "native/rpc/transport.h"
#include "native/servable/admission.h"
#include "tests/native/raw_http2.h"
#include "tests/native/whole_answers.h"

namespace millpond::rpc {
namespace {

constexpr char kTestPath[] = "/test/m";

struct EchoHandler final : testing::WholeAnswers {
  void Answer(RunnableCall* call) override {
    if (holds) call->HoldAnswer();
    call->Reply("the answer");
  }
  bool holds = true;
};

// A connection with a request, and its client.
class Peer {
 public:
  Peer() {
    std::array<int, 2> sockets{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets.data()), 0);
    fd_ = sockets[1];
    shared_->calls.admission = std::make_shared<servable::Admission>();
    shared_->methods[kTestPath] = {kTestPath, &handler_};
    connection_ = std::make_shared<Connection>(
        shared_, protocol_, /*waker=*/nullptr, std::make_unique<Transport>(sockets[0], nullptr, ""),
        Connection::Ends(), base::MonotonicNs(), base::ByteBudget::Share());
    Send(testing::kPreface + testing::FrameBytes(testing::kSettingsFrame, 0, 0, ""));
    call_ = NewCall();
  }
  ~Peer() {
    if (connection_ != nullptr) connection_->Close();
    close(fd_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Sends a request, and returns it as the thread gets it that is to run it. The client has read
  // all until then.
  std::shared_ptr<RunnableCall> NewCall() {
    const uint32_t stream = next_stream_;
    next_stream_ += 2;
    Send(testing::FrameBytes(testing::kHeadersFrame, testing::kEndHeaders, stream,
                             testing::GrpcHeaders(kTestPath)) +
         testing::FrameBytes(testing::kDataFrame, testing::kEndStream, stream,
                             testing::GrpcMessage("x")));
    ReceiveSpace space;
    std::vector<std::shared_ptr<RunnableCall>> calls;
    connection_->Proceed(&space, &calls);
    EXPECT_EQ(calls.size(), 1U);
    char block[4'096];
    while (recv(fd_, block, sizeof block, 0) > 0) {
    }
    return calls.at(0);
  }
  void Answer() { EXPECT_EQ(CallBeingAnswered(call_).Prepare(), nullptr); }
  void SendHeld() { call_->SendHeld(); }
  EchoHandler& handler() { return handler_; }
  bool HasBytes() const {
    pollfd readable = {fd_, POLLIN, 0};
    return poll(&readable, 1, 0) > 0;
  }

 private:
  void Send(const std::string& bytes) const {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }

  EchoHandler handler_;
  const std::shared_ptr<ServerShared> shared_ = std::make_shared<ServerShared>();
  const GrpcProtocol protocol_;
  int fd_ = -1;
  uint32_t next_stream_ = 1;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<RunnableCall> call_;
};

// A batch frames the answers of a connection, and writes them together.
TEST(HeldAnswer, IsWrittenBySendHeld) {
  Peer peer;
  peer.Answer();
  EXPECT_FALSE(peer.HasBytes());
  peer.SendHeld();
  EXPECT_TRUE(peer.HasBytes());
}

TEST(HeldAnswer, AnswerThatIsNotHeldIsWrittenAtOnce) {
  Peer peer;
  peer.handler().holds = false;
  peer.Answer();
  EXPECT_TRUE(peer.HasBytes());
}

}  // namespace
}  // namespace millpond::rpc
