#pragma once

#include <cstddef>
#include <cstdint>

// Limits that more than one rung keeps, each with its reason.
namespace millpond::base {

// Nested groups that a parser follows; protobuf's own parsers stop here too.
inline constexpr int kMaxMessageDepth = 100;

// What one decoded tensor may take. `float_val: [0]` with a shape of a billion elements is 20 bytes
// on the wire and 4 GB in memory, so the size of the message does not bound it. Equal to the
// largest message that gRPC carries.
inline constexpr int64_t kMaxTensorBytes = INT32_MAX;

// Inputs, and names in an output_filter, of one request: an entry is 2 bytes on the wire and 80 in
// memory. Far above any signature.
inline constexpr size_t kMaxNamesPerRequest = 10'000;

// What one reply may take if no flag says less: what gRPC can carry.
inline constexpr size_t kMaxReplyBytes = INT32_MAX;

// TensorFlow's TensorShape holds at most this many dimensions.
inline constexpr int kMaxTensorRank = 254;

// Longer messages are cut: gRPC carries them in a header, which clients limit to 8 KiB.
inline constexpr size_t kMaxErrorMessageBytes = 1024;

}  // namespace millpond::base
