#include "native/inference/answer.h"

#include "native/base/clock.h"
#include "native/inference/classify.h"
#include "native/inference/multi_inference.h"
#include "native/inference/predict.h"
#include "native/inference/predict_codec.h"
#include "native/inference/regress.h"

namespace millpond::inference {
namespace {

using base::WireReader;
using Reply = base::StatusOr<std::string>;
using tensor::RunContext;

Reply AnswerPredict(const servable::Servable& servable, WireReader bytes,
                    const RunContext& context) {
  PredictRequest request;
  MILLPOND_RETURN_IF_ERROR(DecodePredictRequest(bytes, &request));
  PredictReply reply;
  MILLPOND_RETURN_IF_ERROR(Predict(servable, request, context, &reply));
  const auto encoded = EncodePredictReply(reply, {});
  if (!encoded.ok()) return encoded.status();
  return std::string(encoded.value().view());
}

Reply AnswerAlone(Prepared<base::ReplyBytes>* prepared) {
  base::ReplyBytes reply;
  MILLPOND_RETURN_IF_ERROR(AnswerAlone(prepared, &reply));
  return std::string(reply.view());
}

Reply AnswerOnExamples(const servable::Servable& servable, WireReader bytes,
                       const RunContext& context, bool is_classify) {
  ExampleRequest request;
  const char* const message = is_classify ? "ClassificationRequest" : "RegressionRequest";
  MILLPOND_RETURN_IF_ERROR(DecodeExampleRequest(bytes, message, &request));
  Prepared<base::ReplyBytes> prepared;
  prepared.run.context = context;
  MILLPOND_RETURN_IF_ERROR(is_classify ? PrepareClassify(servable, request, &prepared)
                                       : PrepareRegress(servable, request, &prepared));
  return AnswerAlone(&prepared);
}

Reply AnswerTasks(const servable::Servable& servable, WireReader bytes, const RunContext& context) {
  MultiInferenceRequest request;
  MILLPOND_RETURN_IF_ERROR(DecodeMultiInferenceRequest(bytes, &request));
  const auto spec = SpecOfAllTasks(request);
  if (!spec.ok()) return spec.status();
  Prepared<base::ReplyBytes> prepared;
  prepared.run.context = context;
  MILLPOND_RETURN_IF_ERROR(PrepareMultiInference(servable, request, &prepared));
  return AnswerAlone(&prepared);
}

Reply AnswerMethod(const servable::Servable& servable, std::string_view method, WireReader request,
                   const RunContext& context) {
  if (method == "Predict") return AnswerPredict(servable, request, context);
  if (method == "Classify") {
    return AnswerOnExamples(servable, request, context, /*is_classify=*/true);
  }
  if (method == "Regress") {
    return AnswerOnExamples(servable, request, context, /*is_classify=*/false);
  }
  if (method == "MultiInference") return AnswerTasks(servable, request, context);
  return base::Status(base::Code::kUnimplemented,
                      "unknown method '" + std::string(method) +
                          "'; use Predict, Classify, Regress or MultiInference");
}

}  // namespace

Reply AnswerRequest(const servable::Servable& servable, std::string_view method, WireReader request,
                    int64_t ns_max, const std::atomic<bool>* is_cancelled, bool may_write) {
  RunContext context;
  context.may_write = may_write;
  context.is_cancelled = is_cancelled;
  if (ns_max != RunContext::kNoDeadline) context.deadline_ns = base::MonotonicNs() + ns_max;
  Reply reply = AnswerMethod(servable, method, request, context);
  if (reply.ok() || reply.status().code() != base::Code::kDeadlineExceeded) return reply;
  return base::FailedPrecondition("the request did not end within " +
                                  std::to_string(ns_max / 1'000'000) +
                                  " ms; if it must run for longer, raise --warmup_request_seconds");
}

base::Status MakeCallable(const servable::Servable& servable, WireReader request) {
  PredictRequest decoded;
  MILLPOND_RETURN_IF_ERROR(DecodePredictRequest(request, &decoded));
  return MakeCallable(servable, decoded);
}

}  // namespace millpond::inference
