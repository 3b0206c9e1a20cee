#pragma once

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/rest/predict_body.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::rest {

// Returns a Predict reply: {"predictions": [...]} with a value for each row, or {"outputs": ...}
// with whole tensors. If a signature has one output, the reply leaves out its name. `tensors` are
// all outputs of the signature, in its order.
//
// Strings of an output whose name ends in "_bytes" are written as {"b64": "..."}. So is, in any
// output, a string that is not UTF-8, because JSON cannot hold it. A client can see from the object
// which strings these are.
//
// Returns INVALID_ARGUMENT if rows are requested and an output is a scalar, or has another first
// dimension than the other outputs. Returns UNIMPLEMENTED for an output of a dtype for which JSON
// has no values. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED and CANCELLED are as in base::ReplyBuffer. A
// shape may make the text too long although the tensor has few or no elements. It is refused before
// anything is written.
base::StatusOr<base::ReplyBytes> WritePredictReply(const tensor::Signature& signature,
                                                   BodyFormat format,
                                                   const tensor::TensorList& tensors,
                                                   const base::ReplyLimits& limits);

}  // namespace millpond::rest
