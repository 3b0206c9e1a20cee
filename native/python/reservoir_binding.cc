#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

#include "native/base/clock.h"
#include "native/python/binding.h"
#include "native/python/values.h"
#include "native/servable/request_reservoir.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using servable::RequestReservoir;

std::shared_ptr<RequestReservoir> MakeReservoir(size_t request_count_max, size_t bytes_max,
                                                double age_seconds_max) {
  servable::RequestReservoirLimits limits;
  limits.request_count_max = request_count_max;
  limits.bytes_max = bytes_max;
  limits.age_ns_max = SecondsToNs(age_seconds_max);
  return std::make_shared<RequestReservoir>(limits);
}

std::vector<nb::bytes> Requests(RequestReservoir& self) {
  const auto requests = WithoutGil([&] { return self.Requests(base::MonotonicNs()); });
  std::vector<nb::bytes> bytes;
  bytes.reserve(requests.size());
  for (const auto& request : requests) {
    bytes.emplace_back(request.bytes.data(), request.bytes.size());
  }
  return bytes;
}

}  // namespace

void RegisterReservoir(nb::module_& module) {
  nb::class_<RequestReservoir>(module, "RequestReservoir", nb::is_final())
      .def(nb::new_(&MakeReservoir), nb::kw_only(), nb::arg("request_count_max"),
           nb::arg("bytes_max"), nb::arg("age_seconds_max"))
      .def("requests", &Requests)
      .def("joint_requests", [](RequestReservoir& self) { return Requests(*self.joint()); })
      .def("statistics",
           [](RequestReservoir& self) { return WithoutGil([&] { return self.Statistics(); }); });
}

}  // namespace millpond::python
