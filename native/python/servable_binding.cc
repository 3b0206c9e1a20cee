#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string_view>
#include <utility>

#include "native/base/clock.h"
#include "native/inference/answer.h"
#include "native/pjrt/tuned_trial.h"
#include "native/python/binding.h"
#include "native/python/values.h"
#include "native/tensor/run_context.h"
#include "native/tf/version_load.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using tf::VersionLoad;

tf::TablePlace TablePlaceOf(const std::string& name) {
  if (name == "host") return tf::TablePlace::kHost;
  return name == "device" ? tf::TablePlace::kDevice : tf::TablePlace::kAuto;
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

  void UseTables(const PySlabPool& pool) {
    ThrowIfError(WithoutGil([&] { return load_->UseTables(pool.tables()); }));
  }

  // Says what becomes of each signature, and compiles if there is a compiler.
  std::vector<tf::AcceleratedSignature> CompileAhead(const pjrt::AheadCompiler* compiler,
                                                     std::vector<int64_t> rows,
                                                     std::string cache_directory,
                                                     const std::string& tables,
                                                     bool only_if_worth) {
    const tf::DraftRules rules{std::move(rows), only_if_worth, TablePlaceOf(tables)};
    const pjrt::ExecutableCache cache(std::move(cache_directory));
    return ValueOrThrow(WithoutGil([&] { return load_->CompileAhead(rules, compiler, cache); }));
  }

  void DraftPrograms(const pjrt::Accelerator::List& accelerators, std::vector<int64_t> rows,
                     std::string cache_directory, const std::string& tables,
                     int64_t memory_bytes_max, bool is_low, bool is_needed, bool tunes_later) {
    tf::AcceleratorUse use;
    use.accelerators.assign(accelerators.begin(), accelerators.end());
    use.rows = std::move(rows);
    use.cache_directory = std::move(cache_directory);
    use.only_if_worth = !is_needed;
    use.tables = TablePlaceOf(tables);
    use.memory_bytes_max = memory_bytes_max;
    use.is_low = is_low;
    use.is_needed = is_needed;
    use.tunes_later = tunes_later;
    ThrowIfError(WithoutGil([&] { return load_->DraftPrograms(std::move(use)); }));
  }

  // Returns the number of programs, and the names and the code of those that the cache has not.
  std::pair<int64_t, std::vector<std::pair<std::string, nb::bytes>>> ListPrograms() {
    const tf::ProgramList list = Get<&VersionLoad::ListPrograms>();
    std::vector<std::pair<std::string, nb::bytes>> missing;
    for (const tf::MissingProgram& program : list.missing) {
      missing.emplace_back(program.name, nb::bytes(program.hlo.data(), program.hlo.size()));
    }
    return {list.count, std::move(missing)};
  }

  size_t TakeArena(const PySlabPool& pool, size_t slab_bytes) {
    return ValueOrThrow(
        WithoutGil([&] { return load_->TakeArena(pool.pool(), slab_bytes, &TheRequestMemory()); }));
  }

  // Makes the callable of requests like this one on a version that is not served yet.
  void MakeCallable(nb::bytes request) {
    ThrowIfError(WithoutGil([&] {
      return load_->MakeCallable([&](const servable::Servable& servable) {
        const std::string_view bytes(request.c_str(), request.size());
        return inference::MakeCallable(servable, {&bytes, 1});
      });
    }));
  }

  std::unique_ptr<PyServable> Finish(std::shared_ptr<servable::RequestReservoir> reservoir,
                                     const PyRequestStatistics* statistics,
                                     std::optional<servable::BatchSettings> batching,
                                     double replay_seconds_max,
                                     std::shared_ptr<servable::RequestLog> request_log) {
    auto finished = ValueOrThrow(load_->Finish(
        std::move(reservoir), statistics == nullptr ? nullptr : statistics->statistics().get(),
        base::MonotonicNs(), std::move(batching), std::move(request_log)));
    return std::make_unique<PyServable>(std::move(finished), replay_seconds_max > 0
                                                                 ? SecondsToNs(replay_seconds_max)
                                                                 : tensor::RunContext::kNoDeadline);
  }

  memory::ArenaRemains Discard() {
    return WithoutGil([this] { return load_->Discard(); });
  }

  // Any thread may call these six. They are too short to be worth releasing the GIL.
  void Cancel() { load_->Cancel(); }
  int64_t RestoredBytes() const { return load_->restored_bytes(); }
  int64_t KeptBytes() const { return load_->kept_bytes(); }
  int64_t CopiedBytes() const { return load_->copied_bytes(); }
  void SetRestoreBytesPerSecond(int64_t bytes_per_second) {
    load_->SetRestoreBytesPerSecond(bytes_per_second);
  }
  void SetRestoreTarget(double seconds) { load_->SetRestoreTarget(seconds); }

 private:
  std::unique_ptr<VersionLoad> load_;  // null only in the destructor
};

