#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Sends HTTP/2 frames that no client library would send, and reads the server's frames.
namespace millpond::testing {

inline constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum FrameType : uint8_t {
  kDataFrame = 0,
  kHeadersFrame = 1,
  kPriorityFrame = 2,
  kRstStreamFrame = 3,
  kSettingsFrame = 4,
  kPingFrame = 6,
  kGoawayFrame = 7,
  kWindowUpdateFrame = 8,
  kContinuationFrame = 9,
};
inline constexpr uint8_t kEndStream = 1;
inline constexpr uint8_t kAck = 1;
inline constexpr uint8_t kEndHeaders = 4;
inline constexpr uint32_t kEnhanceYourCalm = 11;
inline constexpr char kEchoPath[] = "/test.Echo/Echo";

struct Http2Frame {
  uint8_t type = 0;
  uint8_t flags = 0;
  uint32_t stream = 0;
  std::string payload;

  // Returns the error code of a GOAWAY or RST_STREAM frame.
  uint32_t ErrorCode() const {
    const size_t at = type == kGoawayFrame ? 4 : 0;
    uint32_t code = 0;
    for (size_t i = at; i < at + 4 && i < payload.size(); ++i) {
      code = code << 8U | static_cast<unsigned char>(payload[i]);
    }
    return code;
  }
};

inline std::string BigEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift));
  return bytes;
}

inline std::string FrameBytes(uint8_t type, uint8_t flags, uint32_t stream,
                              const std::string& payload) {
  std::string bytes = BigEndian(static_cast<uint32_t>(payload.size())).substr(1);
  bytes.push_back(static_cast<char>(type));
  bytes.push_back(static_cast<char>(flags));
  return bytes + BigEndian(stream) + payload;
}

// Returns HPACK's literal without indexing and without Huffman coding. `name` and `value` have up
// to 126 bytes.
inline std::string LiteralHeader(const std::string& name, const std::string& value) {
  const auto text = [](const std::string& s) { return static_cast<char>(s.size()) + s; };
  return std::string(1, '\0') + text(name) + text(value);
}

inline std::string GrpcHeaders(const std::string& path, const std::string& more = "") {
  return LiteralHeader(":method", "POST") + LiteralHeader(":scheme", "http") +
         LiteralHeader(":path", path) + LiteralHeader(":authority", "test") +
         LiteralHeader("te", "trailers") + LiteralHeader("content-type", "application/grpc") + more;
}

inline std::string GrpcMessage(const std::string& bytes, bool is_compressed = false) {
  return std::string(1, is_compressed ? '\1' : '\0') +
         BigEndian(static_cast<uint32_t>(bytes.size())) + bytes;
}

// Takes the first frame of `bytes` from them; null if they do not hold all of it.
inline std::unique_ptr<Http2Frame> TakeFrame(std::string* bytes) {
  constexpr size_t kHeadBytes = 9;
  if (bytes->size() < kHeadBytes) return nullptr;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>((*bytes)[i]); };
  const size_t size = byte(0) << 16U | byte(1) << 8U | byte(2);
  if (bytes->size() < kHeadBytes + size) return nullptr;
  auto frame = std::make_unique<Http2Frame>();
  frame->type = byte(3);
  frame->flags = byte(4);
  frame->stream = (byte(5) & 0x7fU) << 24U | byte(6) << 16U | byte(7) << 8U | byte(8);
  frame->payload = bytes->substr(kHeadBytes, size);
  bytes->erase(0, kHeadBytes + size);
  return frame;
}

// Decodes the headers of one connection.
class HeaderDecoder {
 public:
  HeaderDecoder() { nghttp2_hd_inflate_new(&inflater_); }
  ~HeaderDecoder() { nghttp2_hd_inflate_del(inflater_); }
  HeaderDecoder(const HeaderDecoder&) = delete;
  HeaderDecoder& operator=(const HeaderDecoder&) = delete;

