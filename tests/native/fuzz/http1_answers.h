#pragma once

#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/ascii_text.h"
#include "tests/native/fuzz/fuzz_target.h"

// Reads the answers of a server as a strict client of HTTP/1.1 does: it takes nothing that RFC 9112
// does not allow a server to send.
namespace millpond::fuzz {

// A request, as the server's session has read it.
struct SeenRequest {
  std::string method;
  std::string target;
  bool has_come = false;  // as a whole
  bool is_closed = false;
};

// An answer without its date.
struct SeenAnswer {
  int status = 0;
  std::string fields;
  std::string body;
  bool is_last = false;  // the server says that it closes

  friend bool operator==(const SeenAnswer& a, const SeenAnswer& b) {
    return a.status == b.status && a.fields == b.fields && a.body == b.body &&
           a.is_last == b.is_last;
  }
};

// The body with which Python answers a request.
inline std::string LineOf(const std::string& method, const std::string& target) {
  return "answer to " + method + " " + target;
}

inline std::string_view TakeLine(std::string_view* bytes) {
  const size_t end = bytes->find("\r\n");
  FUZZ_CHECK(end != std::string_view::npos, "a line has no end: " + std::string(*bytes));
  const std::string_view line = bytes->substr(0, end);
  FUZZ_CHECK(line.find_first_of("\r\n") == std::string_view::npos, "a bare line end");
  bytes->remove_prefix(end + 2);
  return line;
}

// Reads one answer, or an interim one.
inline SeenAnswer TakeAnswer(std::string_view* bytes, bool is_head) {
  SeenAnswer answer;
  const std::string line(TakeLine(bytes));
  const bool is_status = line.compare(0, 9, "HTTP/1.1 ") == 0 && line.size() > 13 &&
                         line[12] == ' ' && std::isupper(line[13]) != 0;
  FUZZ_CHECK(is_status, "no status line: " + line);
  answer.status = std::atoi(line.c_str() + 9);
  size_t length = std::string::npos;
  while (true) {
    const std::string field(TakeLine(bytes));
    if (field.empty()) break;
    const size_t colon = field.find(": ");
    FUZZ_CHECK(colon != std::string::npos && colon > 0, "no field: " + field);
    const std::string name = field.substr(0, colon);
    FUZZ_CHECK(name == base::LowerOf(name) && name != "transfer-encoding", field);
    if (name == "content-length") {
      FUZZ_CHECK(length == std::string::npos, "two lengths");
      length = std::strtoull(field.c_str() + colon + 2, nullptr, 10);
    }
    if (name == "connection") answer.is_last = field == "connection: close";
    if (name != "date") answer.fields += field + "\n";
  }
  if (answer.status == 100) return answer;
  FUZZ_CHECK(length != std::string::npos, "no length: " + answer.fields);
  // A head that is answered with a refusal of its connection may have a body, which nobody reads.
  const bool has_body = !is_head || (answer.is_last && !bytes->empty());
  if (!has_body) return answer;
  FUZZ_CHECK(length <= bytes->size(), "the body is cut short");
  answer.body = bytes->substr(0, length);
  bytes->remove_prefix(length);
  return answer;
}

// Returns the final answers. Interim ones depend on what had come by then.
inline std::vector<SeenAnswer> ReadAnswers(std::string_view bytes,
                                           const std::vector<SeenRequest>& requests) {
  std::vector<SeenAnswer> answers;
  while (!bytes.empty()) {
    FUZZ_CHECK(answers.empty() || !answers.back().is_last, "bytes after the last answer");
    const bool is_head =
        answers.size() < requests.size() && requests[answers.size()].method == "HEAD";
    SeenAnswer answer = TakeAnswer(&bytes, is_head);
    if (answer.status != 100) answers.push_back(std::move(answer));
  }
  return answers;
}

// Compares the answers with their requests, which have the same order.
inline void CheckAnswers(const std::vector<SeenAnswer>& answers,
                         const std::vector<SeenRequest>& requests, bool is_over) {
  size_t come_count = 0;
  for (const SeenRequest& request : requests) come_count += request.has_come ? 1 : 0;
  FUZZ_CHECK(answers.size() >= come_count, "a request has no answer");
  // A refusal may answer what was no request.
  FUZZ_CHECK(answers.size() <= requests.size() + (is_over ? 1 : 0), "too many answers");
  for (size_t i = 0; i < answers.size(); ++i) {
    FUZZ_CHECK(answers[i].is_last == (is_over && i + 1 == answers.size()), "where it ends");
    if (answers[i].body.compare(0, 10, "answer to ") != 0) continue;
    FUZZ_CHECK(i < requests.size(), "an answer to no request");
    FUZZ_CHECK(answers[i].body == LineOf(requests[i].method, requests[i].target),
               answers[i].body + ", asked for " + requests[i].target);
  }
}

}  // namespace millpond::fuzz
