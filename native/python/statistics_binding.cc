#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/python/binding.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using metrics::HistoryPoint;
using metrics::LatencyFigures;
using metrics::LatencySnapshot;
using metrics::MethodFigures;
using metrics::Phase;

constexpr int64_t kNsPerSecond = 1'000'000'000;

// The names, in the order of metrics::Phase.
constexpr std::array<const char*, metrics::kPhaseCount> kPhaseNames = {"queue", "decode", "batch",
                                                                       "run",   "encode", "total"};

// The figures of one method, and the time at which they were read.
struct PyMethodStatistics {
  const metrics::MethodSnapshot& since_start() const { return statistics.figures.since_start; }

  metrics::MethodStatistics statistics;
  int64_t now_ns;
};

base::StatusOr<Phase> ParsePhase(const std::string& name) {
  std::string names;
  for (size_t phase = 0; phase < kPhaseNames.size(); ++phase) {
    if (name == kPhaseNames[phase]) return static_cast<Phase>(phase);
    names += std::string(" ") + kPhaseNames[phase];
  }
  return base::InvalidArgument("unknown phase '" + name + "'; use one of" + names);
}

base::StatusOr<int64_t> ParseWindow(int64_t seconds) {
  constexpr int64_t kLongestSeconds = MethodFigures::kLongestWindowNs / kNsPerSecond;
  if (seconds >= 1 && seconds <= kLongestSeconds) return seconds * kNsPerSecond;
  return base::InvalidArgument("a window of " + std::to_string(seconds) +
                               " s is not kept; use 1 to " + std::to_string(kLongestSeconds) +
                               " s");
}

std::optional<double> EndedSeconds(const PyMethodStatistics& self) {
  if (!self.statistics.ended_ns) return {};
  return static_cast<double>(self.now_ns - *self.statistics.ended_ns) / kNsPerSecond;
}

std::map<int, int64_t> CountByCode(const PyMethodStatistics& self) {
  std::map<int, int64_t> counts;
  for (const auto& [code, latency] : self.since_start().by_code) {
    counts[static_cast<int>(code)] = latency.count();
  }
  return counts;
}

LatencySnapshot LatencyOf(const PyMethodStatistics& self, int code) {
  const auto& by_code = self.since_start().by_code;
  const auto found = by_code.find(static_cast<base::Code>(code));
  return found == by_code.end() ? LatencySnapshot() : found->second;
}

LatencyFigures PhaseFigures(const PyMethodStatistics& self, const std::string& name,
                            std::optional<int64_t> window_seconds) {
  const Phase phase = ValueOrThrow(ParsePhase(name));
  if (!window_seconds) return FiguresOf(self.since_start().phase(phase));
  const int64_t window_ns = ValueOrThrow(ParseWindow(*window_seconds));
  return FiguresOf(self.statistics.Within(phase, window_ns));
}

std::vector<PyMethodStatistics> AtOnce(std::vector<metrics::MethodStatistics> methods) {
  const int64_t now_ns = base::MonotonicNs();
  std::vector<PyMethodStatistics> values;
  values.reserve(methods.size());
  for (auto& method : methods) values.push_back({std::move(method), now_ns});
  return values;
}

void RegisterFigures(nb::module_& module) {
  nb::class_<LatencyFigures>(module, "LatencyFigures", nb::is_final())
      .def_ro("count", &LatencyFigures::count)
      .def_ro("sum_ns", &LatencyFigures::sum_ns)
      .def_ro("p50_ns", &LatencyFigures::p50_ns)
      .def_ro("p90_ns", &LatencyFigures::p90_ns)
      .def_ro("p99_ns", &LatencyFigures::p99_ns)
      .def_ro("p999_ns", &LatencyFigures::p999_ns)
      .def_ro("max_ns", &LatencyFigures::max_ns);
  nb::class_<HistoryPoint>(module, "HistoryPoint", nb::is_final())
      .def_ro("at_ns", &HistoryPoint::at_ns)
      .def_ro("count", &HistoryPoint::count)
      .def_ro("failed_count", &HistoryPoint::failed_count)
      .def_ro("latency", &HistoryPoint::latency);
}

void RegisterMethod(nb::module_& module) {
  using Method = PyMethodStatistics;
  nb::class_<Method>(module, "MethodStatistics", nb::is_final())
      .def_prop_ro("model", [](const Method& self) { return self.statistics.key.model; })
      .def_prop_ro("version", [](const Method& self) { return self.statistics.key.version; })
      .def_prop_ro("method", [](const Method& self) { return self.statistics.key.method; })
      .def_prop_ro("in_flight_count",
                   [](const Method& self) { return self.statistics.in_flight_count; })
      .def_prop_ro("row_count", [](const Method& self) { return self.since_start().row_count; })
      .def_prop_ro("ended_seconds", &EndedSeconds)
      .def_prop_ro("count_by_code", &CountByCode)
      .def(
          "latency", [](const Method& self, int code) { return FiguresOf(LatencyOf(self, code)); },
          nb::arg("code"))
      .def(
          "cumulative_counts",
          [](const Method& self, int code, const std::vector<int64_t>& edges_ns) {
            return LatencyOf(self, code).CumulativeCounts(edges_ns);
          },
          nb::arg("code"), nb::arg("edges_ns"))
      .def("phase", &PhaseFigures, nb::arg("phase"), nb::arg("window_seconds") = nb::none())
      .def(
          "phase_cumulative_counts",
          [](const Method& self, const std::string& phase, const std::vector<int64_t>& edges_ns) {
            return self.since_start()
                .phase(ValueOrThrow(ParsePhase(phase)))
                .CumulativeCounts(edges_ns);
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
             return WithoutGil([&] { return AtOnce(self.statistics()->Methods()); });
           })
      .def("model_methods",
           [](const Statistics& self) {
             return WithoutGil([&] { return AtOnce(self.statistics()->ModelMethods()); });
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
  RegisterFigures(module);
  RegisterMethod(module);
  RegisterRequestStatistics(module);
}

}  // namespace millpond::python
