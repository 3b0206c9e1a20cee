#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/inflate_stream.h"
#include "native/base/reply_buffer.h"
#include "native/base/status.h"

namespace millpond::rpc {

// How replies are compressed: like their requests, always, or never. A reply is only compressed if
// the client accepts the encoding, and if the reply is not small.
enum class ReplyCompression { kNone, kLikeRequest, kDeflate, kGzip };

// The values of grpc-encoding. kUnknown is an encoding that this server does not have.
enum class Encoding { kIdentity, kDeflate, kGzip, kUnknown };

Encoding EncodingOf(std::string_view name);
const char* NameOf(Encoding encoding);
inline constexpr char kAcceptedEncodings[] = "identity, deflate, gzip";

// Thread of all functions here: any, because they share nothing.

// Decompresses `from`, which holds one stream and nothing else, to at most `bytes_max` bytes. Takes
// memory as the output grows, and at most twice the size of the output. `share` counts this memory
// in addition to its bytes so far. RESOURCE_EXHAUSTED if the message is longer than `bytes_max` or
// the share cannot grow. INTERNAL if `from` is malformed or cut short, or if the encoding is
// identity. UNIMPLEMENTED if the encoding is unknown.
base::Status Decompress(Encoding encoding, const std::vector<std::string_view>& from,
                        int64_t bytes_max, std::vector<std::string>* to,
                        base::ByteBudget::Share* share);

// Returns the first bytes of the decompressed message, at most `bytes_max`; "" if `from` does not
// decompress.
std::string DecompressStart(Encoding encoding, const std::vector<std::string_view>& from,
                            size_t bytes_max);

// Returns the encoding of a reply of `reply_bytes`. Its request came in `request_encoding`, and its
// client accepts the encodings in `accepted`.
Encoding ChooseReplyEncoding(ReplyCompression replies, Encoding request_encoding,
                             std::string_view accepted, size_t reply_bytes);

// Returns the compressed `message` within `limits`.
base::StatusOr<base::ReplyBytes> Compress(Encoding encoding, std::string_view message,
                                          const base::ReplyLimits& limits);

}  // namespace millpond::rpc