nb::bytes AnswerWithin(const PyServable& self, const std::string& method, nb::bytes request,
                       bool may_write) {
  const std::string_view bytes(request.c_str(), request.size());
  const std::string reply =
      ValueOrThrow(WithoutGil([&] { return self.version().Answer(method, bytes, may_write); }));
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

void MakeCallable(const PyServable& self, nb::bytes request) {
  ThrowIfError(WithoutGil([&] {
    return self.version().MakeCallable({request.c_str(), request.size()});
  }));
}

void KeepState(const PyServable& self, size_t bytes_max) {
  const auto pinned = ValueOrThrow(self.version().Pin());
  self.loaded().model().KeepState(bytes_max);
}

size_t PutBackState(const PyServable& self) {
  const auto pinned = ValueOrThrow(self.version().Pin());
  return WithoutGil([&] { return self.loaded().model().PutBackState(); });
}

int64_t VerifyBatching(PyServable& self, const PyServable* predecessor) {
  const auto pinned = ValueOrThrow(self.version().Pin());
  return ValueOrThrow(WithoutGil([&] {
    return self.version().VerifyBatching(
        self.loaded().model().MayChangeAnswers(),
        predecessor == nullptr ? nullptr : &predecessor->version());
  }));
}

void MeasureSides(const PyServable& self, double seconds_max) {
  const auto pinned = ValueOrThrow(self.version().Pin());
  ThrowIfError(WithoutGil([&] {
    return self.loaded().model().MeasureSides(SecondsToNs(seconds_max),
                                              self.version().are_runs_cancelled());
  }));
}

void ChooseSide(const PyServable& self, const std::string& signature, int64_t rows,
                bool is_on_accelerator, int64_t probe_one_of) {
  const auto pinned = ValueOrThrow(self.version().Pin());
  ThrowIfError(self.loaded().model().ChooseSide(
      signature, rows, is_on_accelerator ? pjrt::Side::kAccelerator : pjrt::Side::kCpu,
      probe_one_of));
}

std::vector<nb::bytes> UntunedPrograms(const PyServable& self, const std::string& cache_directory) {
  const auto pinned = ValueOrThrow(self.version().Pin());
  const auto programs =
      WithoutGil([&] { return self.loaded().model().UntunedPrograms(cache_directory); });
  std::vector<nb::bytes> bytes;
  for (const std::string& program : programs) bytes.emplace_back(program.data(), program.size());
  return bytes;
}

std::tuple<std::vector<int64_t>, std::string, std::string> OfferTunedPrograms(
    const PyServable& self, const std::string& cache_directory) {
  const auto pinned = ValueOrThrow(self.version().Pin());
  const auto offered =
      WithoutGil([&] { return self.loaded().model().OfferTunedPrograms(cache_directory); });
  return {{offered.rows.begin(), offered.rows.end()}, offered.shortage, offered.damage};
}

nb::bytes TryTunedPrograms(const PyServable& self, int64_t rows, const std::string& method,
                           nb::bytes request) {
  const pjrt::TunedTrial trial(rows);
  return Replay(self, method, std::move(request));
}

int64_t UseTunedPrograms(const PyServable& self, int64_t rows) {
  const auto pinned = ValueOrThrow(self.version().Pin());
  return WithoutGil([&] { return self.loaded().model().UseTunedPrograms(rows); });
}

void WithdrawTunedPrograms(const PyServable& self) {
  const auto pinned = ValueOrThrow(self.version().Pin());
  WithoutGil([&] { self.loaded().model().WithdrawTunedPrograms(); });
}

nb::bytes SignatureDefMap(const PyServable& self) {
  const auto pinned = ValueOrThrow(self.version().Pin());
  const std::string& map = pinned->signature_def_map();
  return nb::bytes(map.data(), map.size());
}

std::optional<memory::ArenaStatistics> ArenaStatisticsOf(const PyServable& self) {
  return WithoutGil([&] { return self.loaded().ArenaStatistics(); });
}

int64_t ArenaOverflowBlockCount(const PyServable& self) {
  return WithoutGil([&] { return self.loaded().overflow_block_count(); });
}

bool SealArena(const PyServable& self) {
  ThrowIfError(self.version().CheckIsAlive());
  return ValueOrThrow(WithoutGil([&] { return self.loaded().Seal(); }));
}

memory::ArenaRemains Destroy(PyServable& self) {
  return ValueOrThrow(WithoutGil([&]() -> base::StatusOr<memory::ArenaRemains> {
    MILLPOND_RETURN_IF_ERROR(self.version().Destroy());
    return self.loaded().Free();
  }));
}

void RegisterServableStatistics(nb::module_& module) {
  using Statistics = metrics::RequestSnapshot;
  const auto at = [](const Statistics& self, double quantile) {
    return self.latency.ValueAtQuantile(quantile);
  };
  const auto quantile = [at](double q) {
    return [at, q](const Statistics& self) { return at(self, q); };
  };
  nb::class_<Statistics>(module, "ServableStatistics", nb::is_final())
      .def_prop_ro("request_count", &Statistics::request_count)
      .def_prop_ro("failed_count", &Statistics::failed_count)
      .def_prop_ro("latency_ns_p50", quantile(0.5))
      .def_prop_ro("latency_ns_p99", quantile(0.99))
      .def_prop_ro("latency_ns_p999", quantile(0.999))
      .def("latency_ns_at", at, nb::arg("quantile"))
      .def("since", &Statistics::Since, nb::arg("earlier"));
}

void RegisterLoadedServable(nb::module_& module) {
  nb::class_<PyServable>(module, "Servable", nb::is_final())
      .def_prop_ro("handle_count",
                   [](const PyServable& self) { return self.version().entry()->handle_count(); })
      .def("answer", &Answer, nb::arg("method"), nb::arg("request"))
      .def("replay", &Replay, nb::arg("method"), nb::arg("request"))
      .def("predict", &Predict, nb::arg("request"))
      .def("make_callable", &MakeCallable, nb::arg("request"))
      .def("keep_state", &KeepState, nb::arg("bytes_max"))
      .def_prop_ro("kept_state_bytes",
                   [](const PyServable& self) {
                     const auto pinned = ValueOrThrow(self.version().Pin());
                     return self.loaded().model().KeptStateBytes();
                   })
      .def("put_back_state", &PutBackState)
      .def("signature_def_map", &SignatureDefMap)
      .def(
          "set_metadata_json",
          [](PyServable& self, std::string json) {
            self.version().entry()->SetMetadataJson(std::move(json));
          },
          nb::arg("json"))
      .def("verify_batching", &VerifyBatching, nb::arg("predecessor").none() = nb::none())
      .def("cancel_runs", [](const PyServable& self) { self.version().CancelRuns(); })
      .def("batching",
           [](const PyServable& self) {
             return WithoutGil([&] { return self.version().Batching(); });
           })
      .def("statistics",
           [](const PyServable& self) { return self.version().entry()->requests().ModelRuns(); })
      .def(
          "quiesce",
          [](const PyServable& self, double timeout_seconds) {
            return ValueOrThrow(WithoutGil(
                [&] { return self.version().entry()->Quiesce(SecondsToNs(timeout_seconds)); }));
          },
          nb::arg("timeout_seconds"))
      .def_prop_ro("may_write_variables",
                   [](const PyServable& self) {
                     const auto pinned = ValueOrThrow(self.version().Pin());
                     return self.loaded().model().MayChangeAnswers();
                   })
      .def("arena_statistics", &ArenaStatisticsOf)
      .def_prop_ro("arena_overflow_block_count", &ArenaOverflowBlockCount)
      .def_prop_ro("accelerator_bytes",
                   [](const PyServable& self) {
                     const auto pinned = ValueOrThrow(self.version().Pin());
                     return self.loaded().model().accelerator_bytes();
                   })
      .def("accelerator_uploads",
           [](const PyServable& self) {
             const auto pinned = ValueOrThrow(self.version().Pin());
             return self.loaded().model().accelerator_uploads();
           })
      .def("accelerator_runs",
           [](const PyServable& self) {
             const auto pinned = ValueOrThrow(self.version().Pin());
             return self.loaded().model().accelerator_runs();
           })
      .def("accelerator_signatures",
           [](const PyServable& self) {
             const auto pinned = ValueOrThrow(self.version().Pin());
             return self.loaded().model().signatures_on_accelerator();
           })
      .def("measure_sides", &MeasureSides, nb::arg("seconds_max"))
      .def("choose_side", &ChooseSide, nb::arg("signature"), nb::arg("rows"),
           nb::arg("is_on_accelerator"), nb::arg("probe_one_of"))
      .def("untuned_programs", &UntunedPrograms, nb::arg("cache_directory"))
      .def("offer_tuned_programs", &OfferTunedPrograms, nb::arg("cache_directory"))
      .def("try_tuned_programs", &TryTunedPrograms, nb::arg("rows"), nb::arg("method"),
           nb::arg("request"))
      .def("use_tuned_programs", &UseTunedPrograms, nb::arg("rows"))
      .def("withdraw_tuned_programs", &WithdrawTunedPrograms)
      .def("seal_arena", &SealArena)
      .def("destroy", &Destroy);
}

}  // namespace

