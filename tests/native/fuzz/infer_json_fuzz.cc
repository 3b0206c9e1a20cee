#include <optional>
#include <string>

#include "native/rest/infer_json.h"
#include "tests/native/answer_alone.h"
#include "tests/native/echo_servable.h"
#include "tests/native/fuzz/fuzz_target.h"

namespace millpond::fuzz {

// A body of KServe's infer, JSON with or without binary tensors behind it, is answered or refused
// with a message. It is never answered with INTERNAL. The first line of the input is the header
// Inference-Header-Content-Length, empty if the request does not have it.
Verdict Run(std::string_view input) {
  static const testing::EchoServable servable;
  const size_t line_end = input.find('\n');
  if (line_end == std::string_view::npos) return Verdict::kRefused;
  std::optional<std::string> header;
  if (line_end > 0) header = std::string(input.substr(0, line_end));
  rest::RestReply reply;
  const base::Status status = testing::AnswerAlone(
      [&](rest::PreparedRest* prepared) {
        return rest::PrepareModelInfer(servable, input.substr(line_end + 1), header, prepared);
      },
      &reply);
  FUZZ_CHECK(status.code() != base::Code::kInternal, status.message());
  FUZZ_CHECK(status.ok() == status.message().empty(), status.message());
  FUZZ_CHECK(!status.ok() || !reply.body.view().empty(), "an empty reply");
  return status.ok() ? Verdict::kTaken : Verdict::kRefused;
}

}  // namespace millpond::fuzz
