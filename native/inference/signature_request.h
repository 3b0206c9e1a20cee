#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/servable/prepared_run.h"
#include "native/servable/servable.h"
#include "native/tensor/output_set.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// Steps that each request for a signature with named inputs takes, whatever its protocol: gRPC,
// JSON, or another protocol's messages.

// Returns the signature that a request means by `name`; an empty name means the default signature.
// Returns FAILED_PRECONDITION, with a list of the existing signatures, if it does not exist, and
// UNIMPLEMENTED if its tensors are not dense (tensor::Signature::obstacle).
base::StatusOr<const tensor::Signature*> FindSignature(const servable::Servable& servable,
                                                       std::string_view name);

// Returns the names as an error message lists them, like "{a, b}". A long list shows the first
// names and the number of the others.
std::string ListNames(const std::vector<std::string_view>& names);

// Returns the error for a request that sends `extra` inputs and lacks the `missing` inputs of
// `signature`.
base::Status InputsDiffer(const tensor::Signature& signature,
                          const std::vector<std::string_view>& extra,
                          const std::vector<std::string_view>& missing);

// Makes input `index` of a request, which does not send it, its default. Returns false if it has
// none.
bool UseDefault(const tensor::Signature& signature, size_t index, tensor::TensorList* inputs);

// Returns the outputs that `filter` names, or all outputs if it is empty. Composite outputs are
// left out. Returns INVALID_ARGUMENT for an unknown or duplicate name, and UNIMPLEMENTED for a
// composite output.
base::StatusOr<tensor::OutputSet> SelectOutputs(const std::vector<std::string>& filter,
                                                const tensor::Signature& signature);

// Ends the run of a request, before its reply is encoded: notes its rows, and enters kEncode.
// Returns the error of a run that failed.
//
// Such an error becomes INVALID_ARGUMENT if an input's shape does not fit a signature and such
// shapes can cause the error. It then names the first such input. Otherwise the error stays as it
// is.
base::Status EndRun(servable::PreparedRun* run);

}  // namespace millpond::inference
