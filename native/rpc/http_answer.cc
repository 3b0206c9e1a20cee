#include "native/rpc/http_answer.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "native/base/wire_reader.h"

namespace millpond::rpc {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The number of bytes of the character at the front of `text`; 0 if it is not UTF-8.
size_t CharacterBytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const size_t size = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  return size <= text.size() && base::IsValidUtf8(text.substr(0, size)) ? size : 0;
}

void AppendEscaped(char c, std::string* json) {
  constexpr char kDigits[] = "0123456789abcdef";
  switch (c) {
    case '"':
    case '\\':
      json->push_back('\\');
      json->push_back(c);
      return;
    case '\n':
      json->append("\\n");
      return;
    case '\t':
      json->append("\\t");
      return;
    case '\r':
      json->append("\\r");
      return;
    default:
      break;
  }
  const auto code = static_cast<unsigned char>(c);
  if (code >= 0x20) return json->push_back(c);
  json->append("\\u00");
  json->push_back(kDigits[code >> 4U]);
  json->push_back(kDigits[code & 15U]);
}

bool IsPassing(int status) { return status == 429 || status == 503; }

}  // namespace

std::string_view DateNow() {
  thread_local std::time_t made = 0;
  thread_local std::array<char, 40> text{};
  thread_local size_t size = 0;
  const std::time_t now = std::time(nullptr);
  if (now != made) {
    std::tm parts{};
    gmtime_r(&now, &parts);
    // The process has C's locale: names are English.
    size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    made = now;
  }
  return {text.data(), size};
}

void AddField(std::string_view name, std::string_view value, std::string* fields) {
  fields->append(name).append(": ").append(value).append("\r\n");
}

std::string ErrorBody(std::string_view message) {
  std::string json = "{\"error\": \"";
  while (!message.empty()) {
    const size_t size = CharacterBytes(message);
    if (size == 1) {
      AppendEscaped(message.front(), &json);
    } else {
      json.append(size == 0 ? kReplacement : message.substr(0, size));
    }
    message.remove_prefix(std::max<size_t>(size, 1));
  }
  return json + "\"}";
}

int HttpStatusOf(base::Code code) {
  // By the code's number.
  static constexpr std::array<int, base::kCodeCount> kStatuses = {
      200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401};
  return kStatuses[static_cast<size_t>(code)];
}

std::string CorsFields(bool has_cors) {
  if (!has_cors) return "";
  std::string fields;
  AddField("access-control-allow-origin", "*", &fields);
  AddField("access-control-allow-methods", "POST, GET", &fields);
  AddField("access-control-allow-headers", "Content-Type, inference-header-content-length",
           &fields);
  AddField("access-control-expose-headers",
           "x-millpond-model-name, x-millpond-model-version, inference-header-content-length",
           &fields);
  return fields;
}

void HttpReply::Set(std::shared_ptr<HttpAnswer> answer, const std::string& common_fields,
                    int64_t now_ns) {
  is_set_ = true;
  answer_ = std::move(answer);
  status_ = std::to_string(answer_->status);
  // 304 and 204 have no length. Every other answer has one, even if its body is empty.
  if (answer_->status != 304 && answer_->status != 204) {
    length_ = std::to_string(answer_->body.size());
  }
  fields_ = std::move(answer_->fields) + common_fields;
  progress_ns_ = now_ns;
}

void HttpReply::SetFailure(const base::Status& status, const std::string& fields,
                           const std::string& common_fields, int64_t now_ns,
                           std::optional<int> http_status) {
  is_set_ = true;
  const int code = http_status.value_or(HttpStatusOf(status.code()));
  status_ = std::to_string(code);
  failure_ = ErrorBody(base::WithShortMessage(status).message());
  length_ = std::to_string(failure_.size());
  AddField("content-type", "application/json", &fields_);
  fields_ += fields;
  fields_ += common_fields;
  // A version's refusal, for example of a body that is too large, would be the same a second later,
  // so it has no Retry-After.
  if (fields.empty() && IsPassing(code)) AddField("retry-after", "1", &fields_);
  progress_ns_ = now_ns;
}

HeaderList HttpReply::Headers() const {
  HeaderList headers;
  headers.Add(":status", status_);
  if (!length_.empty()) headers.Add("content-length", length_);
  std::string_view rest = fields_;
  while (!rest.empty() && headers.size() < HeaderList::kSizeMax - 1) {
    const size_t colon = rest.find(": ");
    const size_t end = rest.find("\r\n");
    headers.Add(rest.substr(0, colon), rest.substr(colon + 2, end - colon - 2));
    rest.remove_prefix(end + 2);
  }
  headers.Add("date", DateNow());
  return headers;
}

size_t HttpReply::Offer(size_t bytes_max, bool* is_last) const {
  const size_t left = body().size() - sent_bytes_;
  const size_t offered = std::min(bytes_max, left);
  *is_last = offered == left;
  return offered;
}

void HttpReply::Take(size_t bytes, OutputQueue* output) {
  const std::string_view part = body().substr(sent_bytes_, bytes);
  sent_bytes_ += bytes;
  if (answer_ == nullptr) return output->Append(part);
  output->Append(answer_, part);
}

}  // namespace millpond::rpc
