#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "native/inference/model_spec.h"
#include "native/metrics/request_recorder.h"

namespace millpond::rest {

// The method and the version that a request over HTTP runs.
struct RestTarget {
  metrics::Method method = metrics::Method::kRestPredict;
  inference::ModelSpec model;  // without the signature's name, which is in the body
};

// Reads the target of a POST, as received:
//   /v1/models/NAME[/versions/N or /labels/LABEL]:predict, :classify or :regress
//   /v2/models/NAME[/versions/N or LABEL]/infer
// The first ones match in upper and lower case, as in TensorFlow Serving. Names are URL-decoded: a
// model may be called `a/b`. Nothing for any other target, which Python answers. Pure.
std::optional<RestTarget> ParseRestTarget(std::string_view target);

// Reads the target of a GET of a version's metadata, as received:
//   /v1/models/NAME[/versions/N or /labels/LABEL]/metadata
// It matches as the targets above. Nothing for any other target. Pure.
std::optional<inference::ModelSpec> ParseMetadataTarget(std::string_view target);

// Returns the path under which the answer to a GET of `target` is kept, if it is kept
// (rpc::HttpDocuments): names are escaped in one way, versions have no leading zeros, and what
// matches in upper and lower case is in lower case. "" for a target that no document has. Pure.
std::string DocumentPath(std::string_view target);

// Returns `text` without the escapes of a URL. An escape that is none stays as it is. Pure.
std::string UrlDecode(std::string_view text);

// Returns `text` as a part of a URL, and so as the value of a header: all but letters, digits and
// "_.-~" is escaped. Pure.
std::string UrlEncode(std::string_view text);

}  // namespace millpond::rest
