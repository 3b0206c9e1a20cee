#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/base/crash_page.h"
#include "native/base/status.h"
#include "native/memory/memory_resource.h"
#include "native/memory/slab_pool.h"
#include "native/memory/version_arena.h"
#include "native/metrics/request_statistics.h"
#include "native/servable/batching_servable.h"
#include "native/servable/request_log.h"
#include "native/servable/request_reservoir.h"
#include "native/servable/servable.h"
#include "native/servable/servable_entry.h"
#include "native/tf/load_control.h"
#include "native/tf/loaded_version.h"
#include "native/tf/saved_model.h"

namespace millpond::tf {

// The memory that a version will take, in bytes.
struct MemoryPlan {
  size_t parameter_bytes = 0;  // of its variables and constants
  size_t slab_bytes = 0;       // of the slab for those that are no tables
  size_t shared_bytes = 0;     // of the parameters: tables that other versions have in memory
  size_t log_bytes = 0;        // at most, beside the parameters: table rows that are replaced
};

// The result of a load. `entry` can be published in a serving map. Free `version` once the entry is
// destroyed.
struct FinishedLoad {
  std::shared_ptr<servable::ServableEntry> entry;
  std::shared_ptr<LoadedVersion> version;
  const servable::BatchingServable* batching = nullptr;  // of `entry`; null without batching
};

// The load of one version, from its directory to an entry that can be published.
//
// Each step is called once, in the order in which they stand below. Steps in brackets may be left
// out. A step that is out of order returns FAILED_PRECONDITION. A step that fails leaves nothing to
// do but Discard. Finish and Discard end the load; after them every step returns
// FAILED_PRECONDITION.
//
//   ReadGraph  [CheckInputShapes]  [CompileAhead]  [[UseTables]  PlanMemory  TakeArena]
//   CreateSession  Restore
//   RunInit  [AnalyzeRows  [DraftPrograms  UseAccelerator]]  MakeCallables  [MakeCallable ...]
//   Finish
//
// Thread: one thread at a time takes the steps, and no request thread, because they take long. Any
// thread may call Cancel, SetRestoreBytesPerSecond and restored_bytes, also after the end. The
// destructor frees what Finish has not handed over, on the calling thread.
class VersionLoad {
 public:
  VersionLoad(servable::ServableId id, std::string directory, std::vector<std::string> tags);

  base::Status ReadGraph() { return RunStep(&SavedModel::ReadGraph); }
  base::Status CheckInputShapes() { return RunStep(&SavedModel::CheckInputShapes); }
  // Makes the large variables that other versions may have too lie in `tables`, and not in the
  // slab.
  base::Status UseTables(std::shared_ptr<memory::TableStore> tables);
  // Plans a slab for the parameters, and adds `headroom_bytes` for memory that the plan does not
  // foresee.
  base::StatusOr<MemoryPlan> PlanMemory(size_t headroom_bytes);
  // Takes a slab of the pool for the parameters, and the tables, and returns the bytes of both that
  // are resident. If the pool has enough spare memory, these are the bytes that were planned.
  // Blocks that do not fit the slab come from `overflow`, which outlives the version.
  base::StatusOr<size_t> TakeArena(const std::shared_ptr<memory::SlabPool>& pool, size_t slab_bytes,
                                   memory::MemoryResource* overflow);
  // Compiles the version's programs ahead (SavedModel::CompileAhead), before CreateSession.
  base::StatusOr<std::vector<AcceleratedSignature>> CompileAhead(
      const DraftRules& rules, const pjrt::AheadCompiler* compiler,
      const pjrt::ExecutableCache& cache);
  base::Status CreateSession() { return RunStep(&SavedModel::CreateSession); }
  base::Status Restore() { return RunStep(&SavedModel::Restore); }
  base::Status RunInit() { return RunStep(&SavedModel::RunInit); }
  base::Status AnalyzeRows() { return RunStep(&SavedModel::AnalyzeRows); }
  // Drafts and lists the programs of `use`, whose model and version are these (SavedModel).
  base::Status DraftPrograms(AcceleratorUse use);
  base::StatusOr<ProgramList> ListPrograms() const;
  // Returns what became of each signature (SavedModel::UseAccelerator).
  base::StatusOr<std::vector<AcceleratedSignature>> UseAccelerator();
  // The programs that UseAccelerator has compiled itself.
  base::StatusOr<int64_t> CompiledProgramCount() const;
  base::Status MakeCallables() { return RunStep(&SavedModel::MakeCallables); }
  // Calls `make`, which makes further callables, with the version, which is not served yet, and
  // returns its result.
  base::Status MakeCallable(
      const std::function<base::Status(const servable::Servable&)>& make) const;
  // Ends the load. `reservoir` takes samples of the version's requests, `request_log` takes those
  // that are logged, and `statistics` reports the requests from `now_ns` on; each may be null. With
  // `batching` the version's requests may share runs; no signature is batched yet. Batches of a
  // model that XLA compiles for each shape have powers of two as their rows, unless `batching`
  // names other rows.
  base::StatusOr<FinishedLoad> Finish(std::shared_ptr<servable::RequestReservoir> reservoir,
                                      metrics::RequestStatistics* statistics, int64_t now_ns,
                                      std::optional<servable::BatchSettings> batching = {},
                                      std::shared_ptr<servable::RequestLog> request_log = nullptr);

