#pragma once

#include <optional>
#include <string_view>

#include "native/base/status.h"
#include "native/rest/rest_methods.h"
#include "native/servable/servable.h"

namespace millpond::rest {

// The header with the number of bytes of a body that are JSON, for a body in which binary tensors
// follow. In lower case.
inline constexpr std::string_view kJsonBytesHeader = "inference-header-content-length";

// Prepares Infer of the open inference protocol on one servable: from an inflated body to its run
// and a reply's body, both JSON. `json_bytes_header` is the request's header; without it the whole
// body is JSON. The elements of inputs with the parameter binary_data_size follow the JSON, in the
// order of the inputs. So do, in a reply, the outputs that were requested with binary_data or
// binary_data_output.
//
// Returns the errors of inference::PrepareInfer, and INVALID_ARGUMENT for a malformed body. The
// encoding returns INVALID_ARGUMENT for an output of strings that are not UTF-8 and are not
// requested as binary data.
base::Status PrepareModelInfer(const servable::Servable& servable, std::string_view body,
                               std::optional<std::string_view> json_bytes_header,
                               PreparedRest* prepared);

}  // namespace millpond::rest
