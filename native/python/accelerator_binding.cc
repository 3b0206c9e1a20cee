#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>

#include "native/pjrt/accelerator.h"
#include "native/pjrt/plugin.h"
#include "native/python/binding.h"
#include "native/python/values.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;

std::shared_ptr<pjrt::Accelerator> MakeAccelerator(const nb::str& plugin, float memory_fraction) {
  const std::string path = PathBytes(plugin);
  return ValueOrThrow(WithoutGil([&]() -> base::StatusOr<std::shared_ptr<pjrt::Accelerator>> {
    const base::StatusOr<pjrt::Plugin> opened = pjrt::Plugin::Open(path);
    if (!opened.ok()) return opened.status();
    pjrt::AcceleratorOptions options;
    options.memory_fraction = memory_fraction;
    return pjrt::Accelerator::Make(opened.value(), options);
  }));
}

std::optional<pjrt::AcceleratorMemory> MemoryOf(const pjrt::Accelerator& self) {
  const auto memory = WithoutGil([&] { return self.Memory(); });
  if (!memory.ok()) return std::nullopt;
  return memory.value();
}

}  // namespace

void RegisterAccelerator(nb::module_& module) {
  nb::class_<pjrt::Accelerator>(module, "Accelerator", nb::is_final())
      .def(nb::new_(&MakeAccelerator), nb::arg("plugin"), nb::arg("memory_fraction"))
      .def_prop_ro("description", &pjrt::Accelerator::description)
      .def("memory", &MemoryOf);
}

}  // namespace millpond::python