void RegisterServable(nb::module_& module) {
  nb::class_<servable::BatchSlots>(module, "BatchSlots", nb::is_final())
      .def(nb::init<int64_t>(), nb::arg("count"));
  RegisterServableStatistics(module);
  RegisterLoadedServable(module);
  using Load = PySavedModelLoad;
  nb::class_<Load>(module, "SavedModelLoad", nb::is_final())
      .def(nb::init<std::string, int64_t, const nb::str&, std::vector<std::string>>(),
           nb::arg("name"), nb::arg("version"), nb::arg("directory"), nb::arg("tags"))
      .def("read_graph", &Load::Run<&VersionLoad::ReadGraph>)
      .def("check_input_shapes", &Load::Run<&VersionLoad::CheckInputShapes>)
      .def("missing_ops", &Load::Get<&VersionLoad::MissingOps>)
      .def("missing_kernels", &Load::Get<&VersionLoad::MissingKernels>)
      .def_prop_ro("signature_names", &Load::Get<&VersionLoad::SignatureNames>)
      .def("compile_ahead", &Load::CompileAhead, nb::arg("compiler").none(), nb::arg("rows"),
           nb::arg("cache_directory"), nb::arg("tables"), nb::arg("only_if_worth"))
      .def("create_session", &Load::Run<&VersionLoad::CreateSession>)
      .def("restore", &Load::Run<&VersionLoad::Restore>)
      .def("run_init", &Load::Run<&VersionLoad::RunInit>)
      .def("variables_without_value", &Load::Get<&VersionLoad::VariablesWithoutValue>)
      .def("tables_without_value", &Load::Get<&VersionLoad::TablesWithoutValue>)
      .def_prop_ro("may_write_variables", &Load::Get<&VersionLoad::MayWriteVariables>)
      .def("analyze_rows", &Load::Run<&VersionLoad::AnalyzeRows>)
      .def("draft_programs", &Load::DraftPrograms, nb::arg("accelerators"), nb::arg("rows"),
           nb::arg("cache_directory"), nb::arg("tables"), nb::arg("memory_bytes_max"),
           nb::arg("is_low"), nb::arg("is_needed"), nb::arg("tunes_later"))
      .def("list_programs", &Load::ListPrograms)
      .def("use_accelerator", &Load::Get<&VersionLoad::UseAccelerator>)
      .def_prop_ro("compiled_program_count", &Load::Get<&VersionLoad::CompiledProgramCount>)
      .def("make_callables", &Load::Run<&VersionLoad::MakeCallables>)
      .def("use_tables", &Load::UseTables, nb::arg("pool"))
      .def("plan_memory", &Load::PlanMemory, nb::arg("headroom_bytes"))
      .def("take_arena", &Load::TakeArena, nb::arg("pool"), nb::arg("slab_bytes"))
      .def("make_callable", &Load::MakeCallable, nb::arg("request"))
      .def("cancel", &Load::Cancel)
      .def_prop_ro("restored_bytes", &Load::RestoredBytes)
      .def_prop_ro("kept_bytes", &Load::KeptBytes)
      .def_prop_ro("copied_bytes", &Load::CopiedBytes)
      .def("table_reports", &Load::Get<&VersionLoad::Tables>)
      .def("set_restore_bytes_per_second", &Load::SetRestoreBytesPerSecond,
           nb::arg("bytes_per_second"))
      .def("set_restore_target", &Load::SetRestoreTarget, nb::arg("seconds"))
      .def("discard", &Load::Discard)
      .def("finish", &Load::Finish, nb::arg("reservoir").none() = nb::none(),
           nb::arg("request_statistics").none() = nb::none(),
           nb::arg("batching").none() = nb::none(), nb::arg("replay_seconds_max") = 0.0,
           nb::arg("request_log").none() = nb::none());
}

}  // namespace millpond::python
