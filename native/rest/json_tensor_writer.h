#pragma once

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/rest/predict_body.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_list.h"

namespace millpond::rest {

// A Predict reply: {"predictions": [...]} with a value for each row, or {"outputs": ...} with whole
// tensors; a signature's only output goes without its name. `tensors` are all of its outputs, in
// its order.
//
// Strings of an output whose name ends in "_bytes" are {"b64": "..."}. So is, in any output, a
// string that is no UTF-8: JSON has no other way to say it, and a client sees which one it is.
//
// INVALID_ARGUMENT: rows are asked for and an output is a scalar, or has another first dimension
// than the others. UNIMPLEMENTED: an output of a dtype that JSON has no values for.
// RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, CANCELLED: as base::ReplyBuffer. A shape that makes the
// text too long, though it has few elements or none, is refused before anything is written.
base::StatusOr<base::ReplyBytes> WritePredictReply(const tf::Signature& signature,
                                                   BodyFormat format, const tf::TensorList& tensors,
                                                   const base::ReplyLimits& limits);

}  // namespace millpond::rest
