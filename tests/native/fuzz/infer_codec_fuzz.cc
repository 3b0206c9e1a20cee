#include "native/inference/infer_codec.h"

#include <string>

#include "native/inference/infer.h"
#include "tests/native/answer_alone.h"
#include "tests/native/echo_servable.h"
#include "tests/native/fuzz/fuzz_target.h"
#include "tests/native/infer_messages.h"

namespace millpond::fuzz {
namespace {

base::Status Infer(std::string_view input) {
  static const testing::EchoServable servable;
  const testing::SegmentedBytes segmented(input, {input.size() / 3, input.size() / 2});
  inference::InferMessage message;
  MILLPOND_RETURN_IF_ERROR(inference::DecodeInferMessage(segmented.reader(), &message));
  inference::InferReply reply;
  MILLPOND_RETURN_IF_ERROR(
      testing::AnswerInfer(servable, message.request, inference::MessageElements(message), &reply));
  const auto encoded = inference::EncodeInferReply(reply, {});
  if (!encoded.ok()) return encoded.status();
  const auto response = testing::ParseInferResponse(std::string(encoded.value().view()));
  FUZZ_CHECK(response.parses, "the reply does not parse");
  FUZZ_CHECK(response.model_name == "echo" && response.model_version == "7", response.model_name);
  return {};
}

}  // namespace

// A ModelInferRequest is answered by a ModelInferResponse, or refused with a message. It is never
// answered with INTERNAL.
Verdict Run(std::string_view input) {
  const base::Status status = Infer(input);
  FUZZ_CHECK(status.code() != base::Code::kInternal, status.message());
  FUZZ_CHECK(status.ok() == status.message().empty(), status.message());
  return status.ok() ? Verdict::kTaken : Verdict::kRefused;
}

}  // namespace millpond::fuzz
