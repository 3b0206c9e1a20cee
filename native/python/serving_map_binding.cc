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

// Returns the value of a `serving.core.servable.Routing`.
Routing RoutingOf(nb::handle routing) {
  return {nb::cast<std::optional<int64_t>>(routing.attr("default_version")),
          nb::cast<decltype(Routing::labels)>(routing.attr("labels")),
          nb::cast<std::optional<int64_t>>(routing.attr("canary_version")),
          nb::cast<double>(routing.attr("canary_weight")),
          nb::cast<std::string>(routing.attr("canary_header")),
          nb::cast<decltype(Routing::awaited_labels)>(routing.attr("awaited_labels"))};
}

void Publish(ServingMap& self, const PyServable& servable, nb::object routing) {
  Routing value = RoutingOf(routing);
  ThrowIfError(WithoutGil([&] { return self.Publish(servable.entry(), std::move(value)); }));
}

void Retire(ServingMap& self, const std::string& name, int64_t version, nb::object routing) {
  Routing value = RoutingOf(routing);
  ThrowIfError(WithoutGil([&] { return self.Retire(name, version, std::move(value)); }));
}

void SetRouting(ServingMap& self, const std::string& name, nb::object routing) {
  Routing value = RoutingOf(routing);
  ThrowIfError(WithoutGil([&] { return self.SetRouting(name, std::move(value)); }));
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
      .def("publish", &Publish, nb::arg("servable"), nb::arg("routing"),
           nb::sig("def publish(self, servable: Servable, routing: Routing) -> None"))
      .def("retire", &Retire, nb::arg("name"), nb::arg("version"), nb::arg("routing"),
           nb::sig("def retire(self, name: str, version: int, routing: Routing) -> None"))
      .def("set_routing", &SetRouting, nb::arg("name"), nb::arg("routing"),
           nb::sig("def set_routing(self, name: str, routing: Routing) -> None"))
      .def("answering", &Answering, nb::arg("name"), nb::arg("label").none() = nb::none())
      .def("set_notes", &SetNotes, nb::arg("name"), nb::kw_only(), nb::arg("reason"),
           nb::arg("is_awaited"), nb::arg("is_refused"), nb::arg("version_reasons"),
           nb::arg("awaited_versions"))
      .def(
          "versions", [](ServingMap& self, const std::string& name) { return self.Versions(name); },
          nb::arg("name"));
}

}  // namespace millpond::python
