#include "native/rpc/certificates.h"

#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/native/identity.h"
#include "tests/native/served_models.h"

namespace millpond::rpc {
namespace {

using testing::Identity;
using testing::kCheckPath;
using testing::RawClient;

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

}  // namespace
}  // namespace millpond::rpc
