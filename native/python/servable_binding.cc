#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <optional>
#include <string_view>

#include "native/base/clock.h"
#include "native/inference/answer.h"
#include "native/inference/batch_proof.h"
#include "native/inference/predict.h"
#include "native/inference/predict_codec.h"
#include "native/python/binding.h"
#include "native/servable/batch.h"
#include "native/tensor/run_context.h"
#include "native/tf/version_load.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using servable::ServableEntry;
using tf::VersionLoad;

base::Status PrepareBytes(const servable::Servable& servable, std::string_view bytes) {
  inference::PredictRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodePredictRequest({&bytes, 1}, &request));
  return inference::Prepare(servable, request);
}

// A version that is being loaded: tf::VersionLoad without the GIL, and with exceptions.
class PySavedModelLoad {
 public:
  PySavedModelLoad(std::string name, int64_t version, const nb::str& directory,
                   std::vector<std::string> tags)
      : load_(std::make_unique<VersionLoad>(servable::ServableId{std::move(name), version},
                                            PathBytes(directory), std::move(tags))) {}
  ~PySavedModelLoad() {
    const nb::gil_scoped_release release;
    load_.reset();
  }
  PySavedModelLoad(const PySavedModelLoad&) = delete;
  PySavedModelLoad& operator=(const PySavedModelLoad&) = delete;

  template <base::Status (VersionLoad::*kStep)()>
  void Run() {
    ThrowIfError(WithoutGil([this] { return ((*load_).*kStep)(); }));
  }

  // Returns the result of `kGet`, a method that returns a StatusOr.
  template <auto kGet>
  auto Get() {
    return ValueOrThrow(WithoutGil([this] { return ((*load_).*kGet)(); }));
  }

  tf::MemoryPlan PlanMemory(size_t headroom_bytes) {
    return ValueOrThrow(WithoutGil([&] { return load_->PlanMemory(headroom_bytes); }));
  }

  size_t TakeArena(const PySlabPool& pool, size_t slab_bytes) {
    return ValueOrThrow(
        WithoutGil([&] { return load_->TakeArena(pool.pool(), slab_bytes, &TheRequestMemory()); }));
  }

  // Prepares a request's run on a version that is not served yet.
  void Prepare(nb::bytes request) {
    ThrowIfError(WithoutGil([&] {
      return load_->Prepare([&](const servable::Servable& servable) {
        return PrepareBytes(servable, {request.c_str(), request.size()});
      });
    }));
  }

  std::unique_ptr<PyServable> Finish(std::shared_ptr<servable::RequestReservoir> reservoir,
                                     const PyRequestStatistics* statistics,
                                     std::optional<servable::BatchSettings> batching) {
    return std::make_unique<PyServable>(ValueOrThrow(load_->Finish(
        std::move(reservoir), statistics == nullptr ? nullptr : statistics->statistics().get(),
        base::MonotonicNs(), std::move(batching))));
  }

  memory::ArenaRemains Discard() {
    return WithoutGil([this] { return load_->Discard(); });
  }

  // Any thread may call these four. They are too short to be worth releasing the GIL.
  void Cancel() { load_->Cancel(); }
  int64_t RestoredBytes() const { return load_->restored_bytes(); }
  void SetRestoreBytesPerSecond(int64_t bytes_per_second) {
    load_->SetRestoreBytesPerSecond(bytes_per_second);
  }
  void SetRestoreTarget(double seconds) {
    load_->SetRestoreTarget(static_cast<int64_t>(seconds * 1e9));
  }

