#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/rpc/arrived_request.h"
#include "native/rpc/incoming_message.h"
#include "native/rpc/method.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/request_headers.h"

namespace millpond::rpc {

// A request as it arrives: its headers, and its message, or its messages one after the other.
//
// Thread: one at a time: under the connection's lock.
class IncomingRequest {
 public:
  // More than a client sends at once, or leaves unread, that means well.
  static constexpr size_t kUnreadMessagesMax = 64;

  // `charge` has the bytes of the call itself and of its headers.
  explicit IncomingRequest(base::ByteBudget::Share charge, bool is_http = false)
      : headers_(std::move(charge), is_http) {}

  RequestHeaders* headers() { return &headers_; }
  // All headers have come, and their path names `method`. An error ends the call.
  base::Status Begin(const Method* method, MessageOptions options, int64_t now_ns);
  // Takes a part of the client's bytes, which lie in the block of `space`. An error ends the call.
  base::Status AddData(std::string_view data, ReceiveSpace* space, int64_t now_ns);
  // The client sends no more. An error ends the call.
  base::Status End();

  // Null before Begin.
  const Method* method() const { return method_; }
  bool takes_many() const { return method_->takes_many(); }
  bool has_ended() const { return has_ended_; }
  bool is_receiving() const { return method_ != nullptr && !has_ended_; }
  // True if the one message is arriving, and a part of it came at `since_ns` or later.
  bool is_arriving(int64_t since_ns) const {
    return is_receiving() && !takes_many() && data_ns_ >= since_ns;
  }
  // True if it is arriving, and no part of it came since then.
  bool is_paused(int64_t since_ns) const {
    return is_receiving() && !takes_many() && data_ns_ < since_ns;
  }

  // Hands what has arrived to the call. Of many messages, later ones stay here.
  ArrivedRequest Take() {
    return {method_, std::move(headers_),
            takes_many() ? IncomingMessage(message_.options()) : std::move(message_), begin_ns_};
  }
  // The messages that have arrived in full, if the method takes many.
  bool has_messages() const { return !messages_.empty(); }
  base::ChargedText TakeNext();

 private:
  base::Status EndMessage();

  RequestHeaders headers_;
  const Method* method_ = nullptr;
  int64_t begin_ns_ = 0;
  int64_t data_ns_ = 0;      // when the last part came; at first, when the headers were complete
  IncomingMessage message_;  // that is arriving, or the one that has arrived
  std::vector<base::ChargedText> messages_;  // few; an empty deque would allocate
  bool has_ended_ = false;
};

}  // namespace millpond::rpc
