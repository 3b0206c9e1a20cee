#include "native/rpc/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

namespace millpond::rpc {
namespace {

template <typename Object, void (*kFree)(Object*)>
struct FreeObject {
  void operator()(Object* object) const { kFree(object); }
};
template <typename Object, void (*kFree)(Object*)>
using Owned = std::unique_ptr<Object, FreeObject<Object, kFree>>;
using OwnedCertificate = Owned<X509, X509_free>;

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using OwnedBio = std::unique_ptr<BIO, FreeBio>;

OwnedBio Reader(const std::string& pem) {
  return OwnedBio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

base::Status Refused(const char* what) {
  std::array<char, 256> reason{};
  ERR_error_string_n(ERR_get_error(), reason.data(), reason.size());
  ERR_clear_error();
  return base::InvalidArgument(std::string("OpenSSL refuses ") + what + ": " + reason.data());
}

base::Status UseChain(const std::string& pem, SSL_CTX* context) {
  const OwnedBio reader = Reader(pem);
  const OwnedCertificate own(PEM_read_bio_X509_AUX(reader.get(), nullptr, nullptr, nullptr));
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) {
    return Refused("the server's certificate");
  }
  while (X509* const signer = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    // On success the context owns `signer`.
    if (SSL_CTX_add0_chain_cert(context, signer) == 1) continue;
    X509_free(signer);
    return Refused("the server's certificate chain");
  }
  // OpenSSL queues an error at the end of the text, which is no failure here.
  ERR_clear_error();
  return {};
}

base::Status UseKey(const std::string& pem, SSL_CTX* context) {
  const OwnedBio reader = Reader(pem);
  const Owned<EVP_PKEY, EVP_PKEY_free> key(
      PEM_read_bio_PrivateKey(reader.get(), nullptr, nullptr, nullptr));
  if (key == nullptr || SSL_CTX_use_PrivateKey(context, key.get()) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return Refused("the server's key");
  }
  return {};
}

base::Status TrustClients(const std::string& pem, SSL_CTX* context) {
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  const OwnedBio reader = Reader(pem);
  int count = 0;
  while (true) {
    const OwnedCertificate signer(PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr));
    if (signer == nullptr) break;
    if (X509_STORE_add_cert(store, signer.get()) != 1) return Refused("a certificate of clients");
    SSL_CTX_add_client_CA(context, signer.get());
    count += 1;
  }
  if (count == 0) return Refused("the certificates of clients");
  ERR_clear_error();
  return {};
}

// Chooses the protocol that the connection's port prefers (OfferProtocols). Refuses a client that
// offers only other protocols. A client that offers no protocol may go on.
int ChooseProtocol(SSL* tls, const unsigned char** chosen, unsigned char* chosen_size,
                   const unsigned char* offered, unsigned int offered_size, void*) {
  const auto* const spoken = static_cast<const char*>(SSL_get_app_data(tls));
  if (spoken == nullptr || *spoken == '\0') return SSL_TLSEXT_ERR_NOACK;
  unsigned char* found = nullptr;
  const int result =
      SSL_select_next_proto(&found, chosen_size, reinterpret_cast<const unsigned char*>(spoken),
                            static_cast<unsigned int>(std::strlen(spoken)), offered, offered_size);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

}  // namespace

base::StatusOr<std::shared_ptr<SSL_CTX>> MakeTlsContext(const Certificates& certificates,
                                                        bool is_client_required) {
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return Refused("a TLS context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // A socket that ends without TLS's close is not an error: HTTP marks its own ends.
  SSL_CTX_set_options(context.get(), SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  // No session is resumed: it would use the certificates from before a reload.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
  ERR_clear_error();
  MILLPOND_RETURN_IF_ERROR(UseChain(certificates.chain, context.get()));
  MILLPOND_RETURN_IF_ERROR(UseKey(certificates.key, context.get()));
  if (!certificates.client_ca.empty()) {
    MILLPOND_RETURN_IF_ERROR(TrustClients(certificates.client_ca, context.get()));
  }
  if (is_client_required) {
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return context;
}

void OfferProtocols(std::string_view alpn, SSL* tls) {
  SSL_set_app_data(tls, const_cast<char*>(alpn.data()));
}

ServerCertificates::ServerCertificates(Certificates certificates, bool is_client_required)
    : is_client_required_(is_client_required) {
  Replace(std::move(certificates));
}

void ServerCertificates::Replace(Certificates certificates) {
  auto made = MakeTlsContext(certificates, is_client_required_);
  // The control plane checks new certificates before, and reports errors.
  if (!made.ok()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  context_ = std::move(made.value());
}

std::shared_ptr<SSL_CTX> ServerCertificates::context() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return context_;
}

}  // namespace millpond::rpc
