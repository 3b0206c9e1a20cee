#include "native/rpc/incoming_request.h"

#include <algorithm>
#include <string>

#include "native/base/no_memory.h"

namespace millpond::rpc {

base::Status IncomingRequest::Begin(const Method* method, MessageOptions options, int64_t now_ns) {
  method_ = method;
  data_ns_ = begin_ns_ = now_ns;
  options.bytes_max = std::min(options.bytes_max, method->message_bytes_max);
  options.encoding = headers_.encoding();
  options.is_of_model = method->is_of_model();
  options.is_in_one_piece = takes_many();
  message_ = IncomingMessage(options);
  return headers_.Check();
}

base::Status IncomingRequest::AddData(std::string_view data, ReceiveSpace* space, int64_t now_ns) {
  data_ns_ = now_ns;
  while (!data.empty()) {
    if (message_.is_complete()) {
      return {base::Code::kUnimplemented,
              method_->path + " takes one message, and the client sent another"};
    }
    MILLPOND_RETURN_IF_ERROR(message_.Add(&data, space));
    if (takes_many() && message_.is_complete()) MILLPOND_RETURN_IF_ERROR(EndMessage());
  }
  return {};
}

base::Status IncomingRequest::EndMessage() {
  MILLPOND_RETURN_IF_ERROR(message_.Read());
  if (messages_.size() >= kUnreadMessagesMax) {
    return {base::Code::kResourceExhausted,
            std::to_string(kUnreadMessagesMax) + " messages wait; send fewer at once"};
  }
  auto text = message_.TakeText();
  if (!text.ok()) return text.status();
  if (!text.value().share.Add(static_cast<int64_t>(sizeof(base::ChargedText)))) {
    return base::NoMemoryFor("a message that waits", *message_.options().budget);
  }
  messages_.push_back(std::move(text.value()));
  message_ = IncomingMessage(message_.options());
  return {};
}

base::Status IncomingRequest::End() {
  has_ended_ = true;
  if (message_.options().is_bare) message_.End();
  if (message_.has_begun() && !message_.is_complete()) {
    return base::Internal("the client ended its request within a message");
  }
  if (!takes_many() && !message_.has_begun()) {
    return {base::Code::kUnimplemented,
            method_->path + " takes one message, and the client sent none"};
  }
  return {};
}

base::ChargedText IncomingRequest::TakeNext() {
  base::ChargedText next = std::move(messages_.front());
  messages_.erase(messages_.begin());
  return next;
}

}  // namespace millpond::rpc
