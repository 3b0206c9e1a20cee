#include "native/rest/json_number.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>

#include "native/rest/json_writer.h"
#include "native/tensor/small_float.h"

namespace millpond::rest {
namespace {

template <typename T>
ReadResult ReadAs(const std::string& text, T* value) {
  JsonReader reader(text);
  ReadResult result = ReadResult::kOther;
  if constexpr (std::is_integral_v<T>) {
    result = ReadInteger(&reader, value);
  } else {
    result = ReadFloat(&reader, value);
  }
  EXPECT_EQ(result == ReadResult::kRead, reader.AtEnd()) << text;
  return result;
}

template <typename T>
void ExpectLimits() {
  T value{};
  const auto least = std::numeric_limits<T>::min();
  const auto most = std::numeric_limits<T>::max();
  EXPECT_EQ(ReadAs(std::to_string(least), &value), ReadResult::kRead);
  EXPECT_EQ(value, least);
  EXPECT_EQ(ReadAs(std::to_string(most), &value), ReadResult::kRead);
  EXPECT_EQ(value, most);
  std::string above = std::to_string(most);
  above.back() += 1;  // no limit ends in 9
  EXPECT_EQ(ReadAs(above, &value), ReadResult::kOutOfRange) << above;
  std::string below = std::to_string(least);
  if (least == 0) below = "-0";
  below.back() += 1;
  EXPECT_EQ(ReadAs(below, &value), ReadResult::kOutOfRange) << below;
  EXPECT_EQ(ReadAs(std::string("100000000000000000000"), &value), ReadResult::kOutOfRange);
  EXPECT_EQ(ReadAs(std::string(400, '9'), &value), ReadResult::kOutOfRange);
}

TEST(JsonNumber, IntegersAreReadToTheirLimitsAndNotBeyond) {
  ExpectLimits<int8_t>();
  ExpectLimits<int16_t>();
  ExpectLimits<int32_t>();
  ExpectLimits<int64_t>();
  ExpectLimits<uint8_t>();
  ExpectLimits<uint16_t>();
  ExpectLimits<uint32_t>();
  ExpectLimits<uint64_t>();
}

TEST(JsonNumber, AnIntegerHasNeitherFractionNorExponent) {
  int64_t value = 0;
  for (const char* text :
       {"1.5", "1.0", "1e3", "NaN", "Infinity", "-Infinity", "true", "\"1\"", "-"}) {
    EXPECT_EQ(ReadAs(std::string(text), &value), ReadResult::kOther) << text;
  }
  EXPECT_EQ(ReadAs(std::string("-0"), &value), ReadResult::kRead);
  EXPECT_EQ(value, 0);
}

TEST(JsonNumber, FloatsTakeIntegersNaNAndInfinity) {
  float value = 0;
  EXPECT_EQ(ReadAs(std::string("3"), &value), ReadResult::kRead);
  EXPECT_EQ(value, 3);
  EXPECT_EQ(ReadAs(std::string("NaN"), &value), ReadResult::kRead);
  EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(ReadAs(std::string("Infinity"), &value), ReadResult::kRead);
  EXPECT_EQ(value, INFINITY);
  EXPECT_EQ(ReadAs(std::string("-Inf"), &value), ReadResult::kRead);
  EXPECT_EQ(value, -INFINITY);
  EXPECT_EQ(ReadAs(std::string("-0.0"), &value), ReadResult::kRead);
  EXPECT_TRUE(value == 0 && std::signbit(value));
}

TEST(JsonNumber, TooLargeIsRefusedAndTooSmallIsZero) {
  float value = 1;
  double wide = 1;
  for (const char* text : {"1e400", "-1e400", "1e2000000000000", "4e38"}) {
    EXPECT_EQ(ReadAs(std::string(text), &value), ReadResult::kOutOfRange) << text;
  }
  EXPECT_EQ(ReadAs("1" + std::string(400, '0'), &wide), ReadResult::kOutOfRange);
  EXPECT_EQ(ReadAs(std::string("1e309"), &wide), ReadResult::kOutOfRange);
  for (const std::string& text : {std::string("1e-400"), std::string("1e-2000000000000"),
                                  std::string("0e999999"), "0." + std::string(400, '0') + "1"}) {
    EXPECT_EQ(ReadAs(text, &value), ReadResult::kRead) << text;
    EXPECT_EQ(value, 0) << text;
    EXPECT_EQ(ReadAs(text, &wide), ReadResult::kRead) << text;
    EXPECT_EQ(wide, 0) << text;
  }
  EXPECT_EQ(ReadAs("1" + std::string(400, '0') + "e-400", &wide), ReadResult::kRead);
  EXPECT_EQ(wide, 1);
}

// Decimal texts of all lengths and sizes are read as by the C library, which rounds right.
TEST(JsonNumber, FloatsAreRoundedAsTheCLibraryDoes) {
  std::mt19937_64 rng(2'026);
  for (int i = 0; i < 200'000; ++i) {
    std::string text = rng() % 2 == 0 ? "-" : "";
    text += std::to_string(rng() % 10);
    text += "." + std::to_string(rng() >> rng() % 64);
    if (rng() % 2 == 0) text += "e" + std::to_string(static_cast<int>(rng() % 90) - 45);
    float value = 0;
    double wide = 0;
    const float expected = std::strtof(text.c_str(), nullptr);
    const double expected_wide = std::strtod(text.c_str(), nullptr);
    ASSERT_EQ(ReadAs(text, &wide), ReadResult::kRead) << text;
    ASSERT_EQ(wide, expected_wide) << text;
    if (!std::isfinite(expected)) continue;
    ASSERT_EQ(ReadAs(text, &value), ReadResult::kRead) << text;
    ASSERT_EQ(value, expected) << text;
  }
}

// Double rounding would go wrong at the middles between two floats and just beside them.
TEST(JsonNumber, FloatsBetweenTwoAreRoundedRight) {
  std::mt19937_64 rng(7);
  for (int i = 0; i < 100'000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(rng()) & 0x7fffffff;
    float below = 0;
    std::memcpy(&below, &bits, sizeof below);
    const float above = std::nextafter(below, INFINITY);
    if (!std::isfinite(above)) continue;
    const double middle = (static_cast<double>(below) + above) / 2;
    char text[64];
    const int digits = 15 + static_cast<int>(rng() % 6);
    const auto end =
        std::to_chars(text, text + sizeof text, middle, std::chars_format::scientific, digits);
    *end.ptr = '\0';
    float value = 0;
    ASSERT_EQ(ReadAs(std::string(text), &value), ReadResult::kRead) << text;
    ASSERT_EQ(value, std::strtof(text, nullptr)) << text;
  }
}

template <typename T>
std::string Written(T value) {
  JsonWriter writer({});
  writer.Number(value);
  return std::string(writer.Take().value().view());
}

TEST(JsonNumber, WrittenFloatsAlwaysSayThatTheyAreFloats) {
  EXPECT_EQ(Written(1.0F), "1.0");
  EXPECT_EQ(Written(-0.0F), "-0.0");
  EXPECT_EQ(Written(0.1F), "0.1");
  EXPECT_EQ(Written(16777216.0F), "16777216.0");
  EXPECT_EQ(Written(1e20F), "1e+20");
  EXPECT_EQ(Written(1e-7), "1e-07");
  EXPECT_EQ(Written(-2.2250738585072014e-308), "-2.2250738585072014e-308");
  EXPECT_EQ(Written(NAN), "NaN");
  EXPECT_EQ(Written(-INFINITY), "-Infinity");
  EXPECT_EQ(Written(INFINITY), "Infinity");
  EXPECT_EQ(Written(INT64_MIN), "-9223372036854775808");
  EXPECT_EQ(Written(UINT64_MAX), "18446744073709551615");
  EXPECT_EQ(Written(int8_t{65}), "65");
}

template <typename Small>
void ExpectAllRoundTrip() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Small::ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(Small::FromDouble(static_cast<double>(value)), bits) << value;
  }
  EXPECT_TRUE(std::isnan(Small::ToFloat(Small::FromDouble(NAN))));
}

TEST(SmallFloat, AllHalvesAndBfloatsRoundTrip) {
  ExpectAllRoundTrip<tensor::Half>();
  ExpectAllRoundTrip<tensor::Bfloat16>();
}

TEST(SmallFloat, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(tensor::Half::FromDouble(1.0), 0x3c00);
  EXPECT_EQ(tensor::Half::FromDouble(-2.0), 0xc000);
  EXPECT_EQ(tensor::Half::FromDouble(65504.0), 0x7bff);
  EXPECT_EQ(tensor::Half::FromDouble(65519.9), 0x7bff);
  EXPECT_EQ(tensor::Half::FromDouble(65520.0), 0x7c00);
  EXPECT_EQ(tensor::Half::FromDouble(1 + 1.0 / 2048), 0x3c00);
  EXPECT_EQ(tensor::Half::FromDouble(1 + 3.0 / 2048), 0x3c02);
  EXPECT_EQ(tensor::Half::FromDouble(1 + 1.0 / 2048 + 1e-9), 0x3c01);
  EXPECT_EQ(tensor::Half::FromDouble(5.960464477539063e-08), 0x0001);
  EXPECT_EQ(tensor::Half::FromDouble(2.9e-08), 0x0000);
  EXPECT_EQ(tensor::Half::FromDouble(3.1e-08), 0x0001);
  EXPECT_EQ(tensor::Half::FromDouble(1e-300), 0x0000);
  EXPECT_EQ(tensor::Bfloat16::FromDouble(1.0), 0x3f80);
  EXPECT_EQ(tensor::Bfloat16::FromDouble(3.4e38), 0x7f80);
  EXPECT_EQ(tensor::Bfloat16::FromDouble(1 + 1.0 / 256), 0x3f80);
}

}  // namespace
}  // namespace millpond::rest
