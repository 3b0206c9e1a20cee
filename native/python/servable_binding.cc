#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <numeric>
#include <optional>
#include <string_view>

#include "native/base/clock.h"
#include "native/base/throttle.h"
#include "native/inference/answer.h"
#include "native/inference/predict.h"
#include "native/inference/predict_codec.h"
#include "native/python/binding.h"
#include "native/tensor/run_context.h"
#include "native/tf/saved_model.h"
#include "native/tf/saved_model_servable.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using servable::ServableEntry;
using tf::LoadedVersion;

base::Status PrepareBytes(const servable::Servable& servable, std::string_view bytes) {
  inference::PredictRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodePredictRequest({&bytes, 1}, &request));
  return inference::Prepare(servable, request);
}

// Makes `statistics` report the version's requests. `statistics` does not own the version. It holds
// the version only while it reads the handle count. That moment also ends before the control plane
// releases a version that it has destroyed.
void Tell(const std::shared_ptr<ServableEntry>& entry, metrics::RequestStatistics& statistics) {
  const auto in_flight_count = [held = std::weak_ptr<ServableEntry>(entry)]() -> int64_t {
    const std::shared_ptr<ServableEntry> here = held.lock();
    return here == nullptr ? 0 : here->handle_count();
  };
  statistics.AddVersion(entry->id().name, entry->id().version, entry->recorder(), in_flight_count,
                        base::MonotonicNs());
}

// A version that is being loaded.
class PySavedModelLoad {
 public:
  PySavedModelLoad(std::string name, int64_t version, std::string directory,
                   std::vector<std::string> tags)
      : id_{std::move(name), version},
        loaded_(std::make_shared<LoadedVersion>(std::move(directory), std::move(tags))) {}
  ~PySavedModelLoad() {
    const nb::gil_scoped_release release;
    loaded_.reset();
  }
  PySavedModelLoad(const PySavedModelLoad&) = delete;
  PySavedModelLoad& operator=(const PySavedModelLoad&) = delete;

  template <base::Status (tf::SavedModel::*kStep)()>
  void Run() {
    ThrowIfError(CheckIsUnfinished());
    ThrowIfError(WithoutGil([this] { return (Model().*kStep)(); }));
  }

  MemoryPlan PlanMemory(size_t headroom_bytes) {
    ThrowIfError(CheckIsUnfinished());
    const std::vector<size_t> bytes =
        ValueOrThrow(WithoutGil([this] { return Model().ParameterBytes(); }));
    const size_t slab_bytes = memory::PlanSlabBytes(bytes);
    return {std::accumulate(bytes.begin(), bytes.end(), size_t{0}),
            slab_bytes + std::min(headroom_bytes, SIZE_MAX - slab_bytes)};
  }

  size_t TakeArena(const PySlabPool& pool, size_t slab_bytes) {
    ThrowIfError(CheckIsUnfinished());
    return ValueOrThrow(WithoutGil([&]() -> base::StatusOr<size_t> {
      auto arena =
          memory::VersionArena::Take(pool.pool(), id_.name, slab_bytes, &TheRequestMemory());
      if (!arena.ok()) return arena.status();
      const size_t resident_bytes = arena.value()->slab_resident_bytes();
      MILLPOND_RETURN_IF_ERROR(loaded_->SetArena(std::move(arena.value())));
      return resident_bytes;
    }));
  }

  // Prepares a request's run on a version that is not served yet.
  void Prepare(nb::bytes request) {
    ThrowIfError(CheckIsReady("prepare"));
    ThrowIfError(WithoutGil([&] {
      return PrepareBytes(tf::SavedModelServable(id_, loaded_), {request.c_str(), request.size()});
    }));
  }

  std::vector<std::string> MissingOps() {
    ThrowIfError(CheckIsUnfinished());
    return Model().missing_ops();
  }

  std::vector<std::string> VariablesWithoutValue() {
    ThrowIfError(CheckIsUnfinished());
    return WithoutGil([this] { return Model().VariablesWithoutValue(); });
  }
  bool MayWriteVariables() {
    ThrowIfError(CheckIsUnfinished());
    return Model().MayWriteVariables();
  }

  void Cancel() { control_->is_cancelled.store(true); }
  int64_t RestoredBytes() const { return control_->restored_bytes.load(); }
  void SetRestoreBytesPerSecond(int64_t bytes_per_second) {
    control_->restore_bytes_per_second_max.store(bytes_per_second);
  }

  std::unique_ptr<PyServable> Finish(std::shared_ptr<servable::RequestReservoir> reservoir,
                                     const PyRequestStatistics* statistics) {
    ThrowIfError(CheckIsReady("finish"));
    Model().EndLoading();
    auto entry = std::make_shared<ServableEntry>(
        std::make_unique<tf::SavedModelServable>(id_, loaded_), std::move(reservoir));
    if (statistics != nullptr) Tell(entry, *statistics->statistics());
    return std::make_unique<PyServable>(std::move(entry), std::exchange(loaded_, nullptr));
  }

