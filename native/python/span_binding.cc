#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <string>

#include "native/metrics/span_buffer.h"
#include "native/python/binding.h"
#include "native/python/values.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using metrics::SpanBuffer;

std::shared_ptr<SpanBuffer> MakeSpanBuffer(size_t capacity, int64_t per_second_max) {
  if (capacity == 0 || (capacity & (capacity - 1)) != 0) {
    ThrowIfError(base::InvalidArgument("capacity " + std::to_string(capacity) +
                                       " is not a power of two; use 1024"));
  }
  return std::make_shared<SpanBuffer>(SpanBuffer::Limits{capacity, per_second_max});
}

std::map<std::string, int64_t> DroppedCounts(const SpanBuffer& self) {
  const SpanBuffer::DroppedCounts dropped = self.dropped();
  return {{"over_rate", dropped.over_rate}, {"full", dropped.full}};
}

}  // namespace

void RegisterSpans(nb::module_& module) {
  nb::class_<SpanBuffer>(module, "SpanBuffer", nb::is_final())
      .def(nb::new_(&MakeSpanBuffer), nb::kw_only(), nb::arg("capacity"), nb::arg("per_second_max"))
      .def(
          "take", [](SpanBuffer& self, size_t count_max) { return self.Take(count_max); },
          nb::arg("count_max"))
      .def_prop_ro("dropped_counts", &DroppedCounts);
}

}  // namespace millpond::python
