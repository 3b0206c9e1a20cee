#include "native/rest/rest_answer.h"

#include <string>

#include "native/rest/infer_json.h"

namespace millpond::rest {

base::Status PrepareRest(const RestRequest& request, std::string_view body,
                         const servable::Servable& servable, PreparedRest* prepared) {
  switch (request.method) {
    case metrics::Method::kRestPredict:
      return PreparePredict(servable, body, prepared);
    case metrics::Method::kRestClassify:
      return PrepareClassify(servable, body, prepared);
    case metrics::Method::kRestRegress:
      return PrepareRegress(servable, body, prepared);
    case metrics::Method::kRestModelInfer:
      return PrepareModelInfer(servable, body, request.headers.Find(kJsonBytesHeader), prepared);
    default:
      return {base::Code::kUnimplemented,
              std::string(metrics::MethodName(request.method)) + " is not answered over HTTP"};
  }
}

}  // namespace millpond::rest
