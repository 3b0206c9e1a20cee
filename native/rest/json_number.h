#pragma once

#include <array>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "native/rest/json_reader.h"
#include "native/rest/number_token.h"

namespace millpond::rest {

// The result of reading one element. After kRead and kInvalidBase64 the cursor has moved. Otherwise
// it stays at the element.
enum class ReadResult {
  kRead,
  kOutOfRange,     // a number that the type does not hold
  kOther,          // not of that kind: 1.5 instead of an integer, or not a number at all
  kInvalidBase64,  // the cursor is then on the string of {"b64": "..."}
};

template <typename T>
ReadResult ReadInteger(JsonReader* reader, T* value) {
  static_assert(std::is_integral_v<T>);
  NumberToken token;
  if (!ScanNumber(reader->position(), reader->end(), &token) || !token.is_integer) {
    return ReadResult::kOther;
  }
  uint64_t magnitude = token.digits;
  if (token.digit_count > kMaxExactDigits) {
    const auto last = static_cast<uint64_t>(token.end[-1] - '0');
    if (token.digit_count > kMaxExactDigits + 1 ||
        __builtin_mul_overflow(magnitude, 10, &magnitude) ||
        __builtin_add_overflow(magnitude, last, &magnitude)) {
      return ReadResult::kOutOfRange;
    }
  }
  const uint64_t largest = static_cast<uint64_t>(std::numeric_limits<T>::max());
  const uint64_t smallest = std::is_signed_v<T> ? largest + 1 : 0;  // its magnitude
  if (magnitude > (token.is_negative ? smallest : largest)) return ReadResult::kOutOfRange;
  // In two's complement, the low bits of the negated magnitude are those of the negative number.
  *value = static_cast<T>(token.is_negative ? uint64_t{0} - magnitude : magnitude);
  reader->MoveTo(token.end);
  return ReadResult::kRead;
}

// Short numbers are converted here and not by std::from_chars, which makes decoding in json_bench
// 3 % slower for one row and 6 to 8 % for 100 rows (GCC 12; before it, from_chars calls strtod).
inline constexpr int kMaxExactPower = 22;  // 10^22 is a double, 10^23 is not
inline constexpr std::array<double, kMaxExactPower + 1> kPowersOfTen = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

inline double Scale(const NumberToken& token) {
  const auto digits = static_cast<double>(token.digits);
  return token.exponent < 0 ? digits / kPowersOfTen[-token.exponent]
                            : digits * kPowersOfTen[token.exponent];
}

// Sets `*value` and returns true if the digits are exact as a double. The power of ten is exact,
// too, so the only rounding is the correct one.
inline bool IsExact(const NumberToken& token, double* value) {
  if (token.digits > uint64_t{1} << DBL_MANT_DIG) return false;
  *value = Scale(token);
  return true;
}

// Sets `*value` and returns true if the rounding to float is certain. `scaled` is off by less than
// two units in its last place. So it rounds to the float nearest to the token, unless it lies that
// close to the middle between two floats.
inline bool IsExact(const NumberToken& token, float* value) {
  constexpr int kSpareBits = DBL_MANT_DIG - FLT_MANT_DIG;
  constexpr int64_t kMiddle = int64_t{1} << (kSpareBits - 1);
  constexpr int64_t kMargin = 8;
  const double scaled = Scale(token);
  uint64_t bits = 0;
  std::memcpy(&bits, &scaled, sizeof bits);
  const auto spare = static_cast<int64_t>(bits & ((uint64_t{1} << kSpareBits) - 1));
  if (spare > kMiddle - kMargin && spare < kMiddle + kMargin) return false;
  // Subnormal floats have fewer bits, and above the largest float nothing is left to round to.
  if (token.digits != 0 && (scaled < 2.0 * FLT_MIN || scaled > 0.5 * FLT_MAX)) return false;
  *value = static_cast<float>(scaled);
  return true;
}

// Converts any token, at the cost of a second pass over its characters. A value too small for the
// type becomes 0. A value too large for it returns kOutOfRange.
ReadResult ConvertSlowly(const NumberToken& token, float* value);
ReadResult ConvertSlowly(const NumberToken& token, double* value);

// Reads NaN, Infinity or Inf, each with or without '-', as TensorFlow Serving does.
bool ReadNonFinite(JsonReader* reader, double* value);

// Reads the nearest float or double, correctly rounded.
template <typename T>
ReadResult ReadFloat(JsonReader* reader, T* value) {
  static_assert(std::is_floating_point_v<T>);
  NumberToken token;
  if (!ScanNumber(reader->position(), reader->end(), &token)) {
    double non_finite = 0;
    if (!ReadNonFinite(reader, &non_finite)) return ReadResult::kOther;
    *value = static_cast<T>(non_finite);
    return ReadResult::kRead;
  }
  const bool is_short = token.digit_count <= kMaxExactDigits && token.exponent >= -kMaxExactPower &&
                        token.exponent <= kMaxExactPower;
  if (is_short && IsExact(token, value)) {
    if (token.is_negative) *value = -*value;
  } else if (ConvertSlowly(token, value) != ReadResult::kRead) {
    return ReadResult::kOutOfRange;
  }
  reader->MoveTo(token.end);
  return ReadResult::kRead;
}

}  // namespace millpond::rest