  // Ends the load and frees what it holds. Returns what is left of the arena. Does nothing after
  // the end.
  memory::ArenaRemains Discard();

  // Properties of the model, from ReadGraph until the end (SavedModel).
  base::StatusOr<std::vector<std::string>> MissingOps() const;
  base::StatusOr<std::vector<MissingKernel>> MissingKernels() const;
  base::StatusOr<std::vector<std::string>> SignatureNames() const;
  base::StatusOr<std::vector<std::string>> VariablesWithoutValue() const;
  base::StatusOr<std::vector<std::string>> TablesWithoutValue() const;
  base::StatusOr<bool> MayWriteVariables() const;
  // Reports the use of each table; none without UseTables. After RunInit.
  base::StatusOr<std::vector<TableReport>> Tables() const;

  // Makes a running Restore or RunInit end with CANCELLED, and each later one too.
  void Cancel() { control_->is_cancelled.store(true); }
  // Limits the speed of Restore from its next piece of a tensor on; 0 removes the limit.
  void SetRestoreBytesPerSecond(int64_t bytes_per_second) {
    control_->restore_bytes_per_second_max.store(bytes_per_second);
  }
  // Sets the longest that Restore may take while requests come (LoadControl); 0: no limit.
  void SetRestoreTarget(double seconds) { control_->SetRestoreTarget(seconds); }
  int64_t restored_bytes() const { return control_->restored_bytes.load(); }
  int64_t kept_bytes() const { return control_->kept_bytes.load(); }
  int64_t copied_bytes() const { return control_->copied_bytes.load(); }

 private:
  base::Status RunStep(base::Status (SavedModel::*step)());
  base::Status CheckIsUnfinished() const;
  base::Status CheckIsReady(const char* step) const;
  SavedModel& model() const { return loaded_->model(); }

  const servable::ServableId id_;
  const base::CrashRow crash_row_;
  std::shared_ptr<memory::TableStore> tables_;   // null without UseTables
  memory::TableStore::LoadPermit table_permit_;  // the same; outlives the claims of a failed load
  std::shared_ptr<LoadedVersion> loaded_;        // null after the end
  size_t planned_bytes_ = 0;                     // of the slab, without headroom
  // Outlives `loaded_`, because any thread may use it at any time.
  const std::shared_ptr<LoadControl> control_ = loaded_->model().control();
};

}  // namespace millpond::tf
