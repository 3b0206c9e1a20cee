#pragma once

#include <cstdint>

namespace millpond::rest {

// A JSON number split into its digits: (-1)^is_negative * digits * 10^exponent.
struct NumberToken {
  const char* begin = nullptr;
  const char* end = nullptr;
  uint64_t digits = 0;      // the first kMaxExactDigits of them, if there are more
  int64_t exponent = 0;     // of ten
  int64_t digit_count = 0;  // if it is at most kMaxExactDigits, leading zeros may count, too
  bool is_negative = false;
  bool is_integer = false;  // neither a fraction nor an exponent
};

inline constexpr int64_t kMaxExactDigits = 19;  // fit in a uint64_t
// Larger exponents are treated as this one. A body has too few digits to bring such a number back
// into a double's range.
inline constexpr int64_t kMaxExponent = 1'000'000'000;

inline bool IsDigit(const char* at, const char* end) {
  return at < end && static_cast<unsigned char>(*at - '0') < 10;
}

// Appends a run of digits to `*digits`; returns the position after it.
inline const char* ScanDigits(const char* at, const char* end, uint64_t* digits) {
  for (; IsDigit(at, end); ++at) *digits = *digits * 10 + static_cast<unsigned char>(*at - '0');
  return at;
}

// Counts the digits again, of a token with more digits than fit. It skips leading zeros, and keeps
// the first kMaxExactDigits of the others.
void Recount(NumberToken* token);

// Reads the exponent after 'e'; returns the position after it, or null if it has no digits.
inline const char* ScanExponent(const char* at, const char* end, NumberToken* token) {
  const bool is_negative = at < end && *at == '-';
  if (at < end && (*at == '-' || *at == '+')) ++at;
  if (!IsDigit(at, end)) return nullptr;
  int64_t exponent = 0;
  for (; IsDigit(at, end); ++at) {
    if (exponent < kMaxExponent) exponent = exponent * 10 + (*at - '0');
  }
  if (exponent > kMaxExponent) exponent = kMaxExponent;
  token->exponent += is_negative ? -exponent : exponent;
  return at;
}

// Scans a number of JSON's grammar. Returns false if the text at `at` is not a number.
inline bool ScanNumber(const char* at, const char* end, NumberToken* token) {
  token->begin = at;
  token->is_negative = at < end && *at == '-';
  if (token->is_negative) ++at;
  const char* const integer = at;
  at = ScanDigits(at, end, &token->digits);
  token->digit_count = at - integer;
  if (at == integer || (*integer == '0' && at - integer > 1)) return false;
  token->is_integer = true;
  if (at < end && *at == '.') {
    const char* const fraction = at + 1;
    at = ScanDigits(fraction, end, &token->digits);
    if (at == fraction) return false;
    token->digit_count += at - fraction;
    token->exponent -= at - fraction;
    token->is_integer = false;
  }
  if (at < end && (*at == 'e' || *at == 'E')) {
    at = ScanExponent(at + 1, end, token);
    if (at == nullptr) return false;
    token->is_integer = false;
  }
  token->end = at;
  if (token->digit_count > kMaxExactDigits) Recount(token);
  return true;
}

}  // namespace millpond::rest
