#include "native/rpc/outgoing_reply.h"

#include <algorithm>
#include <utility>

#include "native/rpc/grpc_text.h"

namespace millpond::rpc {

// PROTOCOL-HTTP2: one byte that says if the message is compressed, and its length, big-endian.
OutMessage::OutMessage(base::ReplyBytes reply, bool is_compressed) : reply_(std::move(reply)) {
  const auto size = static_cast<uint32_t>(reply_.size());
  prefix_[0] = is_compressed ? 1 : 0;
  for (int i = 0; i < 4; ++i) prefix_[1 + i] = static_cast<char>(size >> (24U - 8U * i));
}

void OutgoingReply::Add(std::shared_ptr<OutMessage> message, int64_t now_ns) {
  if (messages_.empty()) progress_ns_ = now_ns;
  messages_.push_back(std::move(message));
}

void OutgoingReply::End(CallEnd end, int64_t now_ns) {
  encoding_ = end.encoding;
  if (end.message != nullptr) messages_.push_back(std::move(end.message));
  progress_ns_ = now_ns;
  code_ = std::to_string(static_cast<int>(end.status.code()));
  if (!end.status.ok()) error_ = PercentEncode(base::WithShortMessage(end.status).message());
  if (end.pushback_ms) pushback_ = std::to_string(*end.pushback_ms);
  names_encodings_ = end.names_encodings;
}

HeaderList OutgoingReply::Headers() const {
  HeaderList headers;
  headers.AddLiteral(":status", "200");
  headers.AddLiteral("content-type", "application/grpc");
  headers.AddLiteral("grpc-accept-encoding", kAcceptedEncodings);
  if (encoding_ != Encoding::kIdentity) headers.AddLiteral("grpc-encoding", NameOf(encoding_));
  return headers;
}

HeaderList OutgoingReply::HeadersWithEnd() const {
  HeaderList headers;
  headers.AddLiteral(":status", "200");
  headers.AddLiteral("content-type", "application/grpc");
  AddEnd(&headers);
  return headers;
}

HeaderList OutgoingReply::Trailers() const {
  HeaderList headers;
  AddEnd(&headers);
  return headers;
}

void OutgoingReply::AddEnd(HeaderList* headers) const {
  headers->Add("grpc-status", *code_);
  if (*code_ != "0") headers->Add("grpc-message", error_);
  if (!pushback_.empty()) headers->Add("grpc-retry-pushback-ms", pushback_);
  if (names_encodings_) headers->AddLiteral("grpc-accept-encoding", kAcceptedEncodings);
}

size_t OutgoingReply::Offer(size_t bytes_max, bool* is_last) const {
  if (messages_.empty()) {
    *is_last = code_.has_value();
    return 0;
  }
  const size_t left = messages_.front()->size() - sent_bytes_;
  const size_t offered = std::min(bytes_max, left);
  *is_last = offered == left && messages_.size() == 1 && code_.has_value();
  return offered;
}

void OutgoingReply::Take(size_t bytes, OutputQueue* output) {
  if (bytes == 0) return;
  const std::shared_ptr<OutMessage>& message = messages_.front();
  if (sent_bytes_ < kMessagePrefixBytes) {
    const std::string_view part = message->prefix().substr(sent_bytes_, bytes);
    output->Append(part);
    sent_bytes_ += part.size();
    bytes -= part.size();
  }
  // The client's window may end within the prefix.
  if (bytes > 0) {
    output->Append(message, message->body().substr(sent_bytes_ - kMessagePrefixBytes, bytes));
    sent_bytes_ += bytes;
  }
  if (sent_bytes_ == message->size()) {
    messages_.erase(messages_.begin());
    sent_bytes_ = 0;
  }
}

}  // namespace millpond::rpc
