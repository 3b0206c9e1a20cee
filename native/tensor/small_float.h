#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace millpond::tensor {

// A 16-bit float, for which C++17 has no type: sign, exponent and mantissa as in IEEE 754, with
// subnormals, infinities and NaN.
template <int kExponentBits>
class SmallFloat {
 public:
  static constexpr int kMantissaBits = 15 - kExponentBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint16_t kInfinity = ((1 << kExponentBits) - 1) << kMantissaBits;

  // Rounds to nearest, ties to even. A value beyond the largest number becomes infinity.
  static uint16_t FromDouble(double value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
    return sign | Magnitude(bits & (UINT64_MAX >> 1));
  }

  static float ToFloat(uint16_t bits) {
    const int exponent = (bits & kInfinity) >> kMantissaBits;
    const int mantissa = bits & ((1 << kMantissaBits) - 1);
    float magnitude = 0;
    if (exponent == (1 << kExponentBits) - 1) {
      magnitude = mantissa == 0 ? INFINITY : NAN;
    } else if (exponent == 0) {
      magnitude = std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissaBits);
    } else {
      magnitude = std::ldexp(static_cast<float>(mantissa | (1 << kMantissaBits)),
                             exponent - kBias - kMantissaBits);
    }
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }

  static bool IsInfinite(uint16_t bits) { return (bits & 0x7fff) == kInfinity; }

 private:
  static constexpr int kDoubleBits = 52;
  static constexpr uint64_t kDoubleOne = uint64_t{1} << kDoubleBits;

  static uint16_t Magnitude(uint64_t bits) {
    const int exponent = static_cast<int>(bits >> kDoubleBits) - 1023;
    const uint64_t mantissa = bits & (kDoubleOne - 1);
    if (exponent == 1024) return kInfinity | (mantissa != 0 ? 1 << (kMantissaBits - 1) : 0);
    if (exponent > kBias) return kInfinity;
    constexpr int kShift = kDoubleBits - kMantissaBits;
    const int missing = 1 - kBias - exponent;  // places below the smallest normal number
    if (missing > kMantissaBits + 1) return 0;
    if (missing > 0) return static_cast<uint16_t>(Round(mantissa | kDoubleOne, kShift + missing));
    // A mantissa that is rounded up to the next power of two carries into the exponent.
    return static_cast<uint16_t>((static_cast<uint64_t>(exponent + kBias) << kMantissaBits) +
                                 Round(mantissa, kShift));
  }

  static uint64_t Round(uint64_t value, int shift) {
    const uint64_t kept = value >> shift;
    const uint64_t lost = value & ((uint64_t{1} << shift) - 1);
    const uint64_t half = uint64_t{1} << (shift - 1);
    return kept + (lost > half || (lost == half && (kept & 1) != 0) ? 1 : 0);
  }
};

using Half = SmallFloat<5>;
using Bfloat16 = SmallFloat<8>;

}  // namespace millpond::tensor
