#pragma once

#include <cstddef>
#include <cstdint>

#include "native/rest/json_writer.h"
#include "native/tensor/tensor_access.h"

namespace millpond::rest {

// The first estimate of an element's text in a reply. The reply's buffer grows if it is too small.
inline constexpr size_t kExpectedElementBytes = 14;

// Writes `count` elements, starting at `first`, of a tensor of numbers or bools
// (tensor::ElementBytes), separated by ", ". A 16-bit float is written as the equal 32-bit float.
void WriteNumbers(const tensor::TensorView& view, int64_t first, int64_t count, JsonWriter* json);

}  // namespace millpond::rest
