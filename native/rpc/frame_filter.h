#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace millpond::rpc {

// Removes RST_STREAM frames of streams that the client has not opened. gRPC's C core sends such a
// frame if a call is cancelled before its headers were written. RFC 9113, 6.4, calls it an error of
// the connection, and nghttp2 would end the connection. That would end all other calls of the
// client too. It also sees what nghttp2 does not report: frames of unknown types, and heads that
// are not complete. Not thread-safe.
//
// Cost: some ns a frame. Copies a frame's header only if it is split over two reads.
class FrameFilter {
 public:
  // Calls `feed` with the remaining parts of `bytes`, in order, until `feed` returns false. Returns
  // the last result of `feed`. Each part lies within `bytes`, except the header of a frame that
  // began before `bytes`. Calls `on_stray` with the type and the stream of each frame that nghttp2
  // may not report, before the frame: it was removed, has an unknown type, or is DATA without data.
  template <typename FeedPart, typename OnStray>
  bool Filter(std::string_view bytes, FeedPart&& feed, OnStray&& on_stray) {
    size_t begin = 0;  // of the bytes that remain and were not fed
    size_t at = 0;
    while (at < bytes.size()) {
      const size_t left = bytes.size() - at;
      if (payload_left_ > 0) {
        const size_t part = std::min(payload_left_, left);
        payload_left_ -= part;
        at += part;
        if (payload_left_ == 0) EndFrame();
        if (is_removed_) begin = at;
      } else if (header_size_ == 0 && left >= kHeaderBytes) {
        BeginFrame(bytes.data() + at);
        if (is_stray_) {
          if (!feed(bytes.substr(begin, at - begin))) return false;
          begin = at;
          on_stray(type_, static_cast<int32_t>(stream_));
        }
        at += kHeaderBytes;
        if (is_removed_) begin = at;
      } else {
        if (!feed(bytes.substr(begin, at - begin))) return false;
        const size_t part = std::min(kHeaderBytes - header_size_, left);
        std::copy_n(bytes.data() + at, part, header_ + header_size_);
        header_size_ += part;
        at += part;
        begin = at;
        if (header_size_ < kHeaderBytes) continue;
        header_size_ = 0;
        BeginFrame(header_);
        if (is_stray_) on_stray(type_, static_cast<int32_t>(stream_));
        if (!is_removed_ && !feed({header_, kHeaderBytes})) return false;
      }
    }
    return feed(bytes.substr(begin));
  }

  // A HEADERS frame has begun, and the last CONTINUATION frame after it is not complete.
  bool is_in_head() const { return is_in_head_; }
  // The heads that have begun.
  uint64_t head_count() const { return head_count_; }

 private:
  static constexpr size_t kHeaderBytes = 9;
  static constexpr unsigned kData = 0;
  static constexpr unsigned kHeaders = 1;
  static constexpr unsigned kRstStream = 3;
  static constexpr unsigned kContinuation = 9;  // the last known type
  static constexpr unsigned kEndHeaders = 4;
  static constexpr size_t kRstStreamBytes = 4;

  void BeginFrame(const char* header) {
    const auto byte = [header](size_t i) { return static_cast<unsigned char>(header[i]); };
    payload_left_ = static_cast<size_t>(byte(0)) << 16U | byte(1) << 8U | byte(2);
    type_ = byte(3);
    stream_ =
        (byte(5) & 0x7fU) << 24U | byte(6) << 16U | static_cast<uint32_t>(byte(7)) << 8U | byte(8);
    if (type_ == kHeaders) last_stream_ = std::max(last_stream_, stream_);
    is_removed_ = type_ == kRstStream && stream_ % 2 == 1 && stream_ > last_stream_ &&
                  payload_left_ == kRstStreamBytes;
    is_stray_ = is_removed_ || type_ > kContinuation || (type_ == kData && payload_left_ == 0);
    NoteHead(byte(4));
    if (payload_left_ == 0) EndFrame();
  }
  void NoteHead(unsigned flags) {
    if (type_ == kHeaders) {
      is_in_head_ = true;
      head_count_ += 1;
    }
    ends_head_ = (type_ == kHeaders || type_ == kContinuation) && (flags & kEndHeaders) != 0;
  }
  void EndFrame() {
    if (ends_head_) is_in_head_ = false;
  }

  uint32_t last_stream_ = 0;  // the highest that the client has opened
  unsigned type_ = 0;         // of the frame under way
  uint32_t stream_ = 0;       // of the frame under way
  size_t payload_left_ = 0;   // of the frame under way
  bool is_removed_ = false;   // of the frame under way
  bool is_stray_ = false;     // of the frame under way
  bool ends_head_ = false;    // of the frame under way
  bool is_in_head_ = false;
  uint64_t head_count_ = 0;
  size_t header_size_ = 0;  // of a header that is split
  char header_[kHeaderBytes];
};

}  // namespace millpond::rpc
