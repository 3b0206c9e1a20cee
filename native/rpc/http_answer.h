#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/rpc/session.h"

namespace millpond::rpc {

// The whole answer to a request over HTTP, as a handler makes it. HttpReply adds the length and the
// date, and the session what concerns the connection.
struct HttpAnswer {
  int status = 200;
  // The lines "name: value\r\n" of the further headers, with names in lower case.
  std::string fields;
  base::ReplyBytes body;
};

// Returns the Date of an answer that is made now (RFC 9110, 6.6.1). Each thread makes it once a
// second. The text is valid until the thread's next call.
std::string_view DateNow();

// Adds a line to the fields of an answer. `value` has no line end.
void AddField(std::string_view name, std::string_view value, std::string* fields);

// Returns {"error": "..."}, as TensorFlow Serving answers failures. Bytes of `message` that are not
// UTF-8 become U+FFFD.
std::string ErrorBody(std::string_view message);

// Returns the HTTP status that TensorFlow Serving has for a code.
int HttpStatusOf(base::Code code);

// Returns the headers that every answer has for pages of other sites; "" without CORS.
std::string CorsFields(bool has_cors);

// The body of one answer on its way to the client.
//
// Thread: one at a time: under the connection's lock.
class HttpReply final : public AnswerBody {
 public:
  void Set(std::shared_ptr<HttpAnswer> answer, const std::string& common_fields, int64_t now_ns);
  // Sets the answer of a request that failed. `fields` name the version that the request reached;
  // with "" it reached none, and may be sent again. `http_status` replaces the status of the code.
  void SetFailure(const base::Status& status, const std::string& fields,
                  const std::string& common_fields, int64_t now_ns,
                  std::optional<int> http_status = {});

  // Borrows from this object, and the date from this thread.
  HeaderList Headers() const;
  // False for an answer that is its headers alone.
  bool has_body() const { return !body().empty(); }
  size_t Offer(size_t bytes_max, bool* is_last) const override;
  void Take(size_t bytes, OutputQueue* output) override;
  HeaderList Trailers() const override { return {}; }
  void NoteSent(int64_t now_ns) { progress_ns_ = now_ns; }
  bool is_set() const { return is_set_; }
  // True if the client has not read all, and nothing was sent since `since_ns`.
  bool is_left_unread(int64_t since_ns) const {
    return is_set_ && sent_bytes_ < body().size() && progress_ns_ < since_ns;
  }

 private:
  std::string_view body() const { return answer_ != nullptr ? answer_->body.view() : failure_; }

  bool is_set_ = false;
  std::shared_ptr<HttpAnswer> answer_;  // null: `failure_` has the body
  std::string failure_;
  std::string status_;
  std::string length_;
  std::string fields_;
  size_t sent_bytes_ = 0;
  int64_t progress_ns_ = 0;
};

}  // namespace millpond::rpc
