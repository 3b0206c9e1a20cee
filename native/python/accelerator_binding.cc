#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "native/pjrt/accelerator.h"
#include "native/pjrt/ahead_compiler.h"
#include "native/pjrt/executable_cache.h"
#include "native/pjrt/plugin.h"
#include "native/python/binding.h"
#include "native/python/values.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;

pjrt::Accelerator::List OpenAccelerators(const nb::str& plugin, float memory_fraction,
                                         int64_t memory_bytes_max) {
  const std::string path = PathBytes(plugin);
  return ValueOrThrow(WithoutGil([&]() -> base::StatusOr<pjrt::Accelerator::List> {
    const base::StatusOr<pjrt::Plugin> opened = pjrt::Plugin::Open(path);
    if (!opened.ok()) return opened.status();
    pjrt::AcceleratorOptions options;
    options.memory_fraction = memory_fraction;
    options.memory_bytes_max = memory_bytes_max;
    return pjrt::Accelerator::MakeAll(opened.value(), options);
  }));
}

std::shared_ptr<const pjrt::AheadCompiler> OpenAheadCompiler(const nb::str& plugin,
                                                             const std::string& topology,
                                                             float memory_fraction,
                                                             bool for_loads) {
  using Made = base::StatusOr<std::shared_ptr<const pjrt::AheadCompiler>>;
  const std::string path = PathBytes(plugin);
  return ValueOrThrow(WithoutGil([&]() -> Made {
    const base::StatusOr<pjrt::Plugin> opened = pjrt::Plugin::Open(path);
    if (!opened.ok()) return opened.status();
    return pjrt::AheadCompiler::Open(opened.value(), topology, memory_fraction, for_loads);
  }));
}

void CompileInto(const pjrt::AheadCompiler& self, const nb::bytes& program,
                 const nb::str& cache_directory) {
  const pjrt::ExecutableCache cache(PathBytes(cache_directory));
  const std::string_view hlo(program.c_str(), program.size());
  const pjrt::Filled filled = WithoutGil([&] { return cache.Fill(self, hlo); });
  ThrowIfError(filled.compiled);
  ThrowIfError(filled.written);
}

std::optional<pjrt::AcceleratorMemory> MemoryOf(const pjrt::Accelerator& self) {
  const auto memory = WithoutGil([&] { return self.Memory(); });
  if (!memory.ok()) return std::nullopt;
  return memory.value();
}

pjrt::AcceleratorState StateOf(const pjrt::Accelerator& self) {
  return WithoutGil([&] { return self.State(); });
}

}  // namespace

void RegisterAccelerator(nb::module_& module) {
  nb::class_<pjrt::Accelerator>(module, "Accelerator", nb::is_final())
      .def_prop_ro("name", &pjrt::Accelerator::name)
      .def_prop_ro("description", &pjrt::Accelerator::description)
      .def_prop_ro("target", &pjrt::Accelerator::target)
      .def_prop_ro("topology", &pjrt::Accelerator::topology)
      .def_prop_ro("autotunes", &pjrt::Accelerator::autotunes)
      .def("end_autotuning", &pjrt::Accelerator::EndAutotuning)
      .def("memory", &MemoryOf)
      .def("state", &StateOf);
  nb::class_<pjrt::AheadCompiler>(module, "AheadCompiler", nb::is_final())
      .def_prop_ro("target", &pjrt::AheadCompiler::target)
      .def_prop_ro("compiled_count", &pjrt::AheadCompiler::compiled_count)
      .def("compile_into", &CompileInto, nb::arg("program"), nb::arg("cache_directory"));
  module.def("open_ahead_compiler", &OpenAheadCompiler, nb::arg("plugin"), nb::arg("topology"),
             nb::arg("memory_fraction"), nb::arg("for_loads") = false);
  module.def("open_accelerators", &OpenAccelerators, nb::arg("plugin"), nb::arg("memory_fraction"),
             nb::arg("memory_bytes_max"));
}

}  // namespace millpond::python
