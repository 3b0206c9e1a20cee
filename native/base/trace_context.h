#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millpond::base {

// Of which trace a request is a part, as its client says in `traceparent`
// (www.w3.org/TR/trace-context).
struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16: the client's own span
  bool is_sampled = false;
  // `tracestate` as it came: what tracing systems say to each other; may be empty.
  std::string state;
};

// Nothing where the header is not one: then the request is in no trace. The state is left empty.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

}  // namespace millpond::base
