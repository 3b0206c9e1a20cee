#include "native/rest/base64.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace millpond::rest {
namespace {

std::string Encoded(std::string_view plain) {
  std::string coded(Base64Bytes(plain.size()), '\0');
  EncodeBase64(plain, coded.data());
  return coded;
}

std::string Decoded(std::string_view coded) {
  std::string plain(PlainBytes(coded), '\0');
  return DecodeBase64(coded, plain.data()) ? plain : "<refused>";
}

// The vectors of RFC 4648, section 10.
TEST(Base64, EncodesAndDecodesTheVectorsOfTheRfc) {
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"}};
  for (const auto& [plain, coded] : vectors) {
    EXPECT_EQ(Encoded(plain), coded);
    EXPECT_EQ(Decoded(coded), plain);
  }
}

TEST(Base64, DecodesWithoutPaddingAndTheUrlSafeAlphabet) {
  EXPECT_EQ(Decoded("Zg"), "f");
  EXPECT_EQ(Decoded("Zm8"), "fo");
  EXPECT_EQ(Decoded("-_8="), "\xfb\xff");
  EXPECT_EQ(Decoded("+/8="), "\xfb\xff");
}

// Line breaks as in Python's base64.encodebytes and in MIME encoders of other languages.
TEST(Base64, DecodesWithWhitespaceAnywhere) {
  EXPECT_EQ(Decoded("Zm9v\nYmFy\n"), "foobar");
  EXPECT_EQ(Decoded("Zm9v\r\nYmE=\r\n"), "fooba");
  EXPECT_EQ(Decoded(" Z g\t= = "), "f");
  EXPECT_EQ(Decoded("\n"), "");
}

TEST(Base64, RefusesInvalidBase64) {
  for (const char* coded : {"Z", "Zg=", "Zg===", "Z===", "====", "=", "Zm9vY",
                            "Zg==Zg==", "Z g=", "Zg====AAAA", "Zh==", "Zm9=", "\xff\xff\xff\xff"}) {
    EXPECT_EQ(Decoded(coded), "<refused>") << coded;
  }
}

TEST(Base64, ReadsBackAnyBytes) {
  std::mt19937_64 rng(2'026);
  std::string plain;
  for (int length = 0; length < 300; ++length) {
    EXPECT_EQ(Decoded(Encoded(plain)), plain);
    plain += static_cast<char>(rng());
  }
}

}  // namespace
}  // namespace millpond::rest
