#include "native/tf/kernel_message.h"

namespace millpond::tf {

namespace {

constexpr std::string_view kNodeMark = "{{node ";
constexpr std::string_view kMarkEnd = "}}";

// "2 root error(s) found.\n  (0) CODE: text\n  (1) …" begins with the error that came first.
std::string_view FirstError(std::string_view text) {
  constexpr std::string_view kFirst = " root error(s) found.\n  (0) ";
  const size_t first = text.find(kFirst);
  if (first == std::string_view::npos) return text;
  text.remove_prefix(first + kFirst.size());
  const size_t code_end = text.find(": ");
  if (code_end != std::string_view::npos) text.remove_prefix(code_end + 2);
  return text.substr(0, text.find("\n  (1) "));
}

// The name within the first mark; "" if the text has none.
std::string_view NodeName(std::string_view text) {
  const size_t begin = text.find(kNodeMark);
  if (begin == std::string_view::npos) return "";
  text.remove_prefix(begin + kNodeMark.size());
  const size_t end = text.find(kMarkEnd);
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end);
}

// Replaces "'{{node NAME}} = Op[attributes](inputs)'" by "node 'NAME'". Returns whether it was
// there.
bool ShortenDefinition(std::string_view name, std::string* sentence) {
  const std::string start = "'" + std::string(kNodeMark) + std::string(name) + "}}";
  const size_t begin = sentence->find(start);
  if (begin == std::string::npos) return false;
  const size_t name_end = begin + start.size();
  // Attributes may hold quotes, so the definition ends at the parenthesis behind its inputs.
  size_t end = name_end;
  if (sentence->compare(name_end, 1, "'") != 0) {
    end = sentence->find(")' with", name_end);
    if (end == std::string::npos) end = sentence->rfind(")'");
    if (end == std::string::npos || end < name_end) return false;
    end += 1;
  }
  sentence->replace(begin, end + 1 - begin, "node '" + std::string(name) + "'");
  return true;
}

void Erase(const std::string& part, std::string* sentence) {
  const size_t begin = sentence->find(part);
  if (begin != std::string::npos) sentence->erase(begin, part.size());
}

}  // namespace

std::string KernelMessage(std::string_view text) {
  text = FirstError(text);
  const std::string_view name = NodeName(text);
  std::string sentence(text.substr(0, text.find("\n\t [[")));
  if (name.empty()) return sentence;
  const std::string mark = " [node " + std::string(name) + "]";
  Erase(mark, &sentence);
  if (!ShortenDefinition(name, &sentence)) sentence += mark;
  return sentence;
}

}  // namespace millpond::tf
