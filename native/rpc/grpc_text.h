#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The texts in the headers of gRPC over HTTP/2:
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
// Thread: any, because the functions share nothing.
namespace millpond::rpc {

// Returns the nanoseconds of a grpc-timeout like "250m"; nothing if it is malformed. Timeouts above
// 30 years are cut to that.
std::optional<int64_t> ParseTimeout(std::string_view text);

// Returns a status message as grpc-message carries it: `%` and bytes outside printable ASCII become
// %XX.
std::string PercentEncode(std::string_view message);

// True for "application/grpc", alone or with a suffix (`+proto`) or parameters (`;`).
bool IsGrpcContentType(std::string_view text);

// True if `name` is an element of a comma-separated list, with optional spaces.
bool ListContains(std::string_view list, std::string_view name);

}  // namespace millpond::rpc
