#include "native/rest/rest_answer.h"

#include <string>

#include "native/rest/infer_json.h"

namespace millpond::rest {

base::Status AnswerRest(const RestRequest& request, std::string_view body,
                        const servable::Servable& servable, const tensor::RunContext& run,
                        RestReply* reply, metrics::PhaseWatch* watch) {
  switch (request.method) {
    case metrics::Method::kRestPredict:
      return Predict(servable, body, run, reply, watch);
    case metrics::Method::kRestClassify:
      return Classify(servable, body, run, reply, watch);
    case metrics::Method::kRestRegress:
      return Regress(servable, body, run, reply, watch);
    case metrics::Method::kRestModelInfer:
      return ModelInfer(servable, body, request.headers.Find(kJsonBytesHeader), run, reply, watch);
    default:
      return {base::Code::kUnimplemented,
              std::string(metrics::MethodName(request.method)) + " is not answered over HTTP"};
  }
}

}  // namespace millpond::rest
