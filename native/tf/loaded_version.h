#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/memory/version_arena.h"
#include "native/tf/loaded_tables.h"
#include "native/tf/saved_model.h"

namespace millpond::tf {

// A SavedModel and the arena of its parameters, from the first step of a load to the end of an
// unload. Call Free on the thread that loads or unloads, because it takes milliseconds.
class LoadedVersion {
 public:
  LoadedVersion(std::string directory, std::vector<std::string> tags)
      : model_(std::make_unique<SavedModel>(std::move(directory), std::move(tags))) {}
  ~LoadedVersion() { Free(); }
  LoadedVersion(const LoadedVersion&) = delete;
  LoadedVersion& operator=(const LoadedVersion&) = delete;

  // The model; valid until Free.
  SavedModel& model() const { return *model_; }
  // The arena of the parameters; null if the parameters come from the request memory.
  memory::VersionArena* arena() const { return arena_.get(); }

  // Makes the model place its parameters in `arena`. Call it after ReadGraph and before
  // CreateSession.
  base::Status SetArena(std::unique_ptr<memory::VersionArena> arena) {
    MILLPOND_RETURN_IF_ERROR(model_->SetParameterMemory(arena->memory()));
    arena_ = std::move(arena);
    return {};
  }

  // Gets the tables that the model has planned from `store`. Returns the bytes of them that need no
  // fresh memory. Call it after SetArena.
  base::StatusOr<size_t> ClaimTables(std::shared_ptr<memory::TableStore> store,
                                     const memory::TableStore::LoadPermit& permit,
                                     const std::string& owner) {
    if (model_->tables() == nullptr) return 0;
    table_store_ = std::move(store);
    return model_->tables()->Claim(table_store_.get(), permit, owner);
  }
  // Lets other loads use the tables. For the end of a load that has succeeded.
  void CommitTables(const std::string& owner) {
    if (table_store_ == nullptr) return;
    model_->tables()->Commit();
    ExpectTables(owner, /*serving_count=*/1);
  }
  // Records what the next version of `owner` will need, as TableStore::Expect has it.
  void ExpectTables(const std::string& owner, int serving_count) const {
    if (table_store_ == nullptr) return;
    memory::VersionTables tables = model_->tables()->sizes();
    tables.serving_count = serving_count;
    table_store_->Expect(owner, tables);
  }

  // Returns the bytes of the arena by their state, or nullopt without an arena. Any thread may call
  // it, also during Free.
  std::optional<memory::ArenaStatistics> ArenaStatistics() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (arena_ == nullptr) return std::nullopt;
    return arena_->Statistics();
  }

  // Returns the number of the parameters' blocks that did not fit the slab; 0 without an arena. Any
  // thread may call it, also during Free.
  int64_t overflow_block_count() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return arena_ == nullptr ? 0 : arena_->overflow_block_count();
  }

  // Pins the parameters' memory for an accelerator that copies `bytes` of them, unless most of them
  // stay here (VersionArena::Pin). Before Seal, by the load.
  void PinParameters(size_t bytes) const {
    if (arena_ == nullptr) return;
    const size_t table_bytes = table_store_ == nullptr ? 0 : model_->tables()->sizes().bytes;
    if (bytes < (arena_->used_slab_bytes() + table_bytes) / 2) return;
    arena_->Pin();
    if (table_store_ != nullptr) model_->tables()->Pin();
  }

  // Makes the parameters read-only until Free. Returns false if there is no arena, or if requests
  // may write to the parameters.
  base::StatusOr<bool> Seal() const {
    if (arena_ == nullptr || !model_->CanBeSealed()) return false;
    MILLPOND_RETURN_IF_ERROR(arena_->Seal());
    if (table_store_ != nullptr) {
      MILLPOND_RETURN_IF_ERROR(model_->tables()->Seal(table_store_.get()));
    }
    return true;
  }

  // Frees the session, then the arena that its tensors lay in. Returns what is left of the arena. A
  // second call returns the same value.
  memory::ArenaRemains Free() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (model_ == nullptr) return remains_;
    // The destructors of string and variant tensors write to the tensors' own memory.
    if (arena_ != nullptr) static_cast<void>(arena_->Unseal());
    std::shared_ptr<void> allocator = model_->parameter_allocator();
    const std::shared_ptr<LoadedTables> tables = model_->tables();
    model_.reset();
    if (arena_ == nullptr) return remains_;
    remains_ = arena_->Release();
    if (tables != nullptr) AddHeldTables(tables.get());
    if (remains_.live_bytes > 0 || remains_.overflow_block_count > 0) {
      // A tensor that is still held elsewhere will be freed through the allocator and the arena, so
      // both are leaked on purpose.
      new std::shared_ptr<void>(std::move(allocator));
      static_cast<void>(arena_.release());
    }
    arena_.reset();
    return remains_;
  }

 private:
  // Adds the tables that a leaked tensor holds. Nobody writes to them any more.
  void AddHeldTables(LoadedTables* tables) {
    tables->EndClaims();
    for (const size_t bytes : tables->HeldBytes()) {
      remains_.live_bytes += static_cast<int64_t>(bytes);
      remains_.live_blocks.push_back({static_cast<int64_t>(bytes), 1});
    }
  }

  mutable std::mutex mutex_;  // held by Free and by readers of statistics; no request takes it
  std::unique_ptr<memory::VersionArena> arena_;
  std::shared_ptr<memory::TableStore> table_store_;  // null: the version has no tables
  std::unique_ptr<SavedModel> model_;
  memory::ArenaRemains remains_;
};

}  // namespace millpond::tf
