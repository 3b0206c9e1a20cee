#pragma once

#include <openssl/ssl.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millpond::rpc {

// Reads and writes the bytes of one connection, plain or over TLS. Never blocks. Not thread-safe: a
// TLS session allows one caller at a time, for reads and writes together.
class Transport {
 public:
  enum class State { kOk, kWouldBlock, kClosed };
  struct Result {
    State state = State::kOk;
    size_t bytes = 0;
  };

  // Owns `fd`. `context` is null for a plain connection. The first Read makes the TLS handshake,
  // which agrees on a protocol of `alpn` (see Protocol).
  Transport(int fd, const std::shared_ptr<SSL_CTX>& context, std::string_view alpn);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int fd() const { return fd_; }
  bool is_tls() const { return tls_ != nullptr; }

  // Reads at most `size` bytes that have arrived. kClosed at the end of the stream and after an
  // error. A client that speaks HTTP without TLS to a port with TLS is told so first.
  Result Read(char* to, size_t size);
  // Writes as many bytes of `pieces` as the socket takes. May return kOk with fewer bytes written
  // than `pieces` have.
  Result Write(const iovec* pieces, size_t count);
  // Ends the stream to the peer. The peer may still send.
  void EndWrites();

  // Returns the common name and the alternative names of the verified certificate of the client;
  // empty without one.
  std::vector<std::string> ClientNames() const;

 private:
  struct FreeTls {
    void operator()(SSL* tls) const { SSL_free(tls); }
  };

  Result TlsResult(int returned);
  void RefusePlainHttp();
  Result WriteTls(const iovec* pieces, size_t count);

  const int fd_;
  std::unique_ptr<SSL, FreeTls> tls_;
};

}  // namespace millpond::rpc