  // Returns the headers of a HEADERS frame, each as a line `name: value`. All HEADERS frames of a
  // connection must be decoded in order.
  std::string Decode(const Http2Frame& frame) {
    std::string lines;
    std::string bytes = frame.payload;
    auto* in = reinterpret_cast<uint8_t*>(bytes.data());
    size_t left = bytes.size();
    int flags = 0;
    do {
      nghttp2_nv header{};
      const ssize_t read = nghttp2_hd_inflate_hd2(inflater_, &header, &flags, in, left, 1);
      if (read < 0) return lines + "!";
      in += read;
      left -= static_cast<size_t>(read);
      if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) {
        lines.append(reinterpret_cast<char*>(header.name), header.namelen);
        lines += ": ";
        lines.append(reinterpret_cast<char*>(header.value), header.valuelen);
        lines += "\n";
      }
    } while ((flags & NGHTTP2_HD_INFLATE_FINAL) == 0);
    nghttp2_hd_inflate_end_headers(inflater_);
    return lines;
  }

 private:
  nghttp2_hd_inflater* inflater_ = nullptr;
};

// A connection to a server on 127.0.0.1. Each read waits for up to 10 s.
class RawHttp2 {
 public:
  explicit RawHttp2(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    // A frame must not wait for the acknowledgement of those before it, which takes up to 40 ms.
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience = {10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~RawHttp2() { close(fd_); }
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  void Begin() { Send(kPreface + FrameBytes(kSettingsFrame, 0, 0, "")); }
  // Returns false if the server has closed the connection.
  bool Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t part = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (part <= 0) return false;
      sent += static_cast<size_t>(part);
    }
    return true;
  }
  bool SendFrame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
    return Send(FrameBytes(type, flags, stream, payload));
  }

  // Returns the next frame; null at the end of the connection.
  std::unique_ptr<Http2Frame> Next() {
    while (true) {
      if (auto frame = TakeFrame(&buffer_)) return frame;
      if (!Fill(buffer_.size() + 1)) return nullptr;
    }
  }
  // Returns the next frame of `type`; null if the connection ends before it.
  std::unique_ptr<Http2Frame> NextOf(uint8_t type) {
    auto frame = Next();
    while (frame != nullptr && frame->type != type) frame = Next();
    return frame;
  }
  // Reads and drops what comes, until nothing comes for `pause_ms`.
  void ReadFor(int pause_ms) const {
    char block[16'384];
    pollfd readable = {fd_, POLLIN, 0};
    while (poll(&readable, 1, pause_ms) > 0 && recv(fd_, block, sizeof block, MSG_DONTWAIT) > 0) {
    }
  }
  // Returns true if bytes, or the end, come within `patience_ms`. Reads nothing.
  bool IsReadableWithin(int patience_ms) const {
    pollfd readable = {fd_, POLLIN, 0};
    return poll(&readable, 1, patience_ms) > 0;
  }
  // Sends no more, and can still read.
  void EndWrites() const { (void)shutdown(fd_, SHUT_WR); }

  // Returns all unread bytes up to the end of the connection.
  std::string Rest() {
    while (Fill(buffer_.size() + 1)) {
    }
    return buffer_;
  }
  // Returns true if a read has found the end of the connection; false if each read that failed
  // waited in vain.
  bool IsClosedByServer() const { return is_closed_by_server_; }

  // See HeaderDecoder.
  std::string Decode(const Http2Frame& frame) { return decoder_.Decode(frame); }
  // Returns all headers up to the end of the first stream that ends.
  std::string HeadersToTheEnd() {
    std::string lines;
    while (const auto frame = Next()) {
      if (frame->type == kHeadersFrame) lines += Decode(*frame);
      if (frame->type <= kHeadersFrame && (frame->flags & kEndStream) != 0) break;
    }
    return lines;
  }

 private:
  bool Fill(size_t size) {
    char block[16'384];
    while (buffer_.size() < size) {
      const ssize_t got = recv(fd_, block, sizeof block, 0);
      // A server that closes with bytes unread resets the connection.
      if (got == 0 || (got < 0 && errno == ECONNRESET)) is_closed_by_server_ = true;
      if (got <= 0) return false;
      buffer_.append(block, static_cast<size_t>(got));
    }
    return true;
  }

  const int fd_;
  HeaderDecoder decoder_;
  std::string buffer_;
  bool is_closed_by_server_ = false;
};

}  // namespace millpond::testing
