#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>

#include "native/base/byte_budget.h"
#include "native/python/binding.h"
#include "native/servable/admission.h"

namespace millpond::python {

namespace nb = nanobind;
using servable::Admission;

void RegisterAdmission(nb::module_& module) {
  nb::class_<Admission>(module, "Admission", nb::is_final())
      .def(nb::init<int64_t>(), nb::arg("total_limit"))
      .def(
          "set_model_limits",
          // Releases the GIL, because it waits for requests that read the old limits, a few ns
          // each.
          [](Admission& self, const Admission::ModelLimits& limits) {
            WithoutGil([&] { self.SetModelLimits(limits); });
          },
          nb::arg("limits"))
      .def_prop_ro("in_flight_count", &Admission::in_flight_count)
      .def_prop_ro("refused_count", &Admission::refused_count);
}

void RegisterByteBudget(nb::module_& module) {
  using base::ByteBudget;
  nb::class_<ByteBudget>(module, "ByteBudget", nb::is_final())
      .def(nb::init<int64_t>(), nb::arg("limit_bytes"))
      .def_prop_ro("limit_bytes", &ByteBudget::limit_bytes)
      .def_prop_ro("in_use_bytes", &ByteBudget::in_use_bytes)
      .def_prop_ro("refused_count", &ByteBudget::refused_count);
}

}  // namespace millpond::python
