#include "native/rpc/transport.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "native/rpc/certificates.h"

namespace millpond::rpc {
namespace {

// The bytes of one TLS record. Small pieces are gathered into one record.
constexpr size_t kRecordBytes = 16'384;

// At most this many reads drop what a client without TLS has sent.
constexpr int kDropsMax = 16;

constexpr std::string_view kTlsNeeded =
    "HTTP/1.1 400 Bad Request\r\n"
    "content-type: text/plain\r\n"
    "content-length: 51\r\n"
    "connection: close\r\n"
    "\r\n"
    "this port has TLS: use https:// instead of http://\n";

Transport::Result ResultOf(ssize_t returned) {
  if (returned > 0) return {Transport::State::kOk, static_cast<size_t>(returned)};
  const bool may_come = returned < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return {may_come ? Transport::State::kWouldBlock : Transport::State::kClosed, 0};
}

// OpenSSL's socket writes with write(), which ends the process with SIGPIPE if the client has gone.
int SendWithoutSignal(BIO* bio, const char* bytes, size_t size, size_t* sent) {
  BIO_clear_retry_flags(bio);
  const Transport::Result result =
      ResultOf(send(static_cast<int>(BIO_get_fd(bio, nullptr)), bytes, size, MSG_NOSIGNAL));
  *sent = result.bytes;
  if (result.state == Transport::State::kWouldBlock) BIO_set_retry_write(bio);
  return result.state == Transport::State::kOk ? 1 : 0;
}

const BIO_METHOD* SocketMethod() {
  static const BIO_METHOD* const method = [] {
    const BIO_METHOD* const socket = BIO_s_socket();
    BIO_METHOD* const made = BIO_meth_new(
        BIO_get_new_index() | BIO_TYPE_SOURCE_SINK | BIO_TYPE_DESCRIPTOR, "socket without SIGPIPE");
    BIO_meth_set_write_ex(made, SendWithoutSignal);
    BIO_meth_set_read(made, BIO_meth_get_read(socket));
    BIO_meth_set_ctrl(made, BIO_meth_get_ctrl(socket));
    BIO_meth_set_create(made, BIO_meth_get_create(socket));
    BIO_meth_set_destroy(made, BIO_meth_get_destroy(socket));
    return made;
  }();
  return method;
}

void AddName(const ASN1_STRING* text, std::vector<std::string>* names) {
  unsigned char* utf8 = nullptr;
  const int size = ASN1_STRING_to_UTF8(&utf8, text);
  if (size < 0) return;
  names->emplace_back(reinterpret_cast<const char*>(utf8), static_cast<size_t>(size));
  OPENSSL_free(utf8);
}

void AddAddress(const ASN1_OCTET_STRING* address, std::vector<std::string>* names) {
  char* const text = i2s_ASN1_OCTET_STRING(nullptr, address);
  if (text == nullptr) return;
  names->emplace_back(text);
  OPENSSL_free(text);
}

void AddAlternativeNames(const X509* certificate, std::vector<std::string>* names) {
  auto* const alternatives = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(alternatives); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(alternatives, i);
    if (name->type == GEN_DNS || name->type == GEN_URI || name->type == GEN_EMAIL) {
      AddName(name->d.ia5, names);
    } else if (name->type == GEN_IPADD) {
      AddAddress(name->d.iPAddress, names);
    }
  }
  GENERAL_NAMES_free(alternatives);
}

}  // namespace

Transport::Transport(int fd, const std::shared_ptr<SSL_CTX>& context, std::string_view alpn)
    : fd_(fd) {
  if (context == nullptr) return;
  tls_.reset(SSL_new(context.get()));
  BIO* const socket = BIO_new(SocketMethod());
  BIO_set_fd(socket, fd_, BIO_NOCLOSE);
  SSL_set_bio(tls_.get(), socket, socket);
  SSL_set_accept_state(tls_.get());
  OfferProtocols(alpn, tls_.get());
}

Transport::~Transport() {
  tls_.reset();
  close(fd_);
}

Transport::Result Transport::Read(char* to, size_t size) {
  if (tls_ == nullptr) return ResultOf(recv(fd_, to, size, 0));
  ERR_clear_error();
  return TlsResult(SSL_read(tls_.get(), to, static_cast<int>(std::min<size_t>(size, INT_MAX))));
}

Transport::Result Transport::TlsResult(int returned) {
  if (returned > 0) return {State::kOk, static_cast<size_t>(returned)};
  const int error = SSL_get_error(tls_.get(), returned);
  const bool may_come = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  if (may_come) return {State::kWouldBlock, 0};
  if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST) RefusePlainHttp();
  return {State::kClosed, 0};
}

// Tells a client that speaks HTTP without TLS what is wrong. OpenSSL would end the connection
// without a word.
void Transport::RefusePlainHttp() {
  std::array<char, kRecordBytes> dropped;
  // If something were left unread, the kernel would end the connection by a reset, and the client
  // would lose the answer.
  for (int i = 0; i < kDropsMax && recv(fd_, dropped.data(), dropped.size(), 0) > 0; ++i) {
  }
  (void)!send(fd_, kTlsNeeded.data(), kTlsNeeded.size(), MSG_NOSIGNAL);
}

Transport::Result Transport::Write(const iovec* pieces, size_t count) {
  if (tls_ != nullptr) return WriteTls(pieces, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = std::min<size_t>(count, IOV_MAX);
  return ResultOf(sendmsg(fd_, &message, MSG_NOSIGNAL));
}

Transport::Result Transport::WriteTls(const iovec* pieces, size_t count) {
  std::array<char, kRecordBytes> record;
  size_t size = 0;
  for (size_t i = 0; i < count && size < record.size(); ++i) {
    const size_t part = std::min(pieces[i].iov_len, record.size() - size);
    std::memcpy(record.data() + size, pieces[i].iov_base, part);
    size += part;
  }
  ERR_clear_error();
  return TlsResult(SSL_write(tls_.get(), record.data(), static_cast<int>(size)));
}

void Transport::EndWrites() {
  if (tls_ != nullptr) {
    ERR_clear_error();
    (void)SSL_shutdown(tls_.get());
  }
  (void)shutdown(fd_, SHUT_WR);
}

std::vector<std::string> Transport::ClientNames() const {
  std::vector<std::string> names;
  if (tls_ == nullptr || SSL_get_verify_result(tls_.get()) != X509_V_OK) return names;
  const X509* const certificate = SSL_get0_peer_certificate(tls_.get());
  if (certificate == nullptr) return names;
  X509_NAME* const subject = X509_get_subject_name(certificate);
  for (int i = -1; (i = X509_NAME_get_index_by_NID(subject, NID_commonName, i)) >= 0;) {
    AddName(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, i)), &names);
  }
  AddAlternativeNames(certificate, &names);
  return names;
}

}  // namespace millpond::rpc
