#pragma once

#include <string>

#include "native/tensor/signature.h"

namespace tensorflow {
class SignatureDef;
}  // namespace tensorflow

namespace millpond::tf {

// Returns the signature `name` of a SavedModel, as `definition` describes it.
tensor::Signature MakeSignature(const std::string& name,
                                const tensorflow::SignatureDef& definition);

}  // namespace millpond::tf
