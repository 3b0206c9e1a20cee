#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>

#include "native/python/binding.h"
#include "native/python/values.h"
#include "native/tf/trace_session.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using tf::Trace;
using tf::TraceSession;

std::unique_ptr<TraceSession> StartTrace(int host_level, bool includes_dataset_ops) {
  return ValueOrThrow(WithoutGil([&] {
    return TraceSession::Start({host_level, includes_dataset_ops});
  }));
}

Trace Collect(TraceSession& self, bool has_xspace, size_t total_count_max,
              const std::string& warning, size_t xspace_bytes_max) {
  return ValueOrThrow(WithoutGil([&] {
    return self.Collect({has_xspace, total_count_max, warning, xspace_bytes_max});
  }));
}

}  // namespace

void RegisterTrace(nb::module_& module) {
  nb::class_<TraceSession>(module, "TraceSession", nb::is_final())
      .def("drop", [](TraceSession& self) { WithoutGil([&] { self.Drop(); }); })
      .def("collect", &Collect, nb::kw_only(), nb::arg("has_xspace"), nb::arg("total_count_max"),
           nb::arg("warning"), nb::arg("xspace_bytes_max"));
  module.def("start_trace", &StartTrace, nb::kw_only(), nb::arg("host_level"),
             nb::arg("includes_dataset_ops"));
}

}  // namespace millpond::python
