#include "native/inference/predict.h"

#include <string>

#include "native/inference/predict_codec.h"
#include "tests/native/doubling_servable.h"
#include "tests/native/fuzz/tensorflow_target.h"
#include "tests/native/predict_messages.h"

namespace millpond::fuzz {
namespace {

base::Status Predict(std::string_view input) {
  static const testing::DoublingServable servable;
  const testing::SegmentedBytes segmented(input, {input.size() / 3});
  inference::PredictRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodePredictRequest(segmented.reader(), &request));
  inference::PredictReply reply;
  MILLPOND_RETURN_IF_ERROR(inference::Predict(servable, request, {}, &reply));
  const auto encoded = inference::EncodePredictReply(reply, {});
  if (!encoded.ok()) return encoded.status();
  const auto response = testing::ParsePredictResponse(std::string(encoded.value().view()));
  FUZZ_CHECK(response.parses, "the reply does not parse");
  FUZZ_CHECK(response.version == 7, std::to_string(response.version));
  for (const auto& [name, bytes] : response.outputs) {
    FUZZ_CHECK(testing::ParseTensor(bytes).IsInitialized(), "output " + name);
  }
  return {};
}

}  // namespace

// A PredictRequest is answered by the right version with tensors that TensorFlow reads, or refused
// with a message, by the codes below.
Verdict Run(std::string_view input) {
  StartTensorFlow();
  const base::Status status = Predict(input);
  if (status.ok()) return Verdict::kTaken;
  FUZZ_CHECK(status.code() == base::Code::kInvalidArgument ||
                 status.code() == base::Code::kFailedPrecondition ||
                 status.code() == base::Code::kResourceExhausted,
             std::string(base::CodeName(status.code())) + " " + status.message());
  FUZZ_CHECK(!status.message().empty(), "no message");
  return Verdict::kRefused;
}

}  // namespace millpond::fuzz
