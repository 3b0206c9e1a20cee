#pragma once

#include <nghttp2/nghttp2.h>
#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/native/raw_http2.h"

namespace millpond::testing {

// The frames of one client, in order, as its bytes. The preface is not among them.
using Conversation = std::vector<std::string>;

inline constexpr uint8_t kPaddedFlag = 8;
inline constexpr uint8_t kPriorityFlag = 0x20;

inline std::string SettingBytes(uint16_t name, uint32_t value) {
  return BigEndian(name).substr(2) + BigEndian(value);
}

// Returns the header blocks of `count` equal requests on one connection, as a real client packs
// them: with Huffman coding, and with indices of the dynamic table from the second one on.
inline std::vector<std::string> PackedHeaders(const std::string& path, int count) {
  nghttp2_hd_deflater* deflater = nullptr;
  nghttp2_hd_deflate_new(&deflater, 4096);
  const std::vector<std::pair<std::string, std::string>> headers = {
      {":method", "POST"},           {":scheme", "http"}, {":path", path},
      {":authority", "test"},        {"te", "trailers"},  {"content-type", "application/grpc"},
      {"grpc-encoding", "identity"}, {"x-bin", "q6ur"},   {"grpc-accept-encoding", "gzip"},
  };
  std::vector<nghttp2_nv> lines;
  for (const auto& [name, value] : headers) {
    lines.push_back({reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
                     reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(),
                     value.size(), NGHTTP2_NV_FLAG_NONE});
  }
  std::vector<std::string> blocks;
  for (int i = 0; i < count; ++i) {
    std::string block(nghttp2_hd_deflate_bound(deflater, lines.data(), lines.size()), '\0');
    const ssize_t size = nghttp2_hd_deflate_hd(deflater, reinterpret_cast<uint8_t*>(block.data()),
                                               block.size(), lines.data(), lines.size());
    block.resize(static_cast<size_t>(size));
    blocks.push_back(block);
  }
  nghttp2_hd_deflate_del(deflater);
  return blocks;
}

inline std::string Zipped(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string zipped(size, '\0');
  compress(reinterpret_cast<Bytef*>(zipped.data()), &size,
           reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  zipped.resize(size);
  return zipped;
}

inline std::string HeadersOf(uint32_t stream, const std::string& path, const std::string& more = "",
                             uint8_t more_flags = 0) {
  return FrameBytes(kHeadersFrame, kEndHeaders | more_flags, stream, GrpcHeaders(path, more));
}

inline std::string LastData(uint32_t stream, const std::string& bytes) {
  return FrameBytes(kDataFrame, kEndStream, stream, bytes);
}

// Returns valid and odd conversations with the methods of WireFuzzTest.
inline std::vector<Conversation> Conversations() {
  const std::string echo = "/test.Echo/Echo";
  const std::string late = "/test.Echo/Late";
  const std::string stream = "/test.Echo/Stream";
  const std::string settings = FrameBytes(kSettingsFrame, 0, 0, "");
  const std::string ack = FrameBytes(kSettingsFrame, kAck, 0, "");
  const std::string window = FrameBytes(kWindowUpdateFrame, 0, 0, BigEndian(1'000'000));
  const std::string large(16'384, 'l');
  std::vector<Conversation> all;

  // One call, with the pings and settings of usual clients.
  all.push_back({settings, ack, window, HeadersOf(1, echo), LastData(1, GrpcMessage("hello")),
                 FrameBytes(kPingFrame, 0, 0, "12345678"),
                 FrameBytes(kPingFrame, kAck, 0, std::string("alive\0\0", 8))});
  // A message in parts of a few bytes, and empty DATA frames between them.
  all.push_back({settings, HeadersOf(1, echo), FrameBytes(kDataFrame, 0, 1, std::string(3, '\0')),
                 FrameBytes(kDataFrame, 0, 1, ""),
                 FrameBytes(kDataFrame, 0, 1, std::string("\0\4ab", 4)), LastData(1, "cd")});
  // A message of many frames, which stays in the blocks that it was read into.
  {
    Conversation frames = {
        settings,
        ack,
        window,
        HeadersOf(1, echo),
        FrameBytes(kWindowUpdateFrame, 0, 1, BigEndian(100'000)),
        FrameBytes(kDataFrame, 0, 1, GrpcMessage(std::string(100'000, 'm')).substr(0, 16'384))};
    for (int i = 0; i < 5; ++i) frames.push_back(FrameBytes(kDataFrame, 0, 1, large));
    frames.push_back(LastData(1, std::string(100'005 - 6 * 16'384, 'm')));
    all.push_back(frames);
  }
  // Two calls on streams that take turns, and one that is answered by another thread.
  all.push_back({settings, HeadersOf(1, echo), HeadersOf(3, late), HeadersOf(5, echo),
                 FrameBytes(kDataFrame, 0, 1, GrpcMessage("one").substr(0, 4)),
                 LastData(3, GrpcMessage("three")), LastData(5, GrpcMessage("five")),
                 LastData(1, GrpcMessage("one").substr(4))});
  // Cancellations: before the message, within it, after it, and before the headers.
  all.push_back({settings, HeadersOf(1, echo), FrameBytes(kRstStreamFrame, 0, 1, BigEndian(8)),
                 HeadersOf(3, late), FrameBytes(kDataFrame, 0, 3, GrpcMessage("abc").substr(0, 6)),
                 FrameBytes(kRstStreamFrame, 0, 3, BigEndian(8)), HeadersOf(5, late),
                 LastData(5, GrpcMessage("abc")), FrameBytes(kRstStreamFrame, 0, 5, BigEndian(8)),
                 FrameBytes(kRstStreamFrame, 0, 7, BigEndian(8)), HeadersOf(9, echo),
                 LastData(9, GrpcMessage("abc"))});
  // Many calls whose headers come from the dynamic table.
  {
    Conversation frames = {settings};
    uint32_t id = 1;
    for (const std::string& block : PackedHeaders(echo, 6)) {
      frames.push_back(FrameBytes(kHeadersFrame, kEndHeaders, id, block));
      frames.push_back(LastData(id, GrpcMessage(std::string(id * 10, 'd'))));
      id += 2;
    }
    all.push_back(frames);
  }
  // Padding, a priority, and headers that go on in CONTINUATION frames.
  all.push_back(
      {settings, FrameBytes(kPriorityFrame, 0, 3, BigEndian(0) + "\x10"),
       FrameBytes(kHeadersFrame, kEndHeaders | kPaddedFlag | kPriorityFlag, 1,
                  std::string("\x04", 1) + BigEndian(0) + "\x10" + GrpcHeaders(echo) + "pad!"),
       FrameBytes(kDataFrame, kPaddedFlag | kEndStream, 1, "\x03" + GrpcMessage("padded") + "pad"),
       FrameBytes(kHeadersFrame, 0, 3, GrpcHeaders(echo).substr(0, 20)),
       FrameBytes(kContinuationFrame, 0, 3, GrpcHeaders(echo).substr(20, 30)),
       FrameBytes(kContinuationFrame, kEndHeaders, 3, GrpcHeaders(echo).substr(50)),
       LastData(3, GrpcMessage("continued"))});
  // Compressed messages, one of them cut short and one with a flag that there is not.
  const std::string deflate = LiteralHeader("grpc-encoding", "deflate") +
                              LiteralHeader("grpc-accept-encoding", "deflate, gzip");
  all.push_back({settings, HeadersOf(1, echo, deflate),
                 LastData(1, GrpcMessage(Zipped(std::string(50'000, 'z')), true)),
                 HeadersOf(3, echo, deflate),
                 LastData(3, GrpcMessage(Zipped(std::string(500, 'z')).substr(0, 8), true)),
                 HeadersOf(5, echo), LastData(5, "\x02" + GrpcMessage("flag").substr(1)),
                 HeadersOf(7, stream, deflate),
                 LastData(7, GrpcMessage(Zipped("stream"), true) + GrpcMessage("plain"))});
  // A stream of messages both ways, ended by trailers of the client.
  all.push_back({settings, HeadersOf(1, stream), FrameBytes(kDataFrame, 0, 1, GrpcMessage("a")),
                 FrameBytes(kDataFrame, 0, 1, GrpcMessage("b") + GrpcMessage("c")),
                 FrameBytes(kHeadersFrame, kEndHeaders | kEndStream, 1, LiteralHeader("x", "y")),
                 HeadersOf(3, stream, "", kEndStream)});
  // One request with many answers: more than may wait, and of a client that reads little of them.
  all.push_back({settings, HeadersOf(1, "/test.Echo/Many"), LastData(1, GrpcMessage("many")),
                 HeadersOf(3, "/test.Echo/Many"), LastData(3, GrpcMessage("many")),
                 FrameBytes(kWindowUpdateFrame, 0, 1, BigEndian(50'000)),
                 FrameBytes(kRstStreamFrame, 0, 3, BigEndian(8)),
                 FrameBytes(kWindowUpdateFrame, 0, 0, BigEndian(100'000))});
  // A client whose windows are closed at first, and open while answers wait.
  all.push_back(
      {FrameBytes(kSettingsFrame, 0, 0, SettingBytes(4, 0) + SettingBytes(1, 0)),
       HeadersOf(1, echo), LastData(1, GrpcMessage(std::string(9'000, 'w'))), HeadersOf(3, stream),
       LastData(3, GrpcMessage("w")), FrameBytes(kWindowUpdateFrame, 0, 1, BigEndian(2)),
       FrameBytes(kWindowUpdateFrame, 0, 1, BigEndian(4)),
       FrameBytes(kWindowUpdateFrame, 0, 1, BigEndian(100)),
       FrameBytes(kSettingsFrame, 0, 0, SettingBytes(4, 65'535) + SettingBytes(5, 100'000)),
       FrameBytes(kWindowUpdateFrame, 0, 3, BigEndian(100'000))});
  // Messages that are announced and do not come, or that are too long.
  all.push_back({settings, HeadersOf(1, echo),
                 FrameBytes(kDataFrame, 0, 1, std::string(1, '\0') + BigEndian(0x7fffffffU)),
                 FrameBytes(kDataFrame, 0, 1, large), HeadersOf(3, echo),
                 LastData(3, GrpcMessage("short").substr(0, 7)), HeadersOf(5, echo, "", kEndStream),
                 HeadersOf(7, echo), LastData(7, GrpcMessage("a") + GrpcMessage("b")),
                 HeadersOf(9, echo),
                 FrameBytes(kDataFrame, 0, 9, std::string(1, '\0') + BigEndian(100'000)),
                 FrameBytes(kDataFrame, 0, 9, large), FrameBytes(kDataFrame, 0, 9, large)});
  // Deadlines, unknown methods, other content types, and more headers than are allowed.
  all.push_back({settings, HeadersOf(1, late, LiteralHeader("grpc-timeout", "1m")),
                 LastData(1, GrpcMessage("t")),
                 HeadersOf(3, echo, LiteralHeader("grpc-timeout", "x")), HeadersOf(5, "/unknown"),
                 LastData(5, GrpcMessage("u")),
                 FrameBytes(kHeadersFrame, kEndHeaders | kEndStream, 7,
                            LiteralHeader(":method", "GET") + LiteralHeader(":scheme", "http") +
                                LiteralHeader(":path", "/") + LiteralHeader(":authority", "t")),
                 HeadersOf(9, echo, [] {
                   std::string headers;
                   for (int i = 0; i < 120; ++i)
                     headers += LiteralHeader("x", std::string(120, 'x'));
                   return headers;
                 }())});
  // A client that has seen a GOAWAY which nobody sent, and frames of unknown types.
  all.push_back({settings, HeadersOf(1, late), LastData(1, GrpcMessage("bye")),
                 FrameBytes(kGoawayFrame, 0, 0, BigEndian(0) + BigEndian(0) + "reason"),
                 FrameBytes(0x42, 0xff, 0, "unknown"), FrameBytes(5, kEndHeaders, 1, BigEndian(2)),
                 FrameBytes(kPingFrame, kAck, 0, std::string("goaway\0", 8))});
  // More streams than are allowed, all open.
  {
    Conversation frames = {settings, ack};
    for (uint32_t id = 1; id < 30; id += 2) frames.push_back(HeadersOf(id, late));
    for (uint32_t id = 1; id < 30; id += 2) frames.push_back(LastData(id, GrpcMessage("many")));
    all.push_back(frames);
  }
  // Another protocol.
  all.push_back({"GET / HTTP/1.1\r\nhost: test\r\n\r\n", "\x16\x03\x01\x02", settings});
  return all;
}

}  // namespace millpond::testing
