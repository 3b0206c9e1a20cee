#include "native/rest/json_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millpond::rest {
namespace {

// Copies the text into a block of its own size, so that AddressSanitizer detects a read past its
// end.
class Text {
 public:
  explicit Text(std::string_view text) : bytes_(text.begin(), text.end()) {}
  std::string_view view() const { return {bytes_.data(), bytes_.size()}; }

 private:
  std::vector<char> bytes_;
};

bool IsWhole(std::string_view text) {
  const Text copy(text);
  JsonReader reader(copy.view());
  return reader.SkipValue() && reader.AtEnd();
}

std::string StringOf(std::string_view text) {
  const Text copy(text);
  JsonReader reader(copy.view());
  std::string_view value;
  return reader.ReadString(&value) ? std::string(value) : reader.error().message();
}

TEST(JsonReader, AcceptsTheWholeGrammar) {
  for (const char* text : {"{}", "[]", " [ ] ", "[[], {}]", "\"\"", "0", "-0", "-1.5e+10", "1E5",
                           "true", "false", "null", "{\"a\": {\"b\": [1, 2, \"x\"]}, \"a\": null}",
                           "\t\r\n[1\n,\t2]", "NaN", "-Infinity", "1e400"}) {
    EXPECT_TRUE(IsWhole(text)) << text;
  }
}

// Windows programs write the mark, and C programs send the NUL of their string.
TEST(JsonReader, TakesAMarkBeforeAndANulAfterTheText) {
  for (const std::string& text :
       {std::string("\xEF\xBB\xBF{}"), std::string("{}\0", 3), std::string("{} \0 junk", 9),
        std::string("\xEF\xBB\xBF 1 \0", 7)}) {
    EXPECT_TRUE(IsWhole(text)) << text;
  }
  for (const std::string& text :
       {std::string("\xEF\xBB\xBF"), std::string("\xEF\xBB{}"), std::string("\0{}", 3),
        std::string("{\0}", 3), std::string("[1,\0", 4), std::string("{}\xEF\xBB\xBF"),
        std::string("\xEF\xBB\xBF\xEF\xBB\xBF{}")}) {
    EXPECT_FALSE(IsWhole(text)) << text;
  }
}

TEST(JsonReader, RefusesTextOutsideTheGrammar) {
  for (const char* text :
       {"",      " ",     "[",       "]",         "{",           "}",        "[1",
        "[1,",   "[1,]",  "[,1]",    "[1 2]",     "{\"a\"}",     "{\"a\":}", "{\"a\":1,}",
        "{a:1}", "{1:1}", "{,}",     "01",        "-",           "+1",       ".5",
        "1.",    "1e",    "1e+",     "tru",       "nul",         "'a'",      "\"",
        "\"a",   "\"\\",  "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"a\nb\"", "[1]]",
        "{}{}",  "nan",   "Infinit", "--1",       "1a",          "// x\n1"}) {
    EXPECT_FALSE(IsWhole(text)) << text;
  }
}

TEST(JsonReader, UnescapesStrings) {
  EXPECT_EQ(StringOf(R"("plain")"), "plain");
  EXPECT_EQ(StringOf(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(StringOf(R"("a\u0041\u00e4\u20ac\ud83d\ude00z")"), "aA\u00e4\u20ac\U0001F600z");
  EXPECT_EQ(StringOf(R"("\u0000x")"), std::string("\0x", 2));
  EXPECT_EQ(StringOf("\"\u00e4\u20ac\""), "\u00e4\u20ac");
  EXPECT_EQ(StringOf("\"0123456789abcdef\\n0123456789\""), "0123456789abcdef\n0123456789");
}

TEST(JsonReader, FindsTheEndOfStringsOfEachLength) {
  std::string plain;
  for (int length = 0; length < 40; ++length, plain += static_cast<char>('a' + length % 26)) {
    EXPECT_EQ(StringOf('"' + plain + '"'), plain);
    EXPECT_EQ(StringOf('"' + plain + "\\n" + plain + '"'), plain + '\n' + plain);
    EXPECT_FALSE(IsWhole('"' + plain));
    EXPECT_FALSE(IsWhole('"' + plain + "\x1f\""));
  }
}

TEST(JsonReader, RefusesBrokenUtf8AndLoneSurrogates) {
  for (const char* text : {"\"\xff\"", "\"a\xc3\"", "\"\xed\xa0\x80\"", "\"0123456789\x80 \\n\"",
                           R"("\ud83d")", R"("\ud83dx")", R"("\ude00")", R"("\ud83d\u0041")"}) {
    EXPECT_FALSE(IsWhole(text)) << text;
  }
}

TEST(JsonReader, NestsToItsLimitAndNoDeeper) {
  const int depth = JsonReader::kMaxDepth;
  EXPECT_TRUE(IsWhole(std::string(depth, '[') + std::string(depth, ']')));
  EXPECT_FALSE(IsWhole(std::string(depth + 1, '[') + std::string(depth + 1, ']')));
  EXPECT_FALSE(IsWhole(std::string(10'000'000, '[')));
}

TEST(JsonReader, ErrorHasPositionAndExcerpt) {
  JsonReader reader("{\"a\": [1, 2; 3]}");
  EXPECT_FALSE(reader.SkipValue());
  EXPECT_EQ(reader.error().message(), "JSON Parse error: expected ',' or ']', got ; at offset: 11");
  JsonReader cut("[1");
  EXPECT_FALSE(cut.SkipValue());
  EXPECT_EQ(cut.error().message(),
            "JSON Parse error: expected ',' or ']', got the end at offset: 2");
}

TEST(JsonReader, TheFirstErrorStays) {
  JsonReader reader("]");
  EXPECT_FALSE(reader.EnterArray());
  const std::string first = reader.error().message();
  EXPECT_FALSE(reader.EnterObject());
  EXPECT_EQ(reader.error().message(), first);
}

TEST(JsonReader, GoesBackToTheStartOfAValue) {
  JsonReader reader("[[1], 2]");
  ASSERT_TRUE(reader.EnterArray());
  ASSERT_TRUE(reader.NextElement());
  const JsonReader::Mark mark = reader.Here();
  ASSERT_TRUE(reader.SkipValue());
  reader.GoBack(mark);
  ASSERT_TRUE(reader.SkipValue());
  ASSERT_TRUE(reader.NextElement());
  ASSERT_TRUE(reader.SkipValue());
  EXPECT_FALSE(reader.NextElement());
  EXPECT_TRUE(reader.ok() && reader.AtEnd());
}

TEST(JsonReader, LongExcerptsAreCut) {
  const std::string text = "\"" + std::string(100, 'x') + "\"";
  EXPECT_EQ(JsonReader(text).Excerpt(), "\"" + std::string(31, 'x') + "...");
  EXPECT_EQ(JsonReader("12.5, 3").Excerpt(), "12.5");
  EXPECT_EQ(JsonReader("\"a, b\", 3").Excerpt(), "\"a, b\"");
}

}  // namespace
}  // namespace millpond::rest
