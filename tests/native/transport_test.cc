// The bytes of one connection over TLS: the protocol that both ends agree on, and clients without
// TLS.

#include "native/rpc/transport.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "native/rpc/certificates.h"
#include "tests/native/identity.h"

namespace millpond::rpc {
namespace {

constexpr std::string_view kH2 = "\x02h2";
constexpr std::string_view kHttp1 = "\x08http/1.1";
constexpr std::string_view kH2OrHttp1 = "\x02h2\x08http/1.1";

const ServerCertificates& Shown() {
  static const testing::Identity identity("server");
  static const ServerCertificates certificates({identity.key, identity.certificate, ""}, false);
  return certificates;
}

// Both ends of a connection on one thread: the server's is a Transport, the client's OpenSSL.
class TransportTest : public ::testing::Test {
 protected:
  TransportTest() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends_.data()), 0);
  }
  ~TransportTest() override { LeaveClient(); }

  void LeaveClient() {
    client_.reset();
    if (ends_[1] >= 0) close(std::exchange(ends_[1], -1));
  }

  void Serve(std::string_view alpn) {
    server_ = std::make_unique<Transport>(ends_[0], Shown().context(), alpn);
  }

  // Connects a client that offers the protocols `alpn`, or none. Returns false if the handshake
  // failed.
  bool Connect(std::string_view alpn = "") {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    client_.reset(SSL_new(context_.get()));
    SSL_set_fd(client_.get(), ends_[1]);
    SSL_set_alpn_protos(client_.get(), reinterpret_cast<const unsigned char*>(alpn.data()),
                        static_cast<unsigned int>(alpn.size()));
    while (true) {
      const int connected = SSL_connect(client_.get());
      (void)Read();
      if (connected == 1) return true;
      if (SSL_get_error(client_.get(), connected) != SSL_ERROR_WANT_READ) return false;
    }
  }

  // Returns the protocol that was chosen; "" if none was, and "-" if the handshake failed.
  std::string Agree(std::string_view alpn) {
    if (!Connect(alpn)) return "-";
    const unsigned char* chosen = nullptr;
    unsigned int size = 0;
    SSL_get0_alpn_selected(client_.get(), &chosen, &size);
    return size == 0 ? "" : std::string(reinterpret_cast<const char*>(chosen), size);
  }

  Transport::State Read() {
    std::array<char, 4'096> bytes;
    return server_->Read(bytes.data(), bytes.size()).state;
  }

  std::array<int, 2> ends_{};
  std::unique_ptr<Transport> server_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_{nullptr, SSL_CTX_free};
  std::unique_ptr<SSL, void (*)(SSL*)> client_{nullptr, SSL_free};
};

TEST_F(TransportTest, AgreesOnTheProtocolThatThePortPrefers) {
  Serve(kH2OrHttp1);
  EXPECT_EQ(Agree("\x08http/1.1\x02h2"), "h2");
}

TEST_F(TransportTest, TakesTheProtocolThatBothSpeak) {
  Serve(kHttp1);
  EXPECT_EQ(Agree(kH2OrHttp1), "http/1.1");
}

TEST_F(TransportTest, AClientThatOffersNoneGoesOn) {
  Serve(kHttp1);
  EXPECT_EQ(Agree(""), "");
}

TEST_F(TransportTest, RefusesAClientThatSpeaksOthersOnly) {
  Serve(kH2);
  EXPECT_EQ(Agree("\x08http/1.1\x03xyz"), "-");
}

TEST_F(TransportTest, TellsPlainHttpThatThePortHasTls) {
  Serve(kHttp1);
  const std::string request = "POST / HTTP/1.1\r\nhost: h\r\n\r\n" + std::string(20'000, 'x');
  ASSERT_EQ(send(ends_[1], request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  EXPECT_EQ(Read(), Transport::State::kClosed);
  server_.reset();
  std::array<char, 4'096> bytes;
  const ssize_t size = recv(ends_[1], bytes.data(), bytes.size(), 0);
  ASSERT_GT(size, 0);
  const std::string answer(bytes.data(), static_cast<size_t>(size));
  EXPECT_EQ(answer.rfind("HTTP/1.1 400 ", 0), 0U) << answer;
  const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
  EXPECT_NE(body.find("https://"), std::string::npos);
  EXPECT_NE(answer.find("content-length: " + std::to_string(body.size())), std::string::npos);
  EXPECT_EQ(recv(ends_[1], bytes.data(), bytes.size(), 0), 0) << "an end, and no reset";
}

TEST_F(TransportTest, ClosesForBytesThatAreNeither) {
  Serve(kHttp1);
  ASSERT_EQ(send(ends_[1], "nonsense\n", 9, 0), 9);
  EXPECT_EQ(Read(), Transport::State::kClosed);
}

// SIGPIPE ends a process that does not ignore it. Here the signal is blocked, so it would be
// pending, and the test can see it.
TEST_F(TransportTest, AWriteToAClientThatHasGoneIsNoSignal) {
  Serve(kH2);
  ASSERT_TRUE(Connect());
  LeaveClient();
  sigset_t pipe_signal;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
  std::string text = "an answer";
  const iovec piece = {text.data(), text.size()};
  EXPECT_EQ(server_->Write(&piece, 1).state, Transport::State::kClosed);
  sigset_t waiting;
  sigpending(&waiting);
  EXPECT_FALSE(sigismember(&waiting, SIGPIPE));
}

}  // namespace
}  // namespace millpond::rpc
