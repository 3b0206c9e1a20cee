#include "native/rest/json_writer.h"

#include "native/rest/base64.h"

namespace millpond::rest {
namespace {

// Returns the escape of a character in a string: '\0' if it is written as it is, 'u' if by its
// code.
char EscapeOf(char c) {
  switch (c) {
    case '"':
    case '\\':
      return c;
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return static_cast<unsigned char>(c) < 0x20 ? 'u' : '\0';
  }
}

// Writes at most kMaxEscapedBytes.
char* WriteEscaped(char c, char* to) {
  const char escape = EscapeOf(c);
  if (escape == '\0') {
    *to++ = c;
    return to;
  }
  *to++ = '\\';
  *to++ = escape;
  if (escape != 'u') return to;
  constexpr std::string_view kHex = "0123456789abcdef";
  *to++ = '0';
  *to++ = '0';
  *to++ = kHex[static_cast<unsigned char>(c) >> 4];
  *to++ = kHex[c & 15];
  return to;
}

constexpr size_t kMaxEscapedBytes = 6;

// The bytes that are encoded at a time. They are whole groups of three bytes, so that no padding
// comes between two pieces.
constexpr size_t kBase64PieceBytes = base::ReplyBuffer::kMaxReserveBytes / 4 * 3;

}  // namespace

void JsonWriter::String(std::string_view text) {
  // Most strings need no escape, so room for an escape is reserved only when one is needed.
  Raw('"');
  size_t plain = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (EscapeOf(text[i]) == '\0') continue;
    Raw(text.substr(plain, i - plain));
    if (!ok()) return;
    char* const to = reply_.Reserve(kMaxEscapedBytes);
    reply_.Advance(static_cast<size_t>(WriteEscaped(text[i], to) - to));
    plain = i + 1;
  }
  Raw(text.substr(plain));
  Raw('"');
}

void JsonWriter::Base64(std::string_view bytes) {
  Raw("{\"b64\": \"");
  while (!bytes.empty() && ok()) {
    const std::string_view piece = bytes.substr(0, kBase64PieceBytes);
    const size_t size = Base64Bytes(piece.size());
    EncodeBase64(piece, reply_.Reserve(size));
    reply_.Advance(size);
    bytes.remove_prefix(piece.size());
  }
  Raw("\"}");
}

void JsonWriter::NonFinite(double value) {
  if (std::isnan(value)) return Raw("NaN");
  Raw(value < 0 ? "-Infinity" : "Infinity");
}

}  // namespace millpond::rest
