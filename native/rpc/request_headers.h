#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/rpc/message_encoding.h"

namespace millpond::rpc {

// Calls `visit` with the name and the value of each header. `metadata` is as RequestHeaders has it:
// each name and value has a NUL byte after it.
template <typename Visit>
void ForEachMetadata(std::string_view metadata, Visit&& visit) {
  const auto take = [&metadata] {
    const std::string_view text = metadata.substr(0, metadata.find('\0'));
    metadata.remove_prefix(text.size() + 1);
    return text;
  };
  while (!metadata.empty()) {
    const std::string_view name = take();
    visit(name, take());
  }
}

// The headers of one request, as far as gRPC or a handler needs them. They count in the share that
// was taken when the request began. A value.
//
// Thread: one at a time.
class RequestHeaders {
 public:
  // Room for usual headers, which the share has from the beginning.
  static constexpr int64_t kRoomBytes = 2'048;

  // `charge` counts kRoomBytes for the headers already. With `is_http` each header of the request
  // is metadata.
  explicit RequestHeaders(base::ByteBudget::Share charge, bool is_http = false)
      : charge_(std::move(charge)), begin_bytes_(charge_.bytes()), is_http_(is_http) {}

  // Takes one header. Returns false if no memory is left for it.
  bool Add(std::string_view name, std::string_view value);
  // INVALID_ARGUMENT if a header cannot be read.
  base::Status Check() const;

  // The bytes of all headers, counted as in RFC 9113, 6.5.2.
  size_t bytes() const { return bytes_; }
  // The bytes of the budget that the share has now.
  int64_t charged_bytes() const { return charge_.bytes(); }
  bool is_post() const { return is_post_; }
  const std::string& path() const { return path_; }
  const std::string& http_method() const { return http_method_; }
  // All metadata: each name and value, with a NUL byte after it.
  const std::string& metadata() const { return metadata_; }
  const std::string& content_type() const { return content_type_; }
  Encoding encoding() const { return encoding_; }
  const std::string& accepted_encodings() const { return accepted_encodings_; }
  std::optional<int64_t> timeout_ns() const { return timeout_ns_; }
  // The first value of a key (in lower case) of the client's metadata; lives until Free.
  std::optional<std::string_view> FindMetadata(std::string_view key) const;

  // Frees all that only the request needs: an answer may wait for its client for long. The encoding
  // and the timeout stay.
  void Free();

 private:
  void AddMetadata(std::string_view name, std::string_view value);
  void AddHost(std::string_view value);

  base::ByteBudget::Share charge_;
  int64_t begin_bytes_;
  bool is_http_;
  size_t bytes_ = 0;
  std::string path_;
  std::string http_method_;
  std::string content_type_;
  std::string accepted_encodings_;
  Encoding encoding_ = Encoding::kIdentity;
  bool is_post_ = false;
  std::optional<int64_t> timeout_ns_;
  bool has_bad_timeout_ = false;
  bool has_two_hosts_ = false;
  // Each name and value, with a NUL byte after it, which neither can hold (RFC 9113, 8.2.1). One
  // string takes less memory than a string for each of them.
  std::string metadata_;
};

}  // namespace millpond::rpc
