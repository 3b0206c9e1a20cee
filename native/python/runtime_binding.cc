#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "native/base/crash_page.h"
#include "native/memory/jemalloc_api.h"
#include "native/memory/request_memory.h"
#include "native/python/binding.h"
#include "native/python/values.h"
#include "native/rpc/server.h"
#include "native/tf/op_library.h"
#include "native/tf/run_memory_limits.h"
#include "native/tf/runtime.h"
#include "native/tf/saved_model_check.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;

std::map<std::string, std::string> BuildInfo() {
  return {{"millpond", MILLPOND_VERSION},
          {"tensorflow", tf::TensorFlowVersion()},
          {"wire", rpc::WireVersions()},
          {"jemalloc", memory::JemallocVersion()},
          {"allocator", memory::IsJemallocPreloaded() ? "jemalloc" : "glibc"}};
}

void Initialize(const tf::RuntimeOptions& options) {
  ThrowIfError(WithoutGil([&] { return tf::InitializeRuntime(options, &TheRequestMemory()); }));
}

std::vector<std::string> LoadOpLibrary(const nb::str& path) {
  const std::string bytes = PathBytes(path);
  return ValueOrThrow(WithoutGil([&] { return tf::LoadOpLibrary(bytes); }));
}

std::vector<std::string> CheckSavedModel(const nb::str& directory) {
  const std::string bytes = PathBytes(directory);
  return ValueOrThrow(WithoutGil([&] { return tf::CheckSavedModel(bytes); }));
}

}  // namespace

memory::RequestMemory& TheRequestMemory() {
  static auto* const request_memory = new memory::RequestMemory;
  return *request_memory;
}

void RegisterRuntime(nb::module_& module) {
  module.def("build_info", &BuildInfo);
  module.def("initialize", &Initialize, nb::arg("options"));
  module.def(
      "open_crash_page", [](int descriptor) { ThrowIfError(base::OpenCrashPage(descriptor)); },
      nb::arg("descriptor"));
  module.def("set_run_memory_bytes", &tf::SetRunMemoryBytesMax, nb::arg("bytes"),
             nb::arg("all_runs_bytes"));
  module.def("runs_ended_by_memory", &tf::RunsEndedByMemory);
  module.def("load_op_library", &LoadOpLibrary, nb::arg("path"));
  module.def("check_saved_model", &CheckSavedModel, nb::arg("directory"));
  module.def("request_memory_statistics", [] { return TheRequestMemory().Statistics(); });
  module.def("mark_request_memory_peak", [] { TheRequestMemory().MarkPeak(); });
  module.def("request_memory_peak_rise_bytes", [] { return TheRequestMemory().PeakRiseBytes(); });
}

}  // namespace millpond::python
