#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/native/raw_http1.h"
#include "tests/native/raw_http2.h"

namespace millpond::testing {

// A request over HTTP, for either version of it.
struct HttpRequest {
  std::string method = "GET";
  std::string target;
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string host = "localhost";

  // Without a body it has no length, like a browser's GET.
  std::string AsHttp1() const {
    std::string text = method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\n";
    for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
    if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    return text + "\r\n" + body;
  }
  // The block of a HEADERS frame.
  std::string HeaderBlock() const {
    std::string block = LiteralHeader(":method", method) + LiteralHeader(":scheme", "http") +
                        LiteralHeader(":path", target) + LiteralHeader(":authority", host);
    for (const auto& [name, value] : headers) block += LiteralHeader(name, value);
    return block;
  }
};

// A client of one connection over HTTP/2.
class RestHttp2 {
 public:
  // Confirms the server's settings, which open larger windows than HTTP/2's own.
  explicit RestHttp2(int port) : wire_(port) {
    wire_.Begin();
    (void)wire_.NextOf(kSettingsFrame);
    wire_.SendFrame(kSettingsFrame, kAck, 0, "");
  }

  RawHttp2& wire() { return wire_; }
  // Returns the number of a stream that was not used.
  uint32_t NewStream() { return std::exchange(next_stream_, next_stream_ + 2); }
  // Sends the headers. The stream has a body after them if `has_body`.
  uint32_t Begin(const HttpRequest& request, bool has_body) {
    const uint32_t stream = NewStream();
    wire_.SendFrame(kHeadersFrame, kEndHeaders | (has_body ? 0 : kEndStream), stream,
                    request.HeaderBlock());
    return stream;
  }
  // Sends a request, its body in frames of up to `frame_bytes`.
  uint32_t Send(const HttpRequest& request, size_t frame_bytes = 16'384) {
    const uint32_t stream = Begin(request, !request.body.empty());
    for (size_t at = 0; at < request.body.size(); at += frame_bytes) {
      const bool is_last = at + frame_bytes >= request.body.size();
      wire_.SendFrame(kDataFrame, is_last ? kEndStream : 0, stream,
                      request.body.substr(at, frame_bytes));
    }
    return stream;
  }
  // Returns the answer on a stream. Its status is 0 if the stream was reset or the connection
  // ended.
  Http1Answer AnswerOn(uint32_t stream) {
    while (!ended_[stream]) {
      const auto frame = wire_.Next();
      if (frame == nullptr) return {};
      Take(*frame);
    }
    return answers_[stream];
  }
  Http1Answer Ask(const HttpRequest& request) { return AnswerOn(Send(request)); }
  // The status before the last one; 0 without one.
  int informed_status(uint32_t stream) const {
    const auto found = informed_.find(stream);
    return found == informed_.end() ? 0 : found->second;
  }

 private:
  void Take(const Http2Frame& frame) {
    Http1Answer& answer = answers_[frame.stream];
    if (frame.type == kHeadersFrame) {
      TakeHeaders(wire_.Decode(frame), frame.stream);
    } else if (frame.type == kDataFrame) {
      answer.body += frame.payload;
      received_ += frame.payload.size();
      if (received_ > 16'000) {
        const std::string opened = BigEndian(static_cast<uint32_t>(std::exchange(received_, 0)));
        wire_.SendFrame(kWindowUpdateFrame, 0, 0, opened);
        wire_.SendFrame(kWindowUpdateFrame, 0, frame.stream, opened);
      }
    } else if (frame.type == kRstStreamFrame) {
      if (!ended_[frame.stream]) answer = {};
      ended_[frame.stream] = true;
    }
    const bool ends = frame.type <= kHeadersFrame && (frame.flags & kEndStream) != 0;
    if (ends) ended_[frame.stream] = true;
  }
  // `lines` are those of HeaderDecoder.
  void TakeHeaders(const std::string& lines, uint32_t stream) {
    Http1Answer& answer = answers_[stream];
    for (size_t at = 0; at < lines.size();) {
      const size_t end = lines.find('\n', at);
      const std::string line = lines.substr(at, end - at);
      const size_t colon = line.find(": ");
      const std::string name = line.substr(0, colon);
      const std::string value = line.substr(colon + 2);
      if (name == ":status") {
        if (answer.status != 0) informed_[stream] = answer.status;
        answer.status = std::atoi(value.c_str());
      } else {
        answer.headers[name] = value;
      }
      at = end + 1;
    }
  }

  RawHttp2 wire_;
  uint32_t next_stream_ = 1;
  std::map<uint32_t, Http1Answer> answers_;
  std::map<uint32_t, bool> ended_;
  std::map<uint32_t, int> informed_;
  size_t received_ = 0;  // since the windows were opened
};

}  // namespace millpond::testing
