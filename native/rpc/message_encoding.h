#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/inflate_stream.h"
#include "native/base/status.h"

namespace millpond::rpc {

// How replies are compressed: as their requests are, always, or never. Whatever it says, only what
// the client accepts is sent, and a small reply goes as it is.
enum class ReplyCompression { kNone, kLikeRequest, kDeflate, kGzip };

// The names of grpc-encoding. kUnknown is one that this server does not have.
enum class Encoding { kIdentity, kDeflate, kGzip, kUnknown };

Encoding EncodingOf(std::string_view name);
const char* NameOf(Encoding encoding);
inline constexpr char kAcceptedEncodings[] = "identity, deflate, gzip";

// Decompresses `from`, which holds one stream and nothing else, to at most `bytes_max` bytes:
// memory is taken as the stream grows, and no more than twice of what it has come to. `share`
// counts the memory beside what it counts already. RESOURCE_EXHAUSTED if the message is longer or
// the share gets no more, INTERNAL if it is no such stream or cut short, UNIMPLEMENTED if the
// encoding is unknown.
base::Status Decompress(Encoding encoding, const std::vector<std::string_view>& from,
                        int64_t bytes_max, std::vector<std::string>* to,
                        base::ByteBudget::Share* share);

// Returns the first bytes of what `from` decompresses to, at most `bytes_max`; "" if it does not.
std::string DecompressStart(Encoding encoding, const std::vector<std::string_view>& from,
                            size_t bytes_max);

// Returns how a reply of `reply_bytes` is sent to a client that sent its request in
// `request_encoding` and accepts `accepted`.
Encoding ChooseReplyEncoding(ReplyCompression replies, Encoding request_encoding,
                             std::string_view accepted, size_t reply_bytes);

// Returns `message` compressed; nothing if zlib has no memory.
std::optional<std::string> Compress(Encoding encoding, std::string_view message);

}  // namespace millpond::rpc
