#pragma once

#include <functional>
#include <string_view>

#include "native/base/status.h"
#include "native/metrics/request_phases.h"
#include "native/rest/rest_methods.h"
#include "native/rest/rest_request.h"
#include "native/servable/servable.h"
#include "native/tensor/run_context.h"

namespace millpond::rest {

// Answers a request on the version that it reached. `body` is the request's body, inflated. The
// reply owns its bytes. `watch` is in kDecode before the call, and enters kRun and kEncode as far
// as the request gets.
using RestAnswerer = std::function<base::Status(
    const RestRequest& request, std::string_view body, const servable::Servable& servable,
    const tensor::RunContext& run, RestReply* reply, metrics::PhaseWatch* watch)>;

// Answers a request by its method. Returns the method's errors, and UNIMPLEMENTED for a method that
// HTTP does not have.
base::Status AnswerRest(const RestRequest& request, std::string_view body,
                        const servable::Servable& servable, const tensor::RunContext& run,
                        RestReply* reply, metrics::PhaseWatch* watch);

}  // namespace millpond::rest
