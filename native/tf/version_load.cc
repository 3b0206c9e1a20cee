#include "native/tf/version_load.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "native/memory/arena.h"
#include "native/tf/loaded_tables.h"
#include "native/tf/saved_model_servable.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;
using servable::ServableEntry;

// Makes `statistics` report the version's requests. `statistics` does not own the version. It holds
// the version only while it reads the handle count, and that moment ends before the control plane
// releases a version that it has destroyed.
void Report(const std::shared_ptr<ServableEntry>& entry, int64_t now_ns,
            metrics::RequestStatistics* statistics) {
  const auto in_flight_count = [held = std::weak_ptr<ServableEntry>(entry)]() -> int64_t {
    const std::shared_ptr<ServableEntry> here = held.lock();
    return here == nullptr ? 0 : here->handle_count();
  };
  statistics->AddVersion(entry->id().name, entry->id().version, entry->recorder(), in_flight_count,
                         now_ns);
}

// Returns true if the model has had requests lately, or if its requests are not recorded.
bool IsInUse(const std::shared_ptr<servable::RequestReservoir>& reservoir) {
  return reservoir == nullptr || reservoir->Statistics().request_count > 0;
}

}  // namespace

VersionLoad::VersionLoad(servable::ServableId id, std::string directory,
                         std::vector<std::string> tags)
    : id_(std::move(id)),
      crash_row_(id_.name, id_.version),
      loaded_(std::make_shared<LoadedVersion>(std::move(directory), std::move(tags))) {}

Status VersionLoad::RunStep(Status (SavedModel::*step)()) {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  const auto loading = base::CrashScope::Loading(crash_row_);
  return (model().*step)();
}

Status VersionLoad::DraftPrograms(AcceleratorUse use) {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  use.model = id_.name;
  use.version = id_.version;
  use.pin_parameters = [this](int64_t bytes) {
    loaded_->PinParameters(static_cast<size_t>(bytes));
  };
  const auto loading = base::CrashScope::Loading(crash_row_);
  return model().DraftPrograms(std::move(use));
}

StatusOr<ProgramList> VersionLoad::ListPrograms() const {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  return model().ListPrograms();
}

StatusOr<std::vector<AcceleratedSignature>> VersionLoad::UseAccelerator() {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  const auto loading = base::CrashScope::Loading(crash_row_);
  MILLPOND_RETURN_IF_ERROR(model().UseAccelerator());
  return model().signatures_on_accelerator();
}

StatusOr<int64_t> VersionLoad::CompiledProgramCount() const {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  return model().compiled_program_count();
}

StatusOr<std::vector<AcceleratedSignature>> VersionLoad::CompileAhead(
    const DraftRules& rules, const pjrt::AheadCompiler* compiler,
    const pjrt::ExecutableCache& cache) {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  const auto loading = base::CrashScope::Loading(crash_row_);
  return model().CompileAhead(rules, compiler, cache);
}

Status VersionLoad::CheckIsUnfinished() const {
  if (loaded_ != nullptr) return {};
  return base::FailedPrecondition("the load of " + id_.name + " version " +
                                  std::to_string(id_.version) + " is finished");
}

Status VersionLoad::CheckIsReady(const char* step) const {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  if (model().IsReady()) return {};
  return base::FailedPrecondition(std::string(step) + ": the load has steps that are not done");
}

Status VersionLoad::UseTables(std::shared_ptr<memory::TableStore> tables) {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  MILLPOND_RETURN_IF_ERROR(model().PlanTables());
  tables_ = std::move(tables);
  const auto& planned = model().tables();
  table_permit_ = tables_->BeginLoad(
      id_.name, planned == nullptr ? std::vector<memory::TableWish>() : planned->Wishes(id_.name));
  return {};
}

StatusOr<MemoryPlan> VersionLoad::PlanMemory(size_t headroom_bytes) {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  const StatusOr<std::vector<size_t>> bytes = model().ParameterBytes();
  if (!bytes.ok()) return bytes.status();
  planned_bytes_ = memory::PlanSlabBytes(bytes.value());
  MemoryPlan plan;
  plan.parameter_bytes = std::accumulate(bytes.value().begin(), bytes.value().end(), size_t{0});
  plan.slab_bytes = planned_bytes_ + std::min(headroom_bytes, SIZE_MAX - planned_bytes_);
  if (const auto& tables = model().tables()) {
    plan.parameter_bytes += tables->sizes().bytes;
    plan.shared_bytes = tables->ShareableBytes(*tables_, id_.name);
    // The parameters have the new rows.
    plan.log_bytes = tables->LogBytesMax(planned_bytes_);
  }
  return plan;
}

