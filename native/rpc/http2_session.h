#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "native/base/byte_budget.h"
#include "native/rpc/frame_filter.h"
#include "native/rpc/output_queue.h"
#include "native/rpc/session.h"
#include "native/rpc/session_memory.h"
#include "native/rpc/wire_limits.h"

namespace millpond::rpc {

// The first bytes of each client of HTTP/2.
inline constexpr std::string_view kHttp2Preface = NGHTTP2_CLIENT_MAGIC;

// HTTP/2 over nghttp2, whose memory counts in the budget. It sends nothing before the client's
// preface has come, because a client that speaks HTTP/1 would read the server's first frames as its
// answer. A client of HTTP/2 does not wait for these frames (RFC 9113, 3.4).
//
// Thread: as Session.
class Http2Session final : public Session {
 public:
  // Borrows all; the budget may be null.
  Http2Session(const WireLimits& limits, base::ByteBudget* budget, StreamEvents* streams,
               SessionEvents* events);
  ~Http2Session() override;
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  bool is_made() const override { return session_ != nullptr; }
  bool Feed(std::string_view bytes) override;
  Output Produce(OutputQueue* output) override;
  bool is_over() const override;
  void Submit(int32_t stream, const HeaderList& headers) override;
  void Submit(int32_t stream, const HeaderList& headers, AnswerBody* body) override;
  void Resume(int32_t stream) override;
  void Reset(int32_t stream, ResetReason reason) override;
  void SubmitPing() override;
  void SubmitGoaway() override;
  void SubmitLastGoaway() override;
  void SubmitComplaint(std::string_view reason) override;
  void CheckTimes(int64_t now_ns) override;

 private:
  static int OnBeginFrame(nghttp2_session*, const nghttp2_frame_hd* header, void* self);
  static int OnBeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                      void* self);
  static int OnDataChunk(nghttp2_session*, uint8_t, int32_t stream, const uint8_t* data,
                         size_t size, void* self);
  static int OnFrameReceived(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int OnFrameSent(nghttp2_session* session, const nghttp2_frame* frame, void* self);
  static int OnStreamClosed(nghttp2_session*, int32_t stream, uint32_t, void* self);
  static ssize_t OnReadData(nghttp2_session* session, int32_t stream, uint8_t*, size_t size,
                            uint32_t* flags, nghttp2_data_source* source, void*);
  static int OnSendData(nghttp2_session*, nghttp2_frame* frame, const uint8_t* header, size_t size,
                        nghttp2_data_source* source, void* self);
  static nghttp2_session_callbacks* Callbacks();

  bool FeedSession(std::string_view bytes);
  void TakeStrayFrame(unsigned type, int32_t stream);
  bool TakeField(size_t bytes);
  void TakePing(const nghttp2_ping& ping);
  void ContinueIfExpected(const nghttp2_frame& headers);
  void SubmitGoawayOf(uint32_t error_code, std::string_view reason);

  const size_t head_bytes_max_;
  const int64_t head_ns_;
  StreamEvents* const streams_;
  SessionEvents* const events_;
  SessionMemory memory_;
  nghttp2_session* session_ = nullptr;
  OutputQueue* output_ = nullptr;  // within Produce
  std::string first_bytes_;        // of the client, until the preface is complete
  bool is_foreign_ = false;        // the client does not speak HTTP/2
  FrameFilter frames_;             // of all after the preface
  size_t head_bytes_ = 0;          // of the head under way, in the decoded fields
  uint64_t seen_head_ = 0;         // the head that was incomplete at the last look at the times
  int64_t head_seen_ns_ = 0;       // the first look at it
  int32_t expecting_stream_ = 0;   // its client waits for "100 Continue"; 0: none does
};

}  // namespace millpond::rpc
