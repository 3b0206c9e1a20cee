#include "native/rpc/certificates.h"

#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "native/rpc/transport.h"
#include "tests/native/served_models.h"
#include "tests/native/temporary_directory.h"

namespace millpond::rpc {
namespace {

using testing::kCheckPath;
using testing::RawClient;

std::string ReadFile(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A key and its self-signed certificate for 127.0.0.1. `openssl` makes them.
struct Identity {
  explicit Identity(const std::string& name) {
    const testing::TemporaryDirectory directory;
    const std::string key_path = directory.File("key.pem");
    const std::string certificate_path = directory.File("certificate.pem");
    const std::string command =
        "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 1 "
        "-subj /CN=" +
        name + " -addext subjectAltName=IP:127.0.0.1 -keyout " + key_path + " -out " +
        certificate_path + " 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    key = ReadFile(key_path);
    certificate = ReadFile(certificate_path);
  }

  std::string key;
  std::string certificate;
};

const Identity& First() {
  static const Identity identity("first");
  return identity;
}
const Identity& Second() {
  static const Identity identity("second");
  return identity;
}

class CertificatesTest : public testing::ServedModels {
 protected:
  void StartWith(const std::string& client_ca = "", bool is_client_required = false) {
    certificates_ = std::make_shared<ServerCertificates>(
        Certificates{First().key, First().certificate, client_ca}, is_client_required);
    options_.certificates = certificates_;
    Start();
    server_->SetHealth("", true);
  }

  // Returns a client that trusts `server`, and shows the certificate of `client` if it is set.
  std::unique_ptr<RawClient> Client(const Identity& server, const Identity* client = nullptr) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = server.certificate;
    if (client != nullptr) {
      options.pem_private_key = client->key;
      options.pem_cert_chain = client->certificate;
    }
    return std::make_unique<RawClient>("127.0.0.1:" + std::to_string(server_->port()),
                                       grpc::SslCredentials(options));
  }

  static grpc::StatusCode Ask(const RawClient& client) {
    return client.Call(kCheckPath, "").code();
  }

  std::shared_ptr<ServerCertificates> certificates_;
};

TEST_F(CertificatesTest, OnlyTlsClientsThatTrustTheCertificateAreServed) {
  StartWith();
  EXPECT_EQ(Ask(*Client(First())), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(*Client(Second())), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask(*client_), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CertificatesTest, ClientsWithoutRequiredCertificateAreRefused) {
  StartWith(Second().certificate, /*is_client_required=*/true);
  EXPECT_EQ(Ask(*Client(First(), &Second())), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(*Client(First())), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask(*Client(First(), &First())), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CertificatesTest, ClientCertificateIsOptionalByDefault) {
  StartWith(Second().certificate);
  EXPECT_EQ(Ask(*Client(First())), grpc::StatusCode::OK);
}

TEST_F(CertificatesTest, ReplacedCertificatesApplyToNewConnections) {
  StartWith();
  const auto before = Client(First());
  EXPECT_EQ(Ask(*before), grpc::StatusCode::OK);
  certificates_->Replace({Second().key, Second().certificate, ""});
  EXPECT_EQ(Ask(*Client(Second())), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(*Client(First())), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask(*before), grpc::StatusCode::OK);
}

TEST_F(CertificatesTest, AReplacedCaDecidesWhichClientsAreServed) {
  StartWith(First().certificate, /*is_client_required=*/true);
  EXPECT_EQ(Ask(*Client(First(), &Second())), grpc::StatusCode::UNAVAILABLE);
  certificates_->Replace({First().key, First().certificate, Second().certificate});
  EXPECT_EQ(Ask(*Client(First(), &Second())), grpc::StatusCode::OK);
}

TEST_F(CertificatesTest, AUnixSocketStaysPlain) {
  const testing::TemporaryDirectory directory;
  const std::string address = "unix:" + directory.File("plain.sock");
  options_.addresses.push_back(address);
  StartWith();
  EXPECT_EQ(Ask(RawClient(address)), grpc::StatusCode::OK);
}

TEST_F(CertificatesTest, CertificatesThatOpenSslRefusesStopTheStart) {
  options_.certificates =
      std::make_shared<ServerCertificates>(Certificates{"no key", "no certificate", ""}, false);
  rpc::Server server(&map_, options_);
  EXPECT_EQ(server.Start().code(), base::Code::kUnavailable);
}

TEST_F(CertificatesTest, ReplacedCertificatesThatAreRefusedLeaveTheOldOnes) {
  StartWith();
  EXPECT_EQ(Ask(*Client(First())), grpc::StatusCode::OK);
  certificates_->Replace({"no key", "no certificate", ""});
  EXPECT_EQ(Ask(*Client(First())), grpc::StatusCode::OK);
}

// SIGPIPE ends a process that does not ignore it. Here the signal is blocked, so it would be
// pending, and the test can see it.
TEST(TransportTest, WriteToATlsClientThatHasGoneRaisesNoSignal) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const ServerCertificates certificates({First().key, First().certificate, ""}, false);
  Transport server(ends[0], certificates.context());
  {
    const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                               SSL_CTX_free);
    const std::unique_ptr<SSL, void (*)(SSL*)> client(SSL_new(context.get()), SSL_free);
    SSL_set_fd(client.get(), ends[1]);
    char byte = 0;
    while (SSL_connect(client.get()) != 1) (void)server.Read(&byte, 1);
    (void)server.Read(&byte, 1);
  }
  close(ends[1]);
  sigset_t pipe_signal;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
  std::string text = "an answer";
  const iovec piece = {text.data(), text.size()};
  EXPECT_EQ(server.Write(&piece, 1).state, Transport::State::kClosed);
  sigset_t waiting;
  sigpending(&waiting);
  EXPECT_FALSE(sigismember(&waiting, SIGPIPE));
}

}  // namespace
}  // namespace millpond::rpc
