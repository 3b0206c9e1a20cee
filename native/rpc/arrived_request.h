#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/rpc/incoming_message.h"
#include "native/rpc/method.h"
#include "native/rpc/request_headers.h"

namespace millpond::rpc {

// A request once its call is made: all of it, or the part that came before it was refused. May be
// moved until its message is read, as IncomingMessage.
//
// Thread: one at a time.
class ArrivedRequest {
 public:
  // Borrows the method. `begin_ns` is when the headers were complete. The message is empty if the
  // method takes many.
  ArrivedRequest(const Method* method, RequestHeaders headers, IncomingMessage message,
                 int64_t begin_ns)
      : method_(*method),
        headers_(std::move(headers)),
        message_(std::move(message)),
        received_ns_(begin_ns) {}

  // Dangles once the server is destroyed, which an unfinished answer may outlive.
  const Method& method() const { return method_; }
  const RequestHeaders& headers() const { return headers_; }
  // True for a request to a model, also after the server has gone.
  bool is_of_model() const { return message_.options().is_of_model; }
  // When all of it had arrived; until then, when its headers had.
  int64_t received_ns() const { return received_ns_; }
  void set_received_ns(int64_t now_ns) { received_ns_ = now_ns; }

  // --- the message ---

  // The bytes, in place: after Read, until ForgetRead, TakeText or Free.
  base::WireReader bytes() const {
    return shown_ ? base::WireReader(&*shown_, 1) : message_.reader();
  }
  bool is_compressed() const { return message_.is_compressed(); }
  // Their number as the client sent them, compressed or not.
  size_t sent_bytes() const { return message_.bytes(); }
  // Decompresses the message. Returns why it cannot be read, also later.
  const base::Status& Read() { return message_.Read(); }
  // Frees what it decompressed to, until the next Read.
  void ForgetRead() { message_.ForgetRead(); }
  // See IncomingMessage.
  base::StatusOr<base::ChargedText> TakeText() { return message_.TakeText(); }

  // Calls `look` while bytes() shows `text` and not the message.
  template <typename Look>
  void Showing(std::string_view text, Look&& look) {
    shown_ = text;
    look();
    shown_.reset();
  }
  // Calls `look` while bytes() shows enough of the message for the model's name. A compressed
  // message shows only its start, so that a request that waits is not decompressed for its name.
  template <typename Look>
  void ShowingModelName(Look&& look) {
    const std::string start = CompressedStart();
    if (!start.empty()) return Showing(start, look);
    (void)Read();
    look();
  }

  void FreeHeaders() { headers_.Free(); }
  void Free() {
    message_.Free();
    headers_.Free();
  }

 private:
  // Names stand at the start of a message, as clients write it.
  static constexpr size_t kModelNameBytes = 1024;

  // "" for a message that is decompressed, or never was compressed.
  std::string CompressedStart() const {
    if (message_.is_read() || !message_.is_compressed()) return "";
    return message_.StartOf(kModelNameBytes);
  }

  const Method& method_;
  RequestHeaders headers_;
  IncomingMessage message_;
  std::optional<std::string_view> shown_;  // in place of the message
  int64_t received_ns_;
};

}  // namespace millpond::rpc
