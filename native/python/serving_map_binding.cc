#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "native/python/binding.h"
#include "native/python/values.h"
#include "native/servable/serving_map.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using servable::Routing;
using servable::ServingMap;

void Publish(ServingMap& self, const PyServable& servable, Routing routing) {
  ThrowIfError(
      WithoutGil([&] { return self.Publish(servable.version().entry(), std::move(routing)); }));
}

void Retire(ServingMap& self, const std::string& name, int64_t version, Routing routing) {
  ThrowIfError(WithoutGil([&] { return self.Retire(name, version, std::move(routing)); }));
}

void SetRouting(ServingMap& self, const std::string& name, Routing routing) {
  ThrowIfError(WithoutGil([&] { return self.SetRouting(name, std::move(routing)); }));
}

std::optional<int64_t> Answering(ServingMap& self, const std::string& name,
                                 const std::optional<std::string>& label) {
  return WithoutGil([&]() -> std::optional<int64_t> {
    const auto handle = self.LookUp(name, {{}, label});
    if (!handle.ok()) return std::nullopt;
    return handle.value()->id().version;
  });
}

void SetNotes(ServingMap& self, const std::string& name, std::string reason, bool is_awaited,
              bool is_refused, const std::map<int64_t, std::string>& version_reasons,
              const std::vector<int64_t>& awaited_versions) {
  servable::ModelNotes notes{std::move(reason), is_awaited, {}, is_refused};
  for (const auto& [version, why] : version_reasons) notes.versions[version].reason = why;
  for (const int64_t version : awaited_versions) notes.versions[version].is_awaited = true;
  WithoutGil([&] { self.SetNotes(name, std::move(notes)); });
}

}  // namespace

void RegisterServingMap(nb::module_& module) {
  nb::class_<ServingMap>(module, "ServingMap", nb::is_final())
      .def(nb::init<>())
      .def("publish", &Publish, nb::arg("servable"), nb::arg("routing"))
      .def("retire", &Retire, nb::arg("name"), nb::arg("version"), nb::arg("routing"))
      .def("set_routing", &SetRouting, nb::arg("name"), nb::arg("routing"))
      .def("answering", &Answering, nb::arg("name"), nb::arg("label").none() = nb::none())
      .def("set_notes", &SetNotes, nb::arg("name"), nb::kw_only(), nb::arg("reason"),
           nb::arg("is_awaited"), nb::arg("is_refused"), nb::arg("version_reasons"),
           nb::arg("awaited_versions"))
      .def(
          "versions", [](ServingMap& self, const std::string& name) { return self.Versions(name); },
          nb::arg("name"));
}

}  // namespace millpond::python
