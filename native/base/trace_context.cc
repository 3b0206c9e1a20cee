#include "native/base/trace_context.h"

#include <algorithm>
#include <cstddef>

namespace millpond::base {
namespace {

constexpr size_t kVersionDigits = 2;
constexpr size_t kTraceIdDigits = 32;
constexpr size_t kParentIdDigits = 16;
constexpr size_t kFlagsDigits = 2;
constexpr unsigned kSampledFlag = 1;

// Takes lower-case hexadecimal digits from the front. The specification forbids upper case.
bool TakeDigits(size_t count, std::string_view* rest, std::string_view* digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (rest->size() < count) return false;
  *digits = rest->substr(0, count);
  rest->remove_prefix(count);
  return digits->find_first_not_of(kDigits) == std::string_view::npos;
}

bool TakeDash(std::string_view* rest) {
  if (rest->empty() || rest->front() != '-') return false;
  rest->remove_prefix(1);
  return true;
}

bool IsZero(std::string_view digits) {
  return std::all_of(digits.begin(), digits.end(), [](char digit) { return digit == '0'; });
}

// Returns true if the text after the flags is valid: nothing in version 00, and perhaps more fields
// in versions that are not yet specified.
bool HasSoundEnd(std::string_view version, std::string_view rest) {
  if (version == "00") return rest.empty();
  return version != "ff" && (rest.empty() || rest.front() == '-');
}

bool IsSampled(std::string_view flags) {
  const char low = flags.back();
  const unsigned value = low <= '9' ? low - '0' : low - 'a' + 10;
  return (value & kSampledFlag) != 0;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view header) {
  std::string_view rest = header;
  std::string_view version;
  std::string_view trace_id;
  std::string_view parent_id;
  std::string_view flags;
  const bool is_read = TakeDigits(kVersionDigits, &rest, &version) && TakeDash(&rest) &&
                       TakeDigits(kTraceIdDigits, &rest, &trace_id) && TakeDash(&rest) &&
                       TakeDigits(kParentIdDigits, &rest, &parent_id) && TakeDash(&rest) &&
                       TakeDigits(kFlagsDigits, &rest, &flags);
  if (!is_read || !HasSoundEnd(version, rest) || IsZero(trace_id) || IsZero(parent_id)) return {};
  return TraceContext{std::string(trace_id), std::string(parent_id), IsSampled(flags), ""};
}

}  // namespace millpond::base
