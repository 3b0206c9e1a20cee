#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <string>

#include "native/metrics/span_buffer.h"
#include "native/python/binding.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using base::TraceContext;
using metrics::Phase;
using metrics::RequestSpan;
using metrics::SpanBuffer;

std::shared_ptr<SpanBuffer> MakeSpanBuffer(size_t capacity, int64_t per_second_max) {
  if (capacity == 0 || (capacity & (capacity - 1)) != 0) {
    ThrowIfError(base::InvalidArgument("capacity " + std::to_string(capacity) +
                                       " is not a power of two; use 1024"));
  }
  return std::make_shared<SpanBuffer>(SpanBuffer::Limits{capacity, per_second_max});
}

// Returns the times of the phases that the request reached, in ns, without the total.
std::map<std::string, int64_t> PhaseNs(const RequestSpan& span) {
  std::map<std::string, int64_t> times;
  for (const auto& [name, phase] : {std::pair{"queue", Phase::kQueue},
                                    {"decode", Phase::kDecode},
                                    {"batch", Phase::kBatch},
                                    {"run", Phase::kRun},
                                    {"encode", Phase::kEncode}}) {
    if (span.times[phase] != metrics::PhaseTimes::kNone) times[name] = span.times[phase];
  }
  return times;
}

std::map<std::string, int64_t> DroppedCounts(const SpanBuffer& self) {
  const SpanBuffer::DroppedCounts dropped = self.dropped();
  return {{"over_rate", dropped.over_rate}, {"full", dropped.full}};
}

void RegisterTraceContext(nb::module_& module) {
  nb::class_<TraceContext>(module, "TraceContext", nb::is_final())
      .def_ro("trace_id", &TraceContext::trace_id)
      .def_ro("parent_id", &TraceContext::parent_id)
      .def_ro("is_sampled", &TraceContext::is_sampled)
      .def_ro("state", &TraceContext::state);
}

void RegisterRequestSpan(nb::module_& module) {
  nb::class_<RequestSpan>(module, "RequestSpan", nb::is_final())
      .def_ro("context", &RequestSpan::context)
      .def_prop_ro("method",
                   [](const RequestSpan& self) { return metrics::MethodName(self.method); })
      .def_ro("model", &RequestSpan::model)
      .def_ro("version", &RequestSpan::version)
      .def_prop_ro("code",
                   [](const RequestSpan& self) { return static_cast<int>(self.status.code()); })
      .def_prop_ro("message", [](const RequestSpan& self) { return self.status.message(); })
      .def_ro("received_ns", &RequestSpan::received_ns)
      .def_prop_ro("phase_ns", &PhaseNs)
      .def_prop_ro("total_ns", [](const RequestSpan& self) { return self.times[Phase::kTotal]; })
      .def_ro("request_bytes", &RequestSpan::request_bytes)
      .def_ro("response_bytes", &RequestSpan::response_bytes);
}

}  // namespace

void RegisterSpans(nb::module_& module) {
  RegisterTraceContext(module);
  RegisterRequestSpan(module);
  nb::class_<SpanBuffer>(module, "SpanBuffer", nb::is_final())
      .def(nb::new_(&MakeSpanBuffer), nb::kw_only(), nb::arg("capacity"), nb::arg("per_second_max"))
      .def(
          "take", [](SpanBuffer& self, size_t count_max) { return self.Take(count_max); },
          nb::arg("count_max"))
      .def_prop_ro("dropped_counts", &DroppedCounts);
}

}  // namespace millpond::python