 private:
  std::unique_ptr<VersionLoad> load_;  // null only in the destructor
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

std::string Describe(const servable::ServableId& id) {
  return "model '" + id.name + "' version " + std::to_string(id.version);
}

void CheckIsAlive(const ServableEntry& entry) {
  if (!entry.is_destroyed()) return;
  ThrowIfError(base::FailedPrecondition(Describe(entry.id()) + " is destroyed; load it again"));
}

// Pins the version while its successor's gates call it: another thread may unload it, and then
// waits. Throws FAILED_PRECONDITION if the version is retired or destroyed.
servable::ServableHandle PinAlive(const PyServable& self) {
  const ServableEntry& entry = *self.entry();
  CheckIsAlive(entry);
  servable::ServableHandle handle = servable::ServableHandle::UnlessRetired(self.entry().get());
  if (!handle) {
    ThrowIfError(
        base::FailedPrecondition(Describe(entry.id()) + " is being unloaded; load it again"));
  }
  return handle;
}

inference::ProofLimits LimitsOf(const PyServable& self) {
  return {replay_ns_max.load(std::memory_order_relaxed), &self.are_runs_cancelled()};
}

nb::bytes AnswerWithin(const PyServable& self, const std::string& method, nb::bytes request,
                       bool may_write) {
  const servable::ServableHandle handle = PinAlive(self);
  const std::string_view bytes(request.c_str(), request.size());
  const std::string reply = ValueOrThrow(WithoutGil([&] {
    inference::ProofLimits limits = LimitsOf(self);
    limits.may_write = may_write;
    if (self.proof() != nullptr) return self.proof()->Answer(method, {&bytes, 1}, limits);
    return inference::AnswerRequest(*handle, method, {&bytes, 1}, limits.run_ns_max,
                                    limits.is_cancelled, may_write);
  }));
  return nb::bytes(reply.data(), reply.size());
}

nb::bytes Answer(const PyServable& self, const std::string& method, nb::bytes request) {
  return AnswerWithin(self, method, std::move(request), /*may_write=*/true);
}

nb::bytes Replay(const PyServable& self, const std::string& method, nb::bytes request) {
  return AnswerWithin(self, method, std::move(request), /*may_write=*/false);
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

void KeepState(const PyServable& self, size_t bytes_max) {
  const servable::ServableHandle handle = PinAlive(self);
  self.loaded().model().KeepState(bytes_max);
}

size_t PutBackState(const PyServable& self) {
  const servable::ServableHandle handle = PinAlive(self);
  return WithoutGil([&] { return self.loaded().model().PutBackState(); });
}

int64_t ProveBatching(PyServable& self, const PyServable* predecessor) {
  const servable::ServableHandle handle = PinAlive(self);
  const std::unique_ptr<inference::BatchProof> proof = self.TakeProof();
  if (proof == nullptr) return 0;
  return ValueOrThrow(WithoutGil([&]() -> base::StatusOr<int64_t> {
    const inference::ProofLimits limits = LimitsOf(self);
    MILLPOND_RETURN_IF_ERROR(proof->Conclude(self.loaded().model().MayChangeAnswers(), limits));
    if (predecessor == nullptr) return int64_t{0};
    return proof->WarmUp(predecessor->ListHotBatches(), limits);
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
  return WithoutGil([&] { return self.loaded().overflow_block_count(); });
}

bool SealArena(const PyServable& self) {
  CheckIsAlive(*self.entry());
  return ValueOrThrow(WithoutGil([&] { return self.loaded().Seal(); }));
}

memory::ArenaRemains Destroy(PyServable& self) {
  return ValueOrThrow(WithoutGil([&]() -> base::StatusOr<memory::ArenaRemains> {
    self.EndBatching();
    MILLPOND_RETURN_IF_ERROR(self.entry()->Destroy());
    return self.loaded().Free();
  }));
}

void RegisterServableStatistics(nb::module_& module) {
  using Statistics = PyServableStatistics;
  const auto at = [](const Statistics& self, double quantile) {
    return self.requests.latency.ValueAtQuantile(quantile);
  };
  const auto quantile = [at](double q) {
    return [at, q](const Statistics& self) { return at(self, q); };
  };
  nb::class_<Statistics>(module, "ServableStatistics", nb::is_final())
      .def_prop_ro("request_count", &Statistics::RequestCount)
      .def_prop_ro("failed_count", &Statistics::FailedCount)
      .def_prop_ro("latency_ns_p50", quantile(0.5))
      .def_prop_ro("latency_ns_p99", quantile(0.99))
      .def_prop_ro("latency_ns_p999", quantile(0.999))
      .def("latency_ns_at", at, nb::arg("quantile"))
      .def("since", &Statistics::Since, nb::arg("earlier"));
}

const char* TextOf(tensor::RowVerdict::Kind kind) {
  switch (kind) {
    case tensor::RowVerdict::Kind::kIndependent:
      return "independent";
    case tensor::RowVerdict::Kind::kMixes:
      return "mixes";
    default:
      return "unknown";
  }
}

void RegisterBatching(nb::module_& module) {
  using servable::BatchFigures;
  using servable::BatchSettings;
  using servable::SignatureBatching;
  nb::class_<servable::BatchSlots>(module, "BatchSlots", nb::is_final())
      .def(nb::init<int64_t>(), nb::arg("count"));
  nb::class_<BatchSettings>(module, "BatchSettings", nb::is_final())
      .def(
          "__init__",
          [](BatchSettings* self, int64_t rows_max, double run_seconds_max, bool splits,
             std::vector<int64_t> allowed_rows, bool pads_inputs, int64_t waiting_requests_max,
             std::shared_ptr<servable::BatchSlots> slots, double relative_tolerance,
             bool may_mix_rows) {
            // By name: fields of other settings stand between these.
            auto* const settings = new (self) BatchSettings;
            settings->rows_max = rows_max;
            settings->run_ns_max = SecondsToNs(run_seconds_max);
            settings->splits = splits;
            settings->allowed_rows = std::move(allowed_rows);
            settings->pads_inputs = pads_inputs;
            settings->waiting_requests_max = waiting_requests_max;
            settings->slots = std::move(slots);
            settings->relative_tolerance = relative_tolerance;
            settings->may_mix_rows = may_mix_rows;
          },
          nb::kw_only(), nb::arg("rows_max"), nb::arg("run_seconds_max"), nb::arg("splits"),
          nb::arg("allowed_rows"), nb::arg("pads_inputs"), nb::arg("waiting_requests_max"),
          nb::arg("slots").none(), nb::arg("relative_tolerance"), nb::arg("may_mix_rows"));
  nb::class_<BatchFigures>(module, "BatchFigures", nb::is_final())
      .def_ro("run_count", &BatchFigures::run_count)
      .def_ro("request_count", &BatchFigures::request_count)
      .def_ro("row_count", &BatchFigures::row_count)
      .def_ro("padding_row_count", &BatchFigures::padding_row_count)
      .def_ro("failed_batch_count", &BatchFigures::failed_batch_count)
      .def_ro("split_request_count", &BatchFigures::split_request_count)
      .def_ro("wait_ns", &BatchFigures::wait_ns)
      .def_ro("run_ns", &BatchFigures::run_ns)
      .def_ro("by_rows", &BatchFigures::by_rows)
      .def_ro("by_requests", &BatchFigures::by_requests)
      .def_ro("by_wait", &BatchFigures::by_wait)
      .def_ro("by_run", &BatchFigures::by_run);
  nb::class_<SignatureBatching>(module, "SignatureBatching", nb::is_final())
      .def_ro("signature", &SignatureBatching::signature)
      .def_ro("is_on", &SignatureBatching::is_on)
      .def_ro("refusal", &SignatureBatching::refusal)
      .def_prop_ro("rows", [](const SignatureBatching& self) { return TextOf(self.rows.kind); })
      .def_prop_ro("rows_reason", [](const SignatureBatching& self) { return self.rows.reason; })
      .def_ro("joined_rows_max", &SignatureBatching::joined_rows_max)
      .def_prop_ro("joined_requests_max",
                   [](const SignatureBatching&) { return servable::Batch::kTakenMax; })
      .def_ro("figures", &SignatureBatching::figures);
}

void RegisterLoadedServable(nb::module_& module) {
  module.def("set_replay_seconds", &SetReplaySeconds, nb::arg("seconds"));
  nb::class_<PyServable>(module, "Servable", nb::is_final())
      .def_prop_ro("handle_count",
                   [](const PyServable& self) { return self.entry()->handle_count(); })
      .def("answer", &Answer, nb::arg("method"), nb::arg("request"))
      .def("replay", &Replay, nb::arg("method"), nb::arg("request"))
      .def("predict", &Predict, nb::arg("request"))
      .def("prepare", &Prepare, nb::arg("request"))
      .def("keep_state", &KeepState, nb::arg("bytes_max"))
      .def_prop_ro("kept_state_bytes",
                   [](const PyServable& self) {
                     const servable::ServableHandle handle = PinAlive(self);
                     return self.loaded().model().KeptStateBytes();
                   })
      .def("put_back_state", &PutBackState)
      .def("signature_def_map", &SignatureDefMap)
      .def("prove_batching", &ProveBatching, nb::arg("predecessor").none() = nb::none())
      .def("cancel_runs", &PyServable::CancelRuns)
      .def("batching",
           [](const PyServable& self) { return WithoutGil([&] { return self.Batching(); }); })
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
                     return self.loaded().model().MayChangeAnswers();
                   })
      .def("arena_statistics", &ArenaStatisticsOf)
      .def_prop_ro("arena_overflow_block_count", &ArenaOverflowBlockCount)
      .def("seal_arena", &SealArena)
      .def("destroy", &Destroy);
}

}  // namespace

void RegisterServable(nb::module_& module) {
  RegisterBatching(module);
  RegisterServableStatistics(module);
  RegisterLoadedServable(module);
  nb::class_<tf::MissingKernel>(module, "MissingKernel", nb::is_final())
      .def_ro("signature", &tf::MissingKernel::signature)
      .def_ro("op", &tf::MissingKernel::op)
      .def_ro("node", &tf::MissingKernel::node)
      .def_ro("function", &tf::MissingKernel::function)
      .def_ro("is_certain", &tf::MissingKernel::is_certain)
      .def_ro("is_built", &tf::MissingKernel::is_built);
  using Load = PySavedModelLoad;
  nb::class_<Load>(module, "SavedModelLoad", nb::is_final())
      .def(nb::init<std::string, int64_t, const nb::str&, std::vector<std::string>>(),
           nb::arg("name"), nb::arg("version"), nb::arg("directory"), nb::arg("tags"))
      .def("read_graph", &Load::Run<&VersionLoad::ReadGraph>)
      .def("check_input_shapes", &Load::Run<&VersionLoad::CheckInputShapes>)
      .def("missing_ops", &Load::Get<&VersionLoad::MissingOps>)
      .def("missing_kernels", &Load::Get<&VersionLoad::MissingKernels>)
      .def_prop_ro("signature_names", &Load::Get<&VersionLoad::SignatureNames>)
      .def("create_session", &Load::Run<&VersionLoad::CreateSession>)
      .def("restore", &Load::Run<&VersionLoad::Restore>)
      .def("run_init", &Load::Run<&VersionLoad::RunInit>)
      .def("variables_without_value", &Load::Get<&VersionLoad::VariablesWithoutValue>)
      .def("tables_without_value", &Load::Get<&VersionLoad::TablesWithoutValue>)
      .def_prop_ro("may_write_variables", &Load::Get<&VersionLoad::MayWriteVariables>)
      .def("analyze_rows", &Load::Run<&VersionLoad::AnalyzeRows>)
      .def("make_callables", &Load::Run<&VersionLoad::MakeCallables>)
      .def("plan_memory", &Load::PlanMemory, nb::arg("headroom_bytes"))
      .def("take_arena", &Load::TakeArena, nb::arg("pool"), nb::arg("slab_bytes"))
      .def("prepare", &Load::Prepare, nb::arg("request"))
      .def("cancel", &Load::Cancel)
      .def_prop_ro("restored_bytes", &Load::RestoredBytes)
      .def("set_restore_bytes_per_second", &Load::SetRestoreBytesPerSecond,
           nb::arg("bytes_per_second"))
      .def("set_restore_target", &Load::SetRestoreTarget, nb::arg("seconds"))
      .def("discard", &Load::Discard)
      .def("finish", &Load::Finish, nb::arg("reservoir").none() = nb::none(),
           nb::arg("request_statistics").none() = nb::none(),
           nb::arg("batching").none() = nb::none());
}

}  // namespace millpond::python