  memory::ArenaRemains Discard() {
    const std::shared_ptr<LoadedVersion> loaded = std::exchange(loaded_, nullptr);
    if (loaded == nullptr) return {};
    return WithoutGil([&] { return loaded->Free(); });
  }

 private:
  tf::SavedModel& Model() { return loaded_->model(); }

  base::Status CheckIsUnfinished() const {
    if (loaded_ != nullptr) return {};
    return base::FailedPrecondition("the load of " + id_.name + " version " +
                                    std::to_string(id_.version) + " is finished");
  }

  base::Status CheckIsReady(const std::string& step) {
    MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
    if (Model().IsReady()) return {};
    return base::FailedPrecondition(step + ": the load has steps that are not done");
  }

  const servable::ServableId id_;
  std::shared_ptr<LoadedVersion> loaded_;  // null once finished or discarded
  // Any thread may use it, during the load and after it. So it is apart from the members that
  // Finish and Discard take away.
  const std::shared_ptr<tf::LoadControl> control_ = loaded_->model().control();
};

struct PyServableStatistics {
  metrics::RequestSnapshot requests;

  int64_t RequestCount() const {
    int64_t count = 0;
    for (const int64_t of_code : requests.count_by_code) count += of_code;
    return count;
  }
  int64_t FailedCount() const { return RequestCount() - requests.count_by_code[0]; }

  PyServableStatistics Since(const PyServableStatistics& earlier) const {
    PyServableStatistics difference{requests};
    difference.requests.latency = requests.latency - earlier.requests.latency;
    for (size_t code = 0; code < requests.count_by_code.size(); ++code) {
      difference.requests.count_by_code[code] -= earlier.requests.count_by_code[code];
    }
    return difference;
  }
};

// The longest run of a request that does not come from a client: a warm-up request or a gate's
// request.
std::atomic<int64_t> replay_ns_max{tensor::RunContext::kNoDeadline};

void SetReplaySeconds(double seconds) {
  replay_ns_max =
      seconds > 0 ? static_cast<int64_t>(seconds * 1e9) : tensor::RunContext::kNoDeadline;
}

void CheckIsAlive(const ServableEntry& entry) {
  if (!entry.is_destroyed()) return;
  ThrowIfError(base::FailedPrecondition(entry.id().name + " version " +
                                        std::to_string(entry.id().version) + " is destroyed"));
}

// Pins the version while a successor's gates compare with it, because another thread may unload it
// meanwhile. While it is pinned, its unloading waits. Raises the same kind of error if the version
// is retired as if it is destroyed.
servable::ServableHandle PinAlive(const PyServable& self) {
  const ServableEntry& entry = *self.entry();
  CheckIsAlive(entry);
  servable::ServableHandle handle = servable::ServableHandle::UnlessRetired(self.entry().get());
  if (!handle) {
    ThrowIfError(base::FailedPrecondition(entry.id().name + " version " +
                                          std::to_string(entry.id().version) + " is unloading"));
  }
  return handle;
}

nb::bytes Answer(const PyServable& self, const std::string& method, nb::bytes request) {
  const servable::ServableHandle handle = PinAlive(self);
  const std::string_view bytes(request.c_str(), request.size());
  const std::string reply = ValueOrThrow(WithoutGil([&] {
    const base::Throttle throttle;  // a warm-up runs beside live requests
    auto answer = inference::AnswerRequest(*handle, method, {&bytes, 1},
                                           replay_ns_max.load(std::memory_order_relaxed));
    throttle.Rest();
    return answer;
  }));
  return nb::bytes(reply.data(), reply.size());
}

nb::bytes Predict(const PyServable& self, nb::bytes request) {
  return Answer(self, "Predict", std::move(request));
}

void Prepare(const PyServable& self, nb::bytes request) {
  const servable::ServableHandle handle = PinAlive(self);
  ThrowIfError(WithoutGil([&] {
    return PrepareBytes(*handle, {request.c_str(), request.size()});
  }));
}

nb::bytes SignatureDefMap(const PyServable& self) {
  const servable::ServableHandle handle = PinAlive(self);
  const std::string& map = handle->signature_def_map();
  return nb::bytes(map.data(), map.size());
}

std::optional<memory::ArenaStatistics> ArenaStatisticsOf(const PyServable& self) {
  return WithoutGil([&] { return self.loaded().ArenaStatistics(); });
}

int64_t ArenaOverflowBlockCount(const PyServable& self) {
  if (self.entry()->is_destroyed() || self.loaded().arena() == nullptr) return 0;
  return self.loaded().arena()->overflow_block_count();
}

