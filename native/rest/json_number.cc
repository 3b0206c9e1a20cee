#include "native/rest/json_number.h"

#include <charconv>
#include <system_error>

namespace millpond::rest {
namespace {

template <typename T>
ReadResult Convert(const NumberToken& token, T* value) {
  const auto [end, error] = std::from_chars(token.begin, token.end, *value);
  const bool is_out_of_range = error == std::errc::result_out_of_range || !std::isfinite(*value);
  if (!is_out_of_range) return ReadResult::kRead;
  // from_chars does not report which limit was passed. The position of the first digit shows it.
  const int64_t magnitude = token.exponent + token.digit_count;
  if (magnitude > 0) return ReadResult::kOutOfRange;
  *value = token.is_negative ? -T{0} : T{0};
  return ReadResult::kRead;
}

}  // namespace

ReadResult ConvertSlowly(const NumberToken& token, float* value) { return Convert(token, value); }
ReadResult ConvertSlowly(const NumberToken& token, double* value) { return Convert(token, value); }

bool ReadNonFinite(JsonReader* reader, double* value) {
  const JsonReader::Mark mark = reader->Here();
  const bool is_negative = reader->Accept("-");
  if (reader->Accept("NaN")) {
    *value = std::numeric_limits<double>::quiet_NaN();
  } else if (reader->Accept("Infinity") || reader->Accept("Inf")) {
    *value = std::numeric_limits<double>::infinity();
  } else {
    reader->MoveTo(mark.position);
    return false;
  }
  if (is_negative) *value = -*value;
  return true;
}

}  // namespace millpond::rest
