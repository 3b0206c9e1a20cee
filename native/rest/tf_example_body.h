#pragma once

#include <string>
#include <string_view>

#include "native/base/status.h"
#include "native/tensor/tensor_list.h"

namespace millpond::rest {

struct ExampleBody {
  std::string signature_name;   // empty if the body has no signature_name
  tensor::TensorList examples;  // one tensor: the serialized tf.Examples, strings of one dimension
};

// Reads {"signature_name": ..., "context": {...}, "examples": [{...}, ...]}, the body of Classify
// and Regress. An example is an object of features. A feature is a number, a string, {"b64":
// "..."}, or a list of these. Its first value sets its kind, as in TensorFlow Serving. Strings are
// bytes, 1 and true are int64, 1.0 and NaN are float. A list has values of one kind, and a feature
// must not be repeated. The context's features apply to each example that does not have the feature
// itself.
//
// Returns INVALID_ARGUMENT for any other body. Returns RESOURCE_EXHAUSTED if the examples, each
// with the context, exceed base::kMaxTensorBytes.
base::Status ReadExampleBody(std::string_view body, ExampleBody* read);

}  // namespace millpond::rest
