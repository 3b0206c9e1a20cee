#pragma once

#include <cstddef>
#include <cstdint>

// Limits that several rungs enforce, each with its reason.
namespace millpond::base {

// The deepest nesting of groups that a parser follows; protobuf's own parsers have the same limit.
inline constexpr int kMaxMessageDepth = 100;

// The largest decoded tensor, equal to the largest message that gRPC carries. The size of the
// message does not bound the tensor: `float_val: [0]` with a shape of a billion elements is 20
// bytes on the wire and 4 GB in memory.
inline constexpr int64_t kMaxTensorBytes = INT32_MAX;

// The most inputs, and the most names in an output_filter, of one request. An entry takes 2 bytes
// on the wire and 80 in memory. Far above any signature.
inline constexpr size_t kMaxNamesPerRequest = 10'000;

// The largest reply if no flag sets a lower limit: the largest message that gRPC carries.
inline constexpr size_t kMaxReplyBytes = INT32_MAX;

// The most dimensions of TensorFlow's TensorShape.
inline constexpr int kMaxTensorRank = 254;

// The length to which a longer error message is cut. gRPC carries the message in a header, and
// clients limit headers to 8 KiB.
inline constexpr size_t kMaxErrorMessageBytes = 1024;

}  // namespace millpond::base
