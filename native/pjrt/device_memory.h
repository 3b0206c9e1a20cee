#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "native/base/status.h"

namespace millpond::pjrt {

// A tensor in an accelerator's memory that copies of several versions of a model may have in
// common.
struct SharedPart {
  int64_t id = 0;
  int64_t bytes = 0;
};

// A copy of a version's parameters in an accelerator's memory, at one moment.
struct CopyState {
  std::string model;
  int64_t bytes = 0;      // that no other copy has
  int64_t run_bytes = 0;  // the memory of the version's largest run
  bool is_idle = false;   // no run has used the copy lately, so it may be dropped
  int64_t last_use_ns = 0;
  std::vector<SharedPart> parts = {};  // each is in memory once, whoever has it
};

// Adds the bytes of copies, and those of each part once.
class CopyBytes {
 public:
  void Add(int64_t bytes, const std::vector<SharedPart>& parts) {
    bytes_ += bytes;
    for (const SharedPart& part : parts) {
      if (part_ids_.insert(part.id).second) bytes_ += part.bytes;
    }
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
  std::set<int64_t> part_ids_;
};

// The bounds of an accelerator's memory. A model without a quota may have all of it.
struct MemoryBounds {
  int64_t limit_bytes = 0;
  std::map<std::string, int64_t, std::less<>> quotas;

  int64_t QuotaOf(const std::string& model) const {
    const auto quota = quotas.find(model);
    return quota == quotas.end() ? limit_bytes : std::min(quota->second, limit_bytes);
  }
};

// The memory of an accelerator by its use.
struct MemoryUse {
  int64_t limit_bytes = 0;
  int64_t copy_bytes = 0;  // charged for parameters
  int64_t idle_bytes = 0;  // of these, the ones of copies that may be dropped
};

// Decides which of `copies` are dropped so that the last one, the newcomer, fits. Returns their
// indices, or nothing if it cannot fit.
//
// Copies fit if each model keeps within its quota, and all keep within the limit, with room for the
// largest run. So a run that is alone always finds its memory.
//
// Promises:
// - Only idle copies are dropped, and none without need: with any one of them kept, it would not
//   fit.
// - The copy that was used the longest time ago goes first.
// - Returns nothing only if it would not fit without all idle copies.
std::optional<std::vector<size_t>> ChooseDropped(const MemoryBounds& bounds,
                                                 const std::vector<CopyState>& copies);

// The memory of one accelerator, charged to models: parameters as long as they are there, and the
// inputs, outputs and temporary memory of runs before a run starts.
//
// A run is charged all its memory at once and never waits for it, so two models cannot wait for
// each other. A copy of parameters may wait, only for runs that are under way.
//
// Thread: any. Owner: the Accelerator, which outlives all charges.
class DeviceMemory {
 public:
  // The limit of an accelerator whose plugin does not count its memory.
  static constexpr int64_t kUnlimited = INT64_MAX;
  // A version that has requests uses its copy more often than this. For a version that has fewer,
  // the CPU answers while the copy comes back.
  static constexpr int64_t kIdleNs = 1'000'000'000;
  // Runs end within this time, or the accelerator hangs.
  static constexpr int64_t kRunsEndNs = 10'000'000'000;

  // Has a copy, and may give it up.
  class Owner {
   public:
    virtual int64_t last_use_ns() const = 0;
    // True if a run uses the copy now.
    virtual bool IsInUse() const = 0;
    // Takes the copy out of its owner, for destruction, unless a run uses it. Null if one does.
    // Called under the lock of DeviceMemory, as IsInUse is.
    virtual std::shared_ptr<const void> TakeOut() = 0;

   protected:
    ~Owner() = default;
  };

  // A charge of parameters, which its destructor returns.
  class CopyCharge;
  // A charge of a run, which its destructor returns. False if there was no memory.
  class RunCharge;

