#include "native/rpc/http_session.h"

#include <utility>

#include "native/rpc/http1_session.h"
#include "native/rpc/http2_session.h"

namespace millpond::rpc {

HttpSession::HttpSession(const WireLimits& limits, const Http1Limits& http1_limits,
                         base::ByteBudget* budget, StreamEvents* streams, SessionEvents* events)
    : limits_(limits),
      budget_(budget),
      streams_(streams),
      events_(events),
      session_(std::make_unique<Http1Session>(http1_limits, budget, streams, events)) {}

bool HttpSession::Feed(std::string_view bytes) {
  if (is_chosen_) return session_->Feed(bytes);
  const std::string_view expected = kHttp2Preface.substr(first_bytes_.size());
  const std::string_view part = bytes.substr(0, expected.size());
  if (part == expected) {
    session_ = std::make_unique<Http2Session>(limits_, budget_, streams_, events_);
  } else if (part == expected.substr(0, part.size())) {
    first_bytes_ += part;
    return true;
  }
  is_chosen_ = true;
  const std::string before = std::exchange(first_bytes_, {});
  return session_->is_made() && session_->Feed(before) && session_->Feed(bytes);
}

}  // namespace millpond::rpc