StatusOr<size_t> VersionLoad::TakeArena(const std::shared_ptr<memory::SlabPool>& pool,
                                        size_t slab_bytes, memory::MemoryResource* overflow) {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  auto arena = memory::VersionArena::Take(pool, id_.name, slab_bytes, planned_bytes_, overflow);
  if (!arena.ok()) return arena.status();
  const size_t resident_bytes = arena.value()->slab_resident_bytes();
  MILLPOND_RETURN_IF_ERROR(loaded_->SetArena(std::move(arena.value())));
  if (tables_ == nullptr) return resident_bytes;
  const StatusOr<size_t> table_bytes = loaded_->ClaimTables(tables_, table_permit_, id_.name);
  if (!table_bytes.ok()) return table_bytes.status();
  return resident_bytes + table_bytes.value();
}

Status VersionLoad::MakeCallable(
    const std::function<Status(const servable::Servable&)>& make) const {
  MILLPOND_RETURN_IF_ERROR(CheckIsReady("make_callable"));
  const auto loading = base::CrashScope::Loading(crash_row_);
  return make(SavedModelServable(id_, loaded_));
}

StatusOr<FinishedLoad> VersionLoad::Finish(std::shared_ptr<servable::RequestReservoir> reservoir,
                                           metrics::RequestStatistics* statistics, int64_t now_ns,
                                           std::optional<servable::BatchSettings> batching,
                                           std::shared_ptr<servable::RequestLog> request_log) {
  MILLPOND_RETURN_IF_ERROR(CheckIsReady("finish"));
  model().EndLoading();
  loaded_->CommitTables(id_.name);
  table_permit_ = nullptr;
  std::unique_ptr<servable::Servable> servable = std::make_unique<SavedModelServable>(id_, loaded_);
  const servable::BatchingServable* batched = nullptr;
  if (batching && model().CompilesEachShape()) {
    batching = servable::ForCompiledModel(std::move(*batching));
  }
  if (batching) {
    auto wrapped = std::make_unique<servable::BatchingServable>(std::move(servable), *batching);
    for (const auto& [name, verdict] : model().row_verdicts()) {
      const auto signature = wrapped->signatures().find(name);
      if (signature != wrapped->signatures().end())
        wrapped->NoteVerdict(signature->second, verdict);
    }
    batched = wrapped.get();
    servable = std::move(wrapped);
  }
  auto entry = std::make_shared<ServableEntry>(std::move(servable), std::move(reservoir),
                                               std::move(request_log));
  if (IsInUse(entry->reservoir())) {
    entry->recorder()->Of(metrics::Method::kPredict).Allocate(batching.has_value());
  }
  if (statistics != nullptr) Report(entry, now_ns, statistics);
  return FinishedLoad{std::move(entry), std::exchange(loaded_, nullptr), batched};
}

memory::ArenaRemains VersionLoad::Discard() {
  const std::shared_ptr<LoadedVersion> loaded = std::exchange(loaded_, nullptr);
  const memory::ArenaRemains remains = loaded == nullptr ? memory::ArenaRemains() : loaded->Free();
  // After the claims, so that the next try finds all of its tables.
  table_permit_ = nullptr;
  return remains;
}

StatusOr<std::vector<std::string>> VersionLoad::MissingOps() const {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  return model().missing_ops();
}

StatusOr<std::vector<MissingKernel>> VersionLoad::MissingKernels() const {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  return model().MissingKernels();
}

StatusOr<std::vector<std::string>> VersionLoad::SignatureNames() const {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  std::vector<std::string> names;
  for (const auto& [name, signature] : model().signatures()) names.push_back(name);
  return names;
}

StatusOr<std::vector<std::string>> VersionLoad::TablesWithoutValue() const {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  return model().TablesWithoutValue();
}

StatusOr<std::vector<std::string>> VersionLoad::VariablesWithoutValue() const {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  return model().VariablesWithoutValue();
}

StatusOr<std::vector<TableReport>> VersionLoad::Tables() const {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  if (model().tables() == nullptr) return std::vector<TableReport>();
  return model().tables()->Reports();
}

StatusOr<bool> VersionLoad::MayWriteVariables() const {
  MILLPOND_RETURN_IF_ERROR(CheckIsUnfinished());
  return model().MayWriteVariables();
}

}  // namespace millpond::tf
