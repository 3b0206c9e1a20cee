#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"

namespace millpond::rest {

// The codings of a body (RFC 9110, 8.4) that are read and written here.
enum class ContentCoding { kIdentity, kGzip, kDeflate };

// What a Content-Encoding header names. Empty and "identity" are kIdentity, "x-gzip" is kGzip.
// INVALID_ARGUMENT where it names anything else, or more than one.
base::StatusOr<ContentCoding> ParseContentCoding(std::string_view header);

// `coded` without its coding into `*body`. Deflate with zlib's header and without, as clients send
// both; gzip of one or more members.
//
// `share`, if it is not null, counts the memory of `*body`.
//
// RESOURCE_EXHAUSTED once the share gets no more, and once more than `max_bytes` come out: no more
// than that is ever allocated, whatever the coded bytes claim. INVALID_ARGUMENT: bytes that are not
// that coding, are cut short, or have anything behind them.
base::Status Inflate(ContentCoding coding, std::string_view coded, size_t max_bytes,
                     std::string* body, base::ByteBudget::Share* share = nullptr);

// `body` as gzip of zlib's level 1, its fastest. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, CANCELLED:
// as base::ReplyBuffer.
base::StatusOr<base::ReplyBytes> Gzip(std::string_view body, const base::ReplyLimits& limits);

}  // namespace millpond::rest
