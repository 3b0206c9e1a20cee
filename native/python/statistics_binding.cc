#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/python/binding.h"
#include "native/python/values.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using metrics::LatencyFigures;
using metrics::MethodFigures;
using metrics::MethodStatistics;
using metrics::Phase;

constexpr int64_t kNsPerSecond = 1'000'000'000;

base::StatusOr<int64_t> ParseWindow(int64_t seconds) {
  constexpr int64_t kLongestSeconds = MethodFigures::kLongestWindowNs / kNsPerSecond;
  if (seconds >= 1 && seconds <= kLongestSeconds) return seconds * kNsPerSecond;
  return base::InvalidArgument("a window of " + std::to_string(seconds) +
                               " s is not kept; use 1 to " + std::to_string(kLongestSeconds) +
                               " s");
}

std::map<int, int64_t> CountByCode(const MethodStatistics& self) {
  std::map<int, int64_t> counts;
  for (const auto& [code, latency] : self.figures.since_start.by_code) {
    counts[static_cast<int>(code)] = latency.count();
  }
  return counts;
}

LatencyFigures PhaseFigures(const MethodStatistics& self, Named<Phase> named,
                            std::optional<int64_t> window_seconds) {
  const Phase phase = named.value;
  if (!window_seconds) return FiguresOf(self.figures.since_start.phase(phase));
  const int64_t window_ns = ValueOrThrow(ParseWindow(*window_seconds));
  return FiguresOf(self.Within(phase, window_ns));
}

void RegisterMethod(nb::module_& module) {
  using Method = MethodStatistics;
  nb::class_<Method>(module, "MethodStatistics", nb::is_final())
      .def_prop_ro("model", [](const Method& self) { return self.key.model; })
      .def_prop_ro("version", [](const Method& self) { return self.key.version; })
      .def_prop_ro("method", [](const Method& self) { return self.key.method; })
      .def_prop_ro("in_flight_count", [](const Method& self) { return self.in_flight_count; })
      .def_prop_ro("row_count",
                   [](const Method& self) { return self.figures.since_start.row_count; })
      .def_prop_ro("is_ended", [](const Method& self) { return self.ended_ns.has_value(); })
      .def_prop_ro("count_by_code", &CountByCode)
      .def(
          "latency",
          [](const Method& self, int code) {
            return FiguresOf(self.figures.since_start.latency(static_cast<base::Code>(code)));
          },
          nb::arg("code"))
      .def(
          "cumulative_counts",
          [](const Method& self, int code, const std::vector<int64_t>& edges_ns) {
            return self.figures.since_start.latency(static_cast<base::Code>(code))
                .CumulativeCounts(edges_ns);
          },
          nb::arg("code"), nb::arg("edges_ns"))
      .def("phase", &PhaseFigures, nb::arg("phase"), nb::arg("window_seconds") = nb::none())
      .def(
          "phase_cumulative_counts",
          [](const Method& self, Named<Phase> phase, const std::vector<int64_t>& edges_ns) {
            return self.figures.since_start.phase(phase.value).CumulativeCounts(edges_ns);
          },
          nb::arg("phase"), nb::arg("edges_ns"));
}

void RegisterRequestStatistics(nb::module_& module) {
  using Statistics = PyRequestStatistics;
  nb::class_<Statistics>(module, "RequestStatistics", nb::is_final())
      .def(nb::init<>())
      .def(
          "add_models",
          [](const Statistics& self, const std::vector<std::string>& models) {
            WithoutGil([&] { self.statistics()->AddModels(models); });
          },
          nb::arg("models"))
      .def("methods",
           [](const Statistics& self) {
             return WithoutGil([&] { return self.statistics()->Methods(); });
           })
      .def("model_methods",
           [](const Statistics& self) {
             return WithoutGil([&] { return self.statistics()->ModelMethods(); });
           })
      .def(
          "history",
          [](const Statistics& self, const std::optional<std::string>& model, int64_t since_ns) {
            return WithoutGil([&] { return self.statistics()->History(model, since_ns); });
          },
          nb::arg("model").none(), nb::arg("since_ns") = 0)
      .def(
          "between",
          [](const Statistics& self, const std::string& model, int64_t from_ns, int64_t to_ns) {
            return WithoutGil(
                [&] { return FiguresOf(self.statistics()->Between(model, from_ns, to_ns)); });
          },
          nb::arg("model"), nb::arg("from_ns"), nb::arg("to_ns"))
      .def("cut",
           [](const Statistics& self) {
             return WithoutGil([&] { return self.statistics()->Cut(base::MonotonicNs()); });
           })
      .def("stop", [](Statistics& self) { WithoutGil([&] { self.Stop(); }); });
}

}  // namespace

void RegisterStatistics(nb::module_& module) {
  RegisterMethod(module);
  RegisterRequestStatistics(module);
}

}  // namespace millpond::python
