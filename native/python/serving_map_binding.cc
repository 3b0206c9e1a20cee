#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "native/python/binding.h"
#include "native/servable/serving_map.h"

namespace millpond::python {

namespace nb = nanobind;
using servable::ServingMap;

void RegisterServingMap(nb::module_& module) {
  nb::class_<ServingMap>(module, "ServingMap", nb::is_final())
      .def(nb::init<>())
      .def(
          "publish",
          [](ServingMap& self, const PyServable& servable) {
            ThrowIfError(WithoutGil([&] { return self.Publish(servable.entry()); }));
          },
          nb::arg("servable"))
      .def(
          "retire",
          [](ServingMap& self, const std::string& name, int64_t version) {
            ThrowIfError(WithoutGil([&] { return self.Retire(name, version); }));
          },
          nb::arg("name"), nb::arg("version"))
      .def(
          "versions", [](ServingMap& self, const std::string& name) { return self.Versions(name); },
          nb::arg("name"));
}

}  // namespace millpond::python
