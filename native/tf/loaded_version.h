#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/memory/version_arena.h"
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

  // Makes the parameters read-only until Free. Returns false if there is no arena, or if requests
  // may write to the parameters.
  base::StatusOr<bool> Seal() const {
    if (arena_ == nullptr || !model_->CanBeSealed()) return false;
    MILLPOND_RETURN_IF_ERROR(arena_->Seal());
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
    model_.reset();
    if (arena_ == nullptr) return remains_;
    remains_ = arena_->Release();
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
  mutable std::mutex mutex_;  // held by Free and by readers of statistics; no request takes it
  std::unique_ptr<memory::VersionArena> arena_;
  std::unique_ptr<SavedModel> model_;
  memory::ArenaRemains remains_;
};

}  // namespace millpond::tf