bool SealArena(const PyServable& self) {
  CheckIsAlive(*self.entry());
  const LoadedVersion& loaded = self.loaded();
  if (loaded.arena() == nullptr || !loaded.model().CanBeSealed()) return false;
  ThrowIfError(WithoutGil([&] { return loaded.arena()->Seal(); }));
  return true;
}

memory::ArenaRemains Destroy(const PyServable& self) {
  return ValueOrThrow(WithoutGil([&]() -> base::StatusOr<memory::ArenaRemains> {
    MILLPOND_RETURN_IF_ERROR(self.entry()->Destroy());
    return self.loaded().Free();
  }));
}

void RegisterServableStatistics(nb::module_& module) {
  using Statistics = PyServableStatistics;
  const auto quantile = [](double q) {
    return [q](const Statistics& self) { return self.requests.latency.ValueAtQuantile(q); };
  };
  nb::class_<Statistics>(module, "ServableStatistics", nb::is_final())
      .def_prop_ro("request_count", &Statistics::RequestCount)
      .def_prop_ro("failed_count", &Statistics::FailedCount)
      .def_prop_ro("latency_ns_p50", quantile(0.5))
      .def_prop_ro("latency_ns_p99", quantile(0.99))
      .def_prop_ro("latency_ns_p999", quantile(0.999))
      .def_prop_ro("latency_ns_max",
                   [](const Statistics& self) { return self.requests.latency.max_ns(); })
      .def("since", &Statistics::Since, nb::arg("earlier"));
}

void RegisterLoadedServable(nb::module_& module) {
  module.def("set_replay_seconds", &SetReplaySeconds, nb::arg("seconds"));
  nb::class_<PyServable>(module, "Servable", nb::is_final())
      .def_prop_ro("name", [](const PyServable& self) { return self.entry()->id().name; })
      .def_prop_ro("version", [](const PyServable& self) { return self.entry()->id().version; })
      .def_prop_ro("handle_count",
                   [](const PyServable& self) { return self.entry()->handle_count(); })
      .def("answer", &Answer, nb::arg("method"), nb::arg("request"))
      .def("predict", &Predict, nb::arg("request"))
      .def("prepare", &Prepare, nb::arg("request"))
      .def("signature_def_map", &SignatureDefMap)
      .def("statistics",
           [](const PyServable& self) {
             return PyServableStatistics{self.entry()->requests().ModelRuns()};
           })
      .def(
          "quiesce",
          [](const PyServable& self, double timeout_seconds) {
            return ValueOrThrow(
                WithoutGil([&] { return self.entry()->Quiesce(SecondsToNs(timeout_seconds)); }));
          },
          nb::arg("timeout_seconds"))
      .def_prop_ro("may_write_variables",
                   [](const PyServable& self) {
                     const servable::ServableHandle handle = PinAlive(self);
                     return self.loaded().model().MayWriteVariables();
                   })
      .def("arena_statistics", &ArenaStatisticsOf)
      .def_prop_ro("arena_overflow_block_count", &ArenaOverflowBlockCount)
      .def("seal_arena", &SealArena)
      .def("destroy", &Destroy);
}

}  // namespace

void RegisterServable(nb::module_& module) {
  RegisterServableStatistics(module);
  RegisterLoadedServable(module);
  using Load = PySavedModelLoad;
  nb::class_<Load>(module, "SavedModelLoad", nb::is_final())
      .def(nb::init<std::string, int64_t, std::string, std::vector<std::string>>(), nb::arg("name"),
           nb::arg("version"), nb::arg("directory"), nb::arg("tags"))
      .def("read_graph", &Load::Run<&tf::SavedModel::ReadGraph>)
      .def("check_input_shapes", &Load::Run<&tf::SavedModel::CheckInputShapes>)
      .def("missing_ops", &Load::MissingOps)
      .def("create_session", &Load::Run<&tf::SavedModel::CreateSession>)
      .def("restore", &Load::Run<&tf::SavedModel::Restore>)
      .def("run_init", &Load::Run<&tf::SavedModel::RunInit>)
      .def("variables_without_value", &Load::VariablesWithoutValue)
      .def_prop_ro("may_write_variables", &Load::MayWriteVariables)
      .def("make_callables", &Load::Run<&tf::SavedModel::MakeCallables>)
      .def("plan_memory", &Load::PlanMemory, nb::arg("headroom_bytes"))
      .def("take_arena", &Load::TakeArena, nb::arg("pool"), nb::arg("slab_bytes"))
      .def("prepare", &Load::Prepare, nb::arg("request"))
      .def("cancel", &Load::Cancel)
      .def_prop_ro("restored_bytes", &Load::RestoredBytes)
      .def("set_restore_bytes_per_second", &Load::SetRestoreBytesPerSecond,
           nb::arg("bytes_per_second"))
      .def("discard", &Load::Discard)
      .def("finish", &Load::Finish, nb::arg("reservoir").none() = nb::none(),
           nb::arg("request_statistics").none() = nb::none());
}

}  // namespace millpond::python
