#include <string>

#include "native/rest/content_coding.h"
#include "tests/native/fuzz/fuzz_target.h"

namespace millpond::fuzz {
namespace {

using base::Code;
using rest::ContentCoding;

constexpr size_t kBytesMax = 10'000;

bool CanInflate(ContentCoding coding, std::string_view coded) {
  std::string body;
  const base::Status status = rest::Inflate(coding, coded, kBytesMax, &body);
  if (status.ok()) {
    FUZZ_CHECK(body.size() <= kBytesMax, std::to_string(body.size()) + " bytes");
    return true;
  }
  FUZZ_CHECK(status.code() == Code::kInvalidArgument || status.code() == Code::kResourceExhausted,
             status.message());
  FUZZ_CHECK(!status.message().empty(), base::CodeName(status.code()));
  return false;
}

}  // namespace

// Any bytes inflate to at most the limit, or are refused with a message. Gzip of any bytes inflates
// to them.
Verdict Run(std::string_view input) {
  const bool is_gzip = CanInflate(ContentCoding::kGzip, input);
  const bool is_deflate = CanInflate(ContentCoding::kDeflate, input);
  const auto coded = rest::Gzip(input, {});
  FUZZ_CHECK(coded.ok(), coded.status().message());
  std::string body;
  FUZZ_CHECK(rest::Inflate(ContentCoding::kGzip, coded.value().view(), input.size(), &body).ok(),
             "gzip");
  FUZZ_CHECK(body == input, "gzip");
  return is_gzip || is_deflate ? Verdict::kTaken : Verdict::kRefused;
}

}  // namespace millpond::fuzz
