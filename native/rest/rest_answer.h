#pragma once

#include <functional>
#include <string_view>

#include "native/base/status.h"
#include "native/rest/rest_methods.h"
#include "native/rest/rest_request.h"
#include "native/servable/servable.h"

namespace millpond::rest {

// Prepares a request for the version that it reached. `body` is the request's body, inflated.
// `prepared` has its run's context.
using RestPreparer =
    std::function<base::Status(const RestRequest& request, std::string_view body,
                               const servable::Servable& servable, PreparedRest* prepared)>;

// Prepares a request by its method. Returns the method's errors, and UNIMPLEMENTED for a method
// that HTTP does not have.
base::Status PrepareRest(const RestRequest& request, std::string_view body,
                         const servable::Servable& servable, PreparedRest* prepared);

}  // namespace millpond::rest
