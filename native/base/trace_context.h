#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millpond::base {

// The trace that a request belongs to, from its client's `traceparent` header
// (www.w3.org/TR/trace-context).
struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16 hexadecimal digits: the client's own span
  bool is_sampled = false;
  // The `tracestate` header as it came, which carries data between tracing systems. May be empty.
  std::string state;
};

// Parses a `traceparent` header. Returns nothing if it is invalid: the request is then in no trace.
// Leaves the state empty.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

}  // namespace millpond::base
