#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"

namespace millpond::rest {

// The supported codings of a body (RFC 9110, 8.4).
enum class ContentCoding { kIdentity, kGzip, kDeflate };

// Returns the coding that a Content-Encoding header names. Empty and "identity" are kIdentity, and
// "x-gzip" is kGzip. Returns INVALID_ARGUMENT for another name, and for more than one name.
base::StatusOr<ContentCoding> ParseContentCoding(std::string_view header);

// Decodes `coded` into `*body`. Deflate may come with zlib's header or without it, because clients
// send both. Gzip may have one or more members.
//
// `share`, if it is not null, counts the memory of `*body`.
//
// Returns RESOURCE_EXHAUSTED if the share cannot grow, or if more than `max_bytes` come out. It
// never allocates more than `max_bytes`, whatever size the coded bytes claim. Returns
// INVALID_ARGUMENT if the bytes are not of that coding, are cut short, or are followed by other
// bytes.
base::Status Inflate(ContentCoding coding, std::string_view coded, size_t max_bytes,
                     std::string* body, base::ByteBudget::Share* share = nullptr);

// Returns `body` as gzip of zlib's level 1, its fastest. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED and
// CANCELLED are as in base::ReplyBuffer.
base::StatusOr<base::ReplyBytes> Gzip(std::string_view body, const base::ReplyLimits& limits);

}  // namespace millpond::rest