  // A copy that no run has used for `idle_ns` may be dropped.
  explicit DeviceMemory(int64_t limit_bytes = kUnlimited, int64_t idle_ns = kIdleNs)
      : idle_ns_(idle_ns) {
    bounds_.limit_bytes = limit_bytes;
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void SetLimit(int64_t limit_bytes);
  // Bounds what `model` may have from now on; 0: all. What it has already stays.
  void SetQuota(const std::string& model, int64_t bytes);

  // Returns a part that no copy has yet.
  SharedPart MakePart(int64_t bytes);
  // Charges a copy of `bytes` and `parts` to `model`, whose largest run takes `run_bytes`. A part
  // that another copy has is in memory already, and stays there for this one. Drops idle copies if
  // it would not fit, and waits for runs under way. Returns RESOURCE_EXHAUSTED if it cannot fit.
  // `owner` must call Forget before its end.
  base::StatusOr<CopyCharge> ChargeCopy(const std::string& model, int64_t bytes, int64_t run_bytes,
                                        Owner* owner, int64_t now_ns,
                                        const std::vector<SharedPart>& parts = {});
  // Charges `bytes` of a program to `model`, a run of which takes `run_bytes`, for as long as the
  // charge lives. Drops nothing and waits for nothing. Returns RESOURCE_EXHAUSTED without room.
  base::StatusOr<CopyCharge> ChargeProgram(const std::string& model, int64_t bytes,
                                           int64_t run_bytes);
  // The owner's copy cannot be taken out any more.
  void Forget(const Owner* owner);
  RunCharge ChargeRun(const std::string& model, int64_t bytes);

  // The bytes that are charged to `model` now: of copies, and of runs.
  std::pair<int64_t, int64_t> ChargedBytes(const std::string& model) const;
  // The same of all models, without runs.
  MemoryUse Use(int64_t now_ns) const;

 private:
  struct Copy {
    std::string model;
    int64_t bytes = 0;
    int64_t run_bytes = 0;
    Owner* owner = nullptr;  // null: it is on its way out, or its owner is
    bool is_busy = false;    // during ChargeCopy: a run has been found to use it
    std::vector<SharedPart> parts = {};
  };
  using Copies = std::list<Copy>;

  std::vector<CopyState> States(int64_t now_ns) const;
  Copy& CopyAt(size_t index) {
    return *std::next(copies_.begin(), static_cast<std::ptrdiff_t>(index));
  }
  bool FindBusy(const std::vector<size_t>& dropped);
  bool TakeOut(const std::vector<size_t>& dropped, std::vector<std::shared_ptr<const void>>* taken);
  bool MakeRoom(const CopyState& wish, int64_t now_ns,
                std::vector<std::shared_ptr<const void>>* taken);
  bool HasRoomForRuns(const std::string& model, int64_t more_bytes) const;
  int64_t CopyBytesOf(const std::string& model) const;
  void CountCopies();
  void SetParts(Copies::iterator copy, const std::vector<SharedPart>& parts);
  void Return(Copies::iterator copy);
  void ReturnRun(const std::string& model, int64_t bytes);

  const int64_t idle_ns_;
  mutable std::mutex mutex_;
  std::condition_variable returned_;  // memory of a run or of a copy
  // All guarded by the mutex.
  MemoryBounds bounds_;
  Copies copies_;
  int64_t part_count_ = 0;                                  // that were made
  int64_t all_copy_bytes_ = 0;                              // of `copies_`, as the next
  std::map<std::string, int64_t, std::less<>> copy_bytes_;  // by model
  std::map<std::string, int64_t, std::less<>> run_bytes_;   // by model
  int64_t all_run_bytes_ = 0;
};

class DeviceMemory::CopyCharge {
 public:
  CopyCharge(DeviceMemory* memory, Copies::iterator copy) : memory_(memory), copy_(copy) {}
  ~CopyCharge() {
    if (memory_ != nullptr) memory_->Return(copy_);
  }
  CopyCharge(CopyCharge&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), copy_(other.copy_) {}
  CopyCharge& operator=(CopyCharge&&) = delete;

  // Makes `parts` the parts of the copy, which has no others from now on. Each was one of them.
  void SetParts(const std::vector<SharedPart>& parts) { memory_->SetParts(copy_, parts); }

 private:
  DeviceMemory* memory_;
  Copies::iterator copy_;
};

class DeviceMemory::RunCharge {
 public:
  RunCharge() = default;
  RunCharge(DeviceMemory* memory, std::string model, int64_t bytes)
      : memory_(memory), model_(std::move(model)), bytes_(bytes) {}
  ~RunCharge() {
    if (memory_ != nullptr) memory_->ReturnRun(model_, bytes_);
  }
  RunCharge(RunCharge&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        model_(std::move(other.model_)),
        bytes_(other.bytes_) {}
  RunCharge& operator=(RunCharge&&) = delete;

  explicit operator bool() const { return memory_ != nullptr; }

 private:
  DeviceMemory* memory_ = nullptr;
  std::string model_;
  int64_t bytes_ = 0;
};

}  // namespace millpond::pjrt
