#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "native/base/byte_budget.h"
#include "native/rpc/output_queue.h"
#include "native/rpc/session.h"
#include "native/rpc/wire_limits.h"

namespace millpond::rpc {

// The protocols of an HttpSession, in the form of Protocol::alpn. A client that has agreed on one
// of them speaks it, so its first bytes decide over TLS too.
inline constexpr std::string_view kHttpAlpn = "\x02h2\x08http/1.1";

// The session of a client that speaks HTTP/2 or HTTP/1.1: its first bytes decide. HTTP/2 begins
// with a preface (RFC 9113, 3.4) that is no request of HTTP/1.
//
// Thread: as Session.
class HttpSession final : public Session {
 public:
  // Borrows all but `http1_limits`. The budget may be null.
  HttpSession(const WireLimits& limits, const Http1Limits& http1_limits, base::ByteBudget* budget,
              StreamEvents* streams, SessionEvents* events);

  bool Feed(std::string_view bytes) override;

  bool is_made() const override { return session_->is_made(); }
  bool wants_input() const override { return session_->wants_input(); }
  size_t waiting_bytes() const override { return session_->waiting_bytes(); }
  size_t TakeWaiting(char* to, size_t bytes_max) override {
    return session_->TakeWaiting(to, bytes_max);
  }
  bool answers_half_closed() const override { return session_->answers_half_closed(); }
  void CheckTimes(int64_t now_ns) override { session_->CheckTimes(now_ns); }
  Output Produce(OutputQueue* output) override { return session_->Produce(output); }
  bool is_over() const override { return session_->is_over(); }
  void Submit(int32_t stream, const HeaderList& headers) override {
    session_->Submit(stream, headers);
  }
  void Submit(int32_t stream, const HeaderList& headers, AnswerBody* body) override {
    session_->Submit(stream, headers, body);
  }
  void Resume(int32_t stream) override { session_->Resume(stream); }
  void Reset(int32_t stream, ResetReason reason) override { session_->Reset(stream, reason); }
  void SubmitPing() override { session_->SubmitPing(); }
  void SubmitGoaway() override { session_->SubmitGoaway(); }
  void SubmitLastGoaway() override { session_->SubmitLastGoaway(); }
  void SubmitComplaint(std::string_view reason) override { session_->SubmitComplaint(reason); }

 private:
  const WireLimits& limits_;
  base::ByteBudget* const budget_;
  StreamEvents* const streams_;
  SessionEvents* const events_;
  std::unique_ptr<Session> session_;  // of HTTP/1.1, until all of the preface has come
  bool is_chosen_ = false;
  std::string first_bytes_;  // of the client, while they may be the preface's
};

}  // namespace millpond::rpc
