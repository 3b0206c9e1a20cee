#pragma once

#include <cstddef>
#include <string_view>

namespace millpond::rest {

// Base64 with the alphabet of RFC 4648, section 4. The decoder also takes the alphabet of section 5
// (URL-safe), missing padding, and whitespace anywhere. MIME's encoders break lines, and TensorFlow
// Serving accepts them.

size_t Base64Bytes(size_t plain_bytes);
// Writes Base64Bytes(plain.size()) bytes.
void EncodeBase64(std::string_view plain, char* to);

// Returns the number of bytes that `coded` decodes to if it is valid.
size_t PlainBytes(std::string_view coded);
// Writes PlainBytes(coded) bytes. Returns false if `coded` is not base64.
bool DecodeBase64(std::string_view coded, char* to);

}  // namespace millpond::rest
