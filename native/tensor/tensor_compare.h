#pragma once

#include "native/tensor/tensor_list.h"

namespace millpond::tensor {

// The largest difference of two results of the same run that comes from rounding alone, relative to
// the values: a batch adds in another order than a row. It is larger for dtypes with fewer digits.
inline constexpr double kRoundingTolerance = 1e-5;

// Returns true if both lists have equal dtypes and shapes, and equal values up to rounding. Values
// that are tiny beside the largest one of their tensor are compared as if they were 1/1000 of it,
// because sums of larger values leave such rests. NaN equals NaN. False for elements that are
// neither plain numbers nor strings.
bool AreTensorsClose(const TensorList& a, const TensorList& b);

}  // namespace millpond::tensor
