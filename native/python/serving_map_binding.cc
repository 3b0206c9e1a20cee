#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "native/python/binding.h"
#include "native/servable/serving_map.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using servable::Routing;
using servable::ServingMap;

void SetRouting(ServingMap& self, const std::string& name, std::optional<int64_t> default_version,
                decltype(Routing::labels) labels, std::optional<int64_t> canary_version,
                double canary_weight, std::string canary_header) {
  Routing routing{default_version, std::move(labels), canary_version, canary_weight,
                  std::move(canary_header)};
  ThrowIfError(WithoutGil([&] { return self.SetRouting(name, std::move(routing)); }));
}

}  // namespace

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
      .def("set_routing", &SetRouting, nb::arg("name"), nb::kw_only(), nb::arg("default_version"),
           nb::arg("labels"), nb::arg("canary_version"), nb::arg("canary_weight"),
           nb::arg("canary_header"))
      .def(
          "versions", [](ServingMap& self, const std::string& name) { return self.Versions(name); },
          nb::arg("name"));
}

}  // namespace millpond::python
