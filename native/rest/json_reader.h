#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "native/base/status.h"

namespace millpond::rest {

// A cursor over JSON text that reads it once, from front to back, without building a document. Each
// value is parsed into its destination while the cursor stands on it. So a tensor's numbers are
// parsed directly into the tensor.
//
// It replaces a library. simdjson accepts neither NaN nor Infinity, which TensorFlow Serving's
// clients send, needs a copy of the body with padding behind it, and would walk it twice. RapidJSON
// and yyjson can be told to accept both, but choose a number's type before the tensor's dtype does:
// yyjson in a document that it builds first, RapidJSON in a call for each value.
//
// It accepts exactly the texts that RFC 8259 allows, plus these numbers, a byte order mark before
// the text and a NUL as its end, and so refuses strings that are not UTF-8. Windows programs write
// the mark, C programs send the NUL of their string, and TensorFlow Serving takes both. Each method
// that returns bool returns false once an error was found; error() then describes it. After an
// error the cursor can only be used for GoBack. Borrows the text. A value on one thread's stack.
class JsonReader {
 public:
  // Above the rank of any tensor (base::kMaxTensorRank) plus the objects around it. The stack of a
  // request thread holds many times this depth.
  static constexpr int kMaxDepth = 300;

  explicit JsonReader(std::string_view text)
      : begin_(text.data()), position_(text.data()), end_(text.data() + text.size()) {
    Accept("\xEF\xBB\xBF");
  }

  bool ok() const { return error_.ok(); }
  const base::Status& error() const { return error_; }
  // Keeps the first error; returns false.
  bool Fail(base::Status error);
  // Does the same for text that is not JSON: the error has the place, the expected and the actual
  // text.
  bool FailSyntax(std::string_view expected);

  // Returns the first character of the next token, and moves the cursor to it. Returns '\0' at the
  // end.
  char Peek() {
    while (position_ < end_ && IsSpace(*position_)) ++position_;
    return position_ < end_ ? *position_ : '\0';
  }
  // True also at a NUL: what follows it is ignored.
  bool AtEnd() { return Peek() == '\0'; }

  // Enters an array. Then each call of NextElement steps to an element, which the caller reads or
  // skips. NextElement returns false after the last element: either the cursor is after the array,
  // or ok() is false.
  bool EnterArray() { return Enter('[', "a list"); }
  bool NextElement() { return Next(']', "',' or ']'"); }
  // Does the same for objects. `key` is valid until the next string is read.
  bool EnterObject() { return Enter('{', "an object"); }
  bool NextKey(std::string_view* key);

  // Reads a string. `value` lies in the text, or in this reader until the next string is read.
  bool ReadString(std::string_view* value);
  bool SkipValue();

  // A position to which the cursor can return.
  struct Mark {
    const char* position;
    int depth;
  };
  Mark Here() const { return {position_, depth_}; }
  // Returns to `mark`, which is at the start of a value, and clears the error.
  void GoBack(Mark mark);

  // For callers that parse a token themselves. The token begins at position(), at which Peek
  // stopped.
  const char* position() const { return position_; }
  const char* end() const { return end_; }
  void MoveTo(const char* position) { position_ = position; }
  // Moves past `word` and returns true if the text continues with it.
  bool Accept(std::string_view word);
  // Returns the token at the cursor for an error message: cut if it is long, or "a list" or "an
  // object".
  std::string Excerpt() const;

  size_t offset() const { return static_cast<size_t>(position_ - begin_); }
  size_t remaining_bytes() const { return static_cast<size_t>(end_ - position_); }

 private:
  static bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

  bool Enter(char bracket, std::string_view expected);
  bool Next(char bracket, std::string_view expected);
  bool Unescape(const char* text_begin, std::string_view* value);
  bool UnescapeOne(const char** at);
  bool UnescapeUnicode(const char** at);
  bool CheckUtf8(std::string_view value);
  bool SkipList();
  bool SkipObject();
  bool SkipNumber();

  const char* begin_;
  const char* position_;
  const char* end_;
  int depth_ = 0;
  bool is_first_ = false;  // before the first element of the array or object
  std::string unescaped_;
  base::Status error_;
};

inline bool JsonReader::Next(char bracket, std::string_view expected) {
  const char next = Peek();
  if (is_first_) {
    is_first_ = false;
    if (next != bracket) return error_.ok();
  } else if (next == ',') {
    ++position_;
    if (Peek() != bracket) return error_.ok();
    return FailSyntax("a value after ','");
  } else if (next != bracket) {
    return FailSyntax(expected);
  }
  ++position_;
  --depth_;
  return false;
}

}  // namespace millpond::rest
