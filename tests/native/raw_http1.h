#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "native/base/ascii_text.h"

// Sends bytes that may be no HTTP, and reads the server's answers.
namespace millpond::testing {

inline std::string PostRequest(const std::string& target, const std::string& body,
                               const std::string& more_headers = "") {
  return "POST " + target + " HTTP/1.1\r\nHost: localhost\r\n" + more_headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline std::string GetRequest(const std::string& target, const std::string& more_headers = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + more_headers + "\r\n";
}

// One answer. Its status is 0 if the server closed instead.
struct Http1Answer {
  int status = 0;
  std::map<std::string, std::string> headers;  // by name, in lower case
  std::string body;

  std::string Header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

// A client of one connection.
class RawHttp1 {
 public:
  explicit RawHttp1(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~RawHttp1() { Close(); }
  RawHttp1(const RawHttp1&) = delete;
  RawHttp1& operator=(const RawHttp1&) = delete;

  // Returns false if the server has closed.
  bool Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t size = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (size <= 0) return false;
      sent += static_cast<size_t>(size);
    }
    return true;
  }
  void SendEachByte(const std::string& bytes) {
    for (const char byte : bytes) {
      if (!Send(std::string(1, byte))) return;
    }
  }
  void EndWrites() { shutdown(fd_, SHUT_WR); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // Returns the next answer. `is_head`: it answers HEAD, and has no body.
  Http1Answer Next(bool is_head = false) {
    Http1Answer answer;
    size_t end = 0;
    while ((end = received_.find("\r\n\r\n")) == std::string::npos) {
      if (!Receive()) return {};
    }
    ReadHead(received_.substr(0, end + 2), &answer);
    received_.erase(0, end + 4);
    const auto size = static_cast<size_t>(std::atoll(answer.Header("content-length").c_str()));
    if (is_head || answer.status == 100 || answer.status == 304) return answer;
    while (received_.size() < size) {
      if (!Receive()) return {};
    }
    answer.body = received_.substr(0, size);
    received_.erase(0, size);
    return answer;
  }
  // True if there is something to read, or the server has closed.
  bool HasInput() const {
    pollfd looked{fd_, POLLIN, 0};
    return poll(&looked, 1, 0) > 0;
  }
  // Returns true once the server has closed, with no byte more before.
  bool IsClosed() { return received_.empty() && !Receive() && received_.empty(); }

 private:
  // Waits for bytes. Returns false if the server has closed.
  bool Receive() {
    char bytes[16'384];
    const ssize_t size = recv(fd_, bytes, sizeof bytes, 0);
    if (size <= 0) return false;
    received_.append(bytes, static_cast<size_t>(size));
    return true;
  }

  // `head` ends with the end of its last line.
  static void ReadHead(const std::string& head, Http1Answer* answer) {
    size_t at = head.find("\r\n");
    answer->status = std::atoi(head.c_str() + std::string("HTTP/1.1 ").size());
    at += 2;
    while (at < head.size()) {
      const size_t end = head.find("\r\n", at);
      const std::string line = head.substr(at, end - at);
      const size_t colon = line.find(": ");
      answer->headers[base::LowerOf(line.substr(0, colon))] = line.substr(colon + 2);
      at = end + 2;
    }
  }

  int fd_;
  std::string received_;
};

}  // namespace millpond::testing
