#include "native/inference/answer.h"

#include "native/inference/classify.h"
#include "native/inference/multi_inference.h"
#include "native/inference/predict.h"
#include "native/inference/predict_codec.h"
#include "native/inference/regress.h"

namespace millpond::inference {
namespace {

using base::WireReader;
using Reply = base::StatusOr<std::string>;

Reply AnswerPredict(const servable::Servable& servable, WireReader bytes) {
  PredictRequest request;
  MILLPOND_RETURN_IF_ERROR(DecodePredictRequest(bytes, &request));
  PredictReply reply;
  MILLPOND_RETURN_IF_ERROR(Predict(servable, request, {}, &reply));
  const auto encoded = EncodePredictReply(reply, {});
  if (!encoded.ok()) return encoded.status();
  return std::string(encoded.value().view());
}

Reply AnswerOnExamples(const servable::Servable& servable, WireReader bytes, bool is_classify) {
  ExampleRequest request;
  const char* const message = is_classify ? "ClassificationRequest" : "RegressionRequest";
  MILLPOND_RETURN_IF_ERROR(DecodeExampleRequest(bytes, message, &request));
  base::ReplyBytes reply;
  MILLPOND_RETURN_IF_ERROR(is_classify ? AnswerClassify(servable, request, {}, &reply)
                                       : AnswerRegress(servable, request, {}, &reply));
  return std::string(reply.view());
}

Reply AnswerTasks(const servable::Servable& servable, WireReader bytes) {
  MultiInferenceRequest request;
  MILLPOND_RETURN_IF_ERROR(DecodeMultiInferenceRequest(bytes, &request));
  const auto spec = SpecOfAllTasks(request);
  if (!spec.ok()) return spec.status();
  base::ReplyBytes reply;
  MILLPOND_RETURN_IF_ERROR(AnswerMultiInference(servable, request, {}, &reply));
  return std::string(reply.view());
}

}  // namespace

Reply AnswerRequest(const servable::Servable& servable, std::string_view method,
                    WireReader request) {
  if (method == "Predict") return AnswerPredict(servable, request);
  if (method == "Classify") return AnswerOnExamples(servable, request, /*is_classify=*/true);
  if (method == "Regress") return AnswerOnExamples(servable, request, /*is_classify=*/false);
  if (method == "MultiInference") return AnswerTasks(servable, request);
  return base::Status(base::Code::kUnimplemented,
                      "no version answers '" + std::string(method) +
                          "'; ask for Predict, Classify, Regress or MultiInference");
}

}  // namespace millpond::inference
