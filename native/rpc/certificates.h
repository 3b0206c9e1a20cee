#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "native/base/status.h"

namespace millpond::rpc {

// The identity of a TLS server, as PEM text.
struct Certificates {
  std::string key;
  std::string chain;      // the server's certificate first
  std::string client_ca;  // the signer of clients' certificates; "": the server asks for none
};

// The current certificates of a port. A connection keeps those with which it was accepted until its
// end.
//
// Thread: any. The control plane checks the certificates before they come here.
class ServerCertificates {
 public:
  // If `is_client_required`, only clients with a certificate of client_ca are served.
  ServerCertificates(Certificates certificates, bool is_client_required);

  // Uses `certificates` from the next connection on. Keeps the earlier ones if OpenSSL refuses
  // them.
  void Replace(Certificates certificates);

  bool is_client_required() const { return is_client_required_; }

  // Returns the context for new connections; null if OpenSSL refused the certificates.
  std::shared_ptr<SSL_CTX> context() const;

 private:
  const bool is_client_required_;
  mutable std::mutex mutex_;  // held to copy a pointer
  std::shared_ptr<SSL_CTX> context_;
};

// Returns the OpenSSL context of a server with `certificates`. INVALID_ARGUMENT with OpenSSL's
// reason if they do not parse, or if the key does not match the certificate.
base::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const Certificates& certificates,
                                                        bool is_client_required);

// Has the handshake of `tls` agree on one of the protocols of `alpn`, see Protocol::alpn. Without
// it, a connection speaks whatever its client does.
void OfferProtocols(std::string_view alpn, SSL* tls);

}  // namespace millpond::rpc
