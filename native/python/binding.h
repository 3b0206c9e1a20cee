#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/base/status.h"
#include "native/inference/batch_proof.h"
#include "native/memory/request_memory.h"
#include "native/memory/slab_keeper.h"
#include "native/memory/slab_pool.h"
#include "native/metrics/request_sampler.h"
#include "native/metrics/request_statistics.h"
#include "native/servable/batching_servable.h"
#include "native/servable/servable_entry.h"
#include "native/tf/loaded_version.h"
#include "native/tf/version_load.h"

// Declarations that the files of this folder share. Each Register* adds one concept to the module.
// module.cc is the table of contents, and serving/data_plane/plane.py is the contract.
namespace millpond::python {

void RegisterStatus(nanobind::module_& module);
void RegisterRuntime(nanobind::module_& module);
void RegisterMemory(nanobind::module_& module);
void RegisterReservoir(nanobind::module_& module);
void RegisterStatistics(nanobind::module_& module);
void RegisterSpans(nanobind::module_& module);
void RegisterServable(nanobind::module_& module);
void RegisterServingMap(nanobind::module_& module);
void RegisterTransport(nanobind::module_& module);
void RegisterAdmission(nanobind::module_& module);
void RegisterByteBudget(nanobind::module_& module);
void RegisterRest(nanobind::module_& module);
void RegisterServer(nanobind::module_& module);
void RegisterTrace(nanobind::module_& module);

// Returns the bytes of a path for the operating system. Python holds bytes of a path that are not
// UTF-8 as surrogates, which are no text. Needs the GIL.
std::string PathBytes(const nanobind::str& path);

// Raises StatusError(code, message) if `status` is not OK. Needs the GIL.
void ThrowIfError(const base::Status& status);

template <typename T>
T ValueOrThrow(base::StatusOr<T> value) {
  ThrowIfError(value.status());
  return std::move(value.value());
}

// Runs `function` without the GIL, so that other Python threads go on meanwhile.
template <typename Function>
auto WithoutGil(Function&& function) {
  const nanobind::gil_scoped_release release;
  return std::forward<Function>(function)();
}

// Returns `seconds` in ns, at least 0 and at most 30 years. So a sum with the time of any clock
// does not overflow.
inline int64_t SecondsToNs(double seconds) {
  constexpr double kMaxSeconds = 1e9;
  return static_cast<int64_t>(std::clamp(seconds, 0.0, kMaxSeconds) * 1e9);
}

// Returns TensorFlow's allocator for all memory except parameters. It lives as long as the process,
// because tensors may outlive the module.
memory::RequestMemory& TheRequestMemory();

// The slabs of all models and the thread that keeps them.
class PySlabPool {
 public:
  PySlabPool(memory::SlabPoolOptions options, std::function<void()> on_thread_start)
      : pool_(std::make_shared<memory::SlabPool>(options)),
        keeper_(std::make_unique<memory::SlabKeeper>(pool_.get(), std::move(on_thread_start))) {}
  ~PySlabPool() {
    const nanobind::gil_scoped_release release;
    Stop();
  }
  PySlabPool(const PySlabPool&) = delete;
  PySlabPool& operator=(const PySlabPool&) = delete;

  // The pool, which versions share. They may outlive this object.
  const std::shared_ptr<memory::SlabPool>& pool() const { return pool_; }
  void Stop() { keeper_->Stop(); }

 private:
  const std::shared_ptr<memory::SlabPool> pool_;
  const std::unique_ptr<memory::SlabKeeper> keeper_;
};

// The statistics of requests, and the thread that ends each of their seconds.
class PyRequestStatistics {
 public:
  PyRequestStatistics()
      : statistics_(std::make_shared<metrics::RequestStatistics>(base::MonotonicNs())),
        sampler_(statistics_) {}
  ~PyRequestStatistics() {
    const nanobind::gil_scoped_release release;
    Stop();
  }
  PyRequestStatistics(const PyRequestStatistics&) = delete;
  PyRequestStatistics& operator=(const PyRequestStatistics&) = delete;

  // The statistics, which loads and servers share. They may outlive this object.
  const std::shared_ptr<metrics::RequestStatistics>& statistics() const { return statistics_; }
  void Stop() { sampler_.Stop(); }

 private:
  const std::shared_ptr<metrics::RequestStatistics> statistics_;
  metrics::RequestSampler sampler_;
};

// Python's reference to a loaded version.
class PyServable {
 public:
  explicit PyServable(tf::FinishedLoad finished)
      : loaded_(std::move(finished.version)),
        entry_(std::move(finished.entry)),
        batching_(finished.batching) {
    if (batching_ != nullptr) proof_ = std::make_unique<inference::BatchProof>(*batching_);
  }
  // The last reference frees the version, without the GIL, because that may take long.
  ~PyServable() {
    const nanobind::gil_scoped_release release;
    entry_.reset();
    loaded_.reset();
  }
  PyServable(const PyServable&) = delete;
  PyServable& operator=(const PyServable&) = delete;

  const std::shared_ptr<servable::ServableEntry>& entry() const { return entry_; }
  tf::LoadedVersion& loaded() const { return *loaded_; }
  // Returns the state of each signature, also after the version is gone; empty without batching.
  std::vector<servable::SignatureBatching> Batching() const {
    const std::lock_guard<std::mutex> lock(batching_mutex_);
    return batching_ != nullptr ? batching_->Batching() : ended_batching_;
  }
  // Returns the batches that were run most often; none after the version is gone.
  std::vector<servable::HotBatch> ListHotBatches() const {
    const std::lock_guard<std::mutex> lock(batching_mutex_);
    if (batching_ == nullptr) return {};
    return batching_->ListHotBatches();
  }
  // Keeps the state as it is now. Call it before the entry is destroyed.
  void EndBatching() {
    const std::lock_guard<std::mutex> lock(batching_mutex_);
    if (const auto* ended = std::exchange(batching_, nullptr)) ended_batching_ = ended->Batching();
  }
  // The proof before it is concluded; null without batching.
  inference::BatchProof* proof() const { return proof_.get(); }
  // Returns the proof, which ends with it. For the thread that loads the version.
  std::unique_ptr<inference::BatchProof> TakeProof() { return std::move(proof_); }
  // Ends each run of a warm-up and of the proof at its next kernel, also if it begins later. Any
  // thread.
  void CancelRuns() { are_runs_cancelled_.store(true); }
  const std::atomic<bool>& are_runs_cancelled() const { return are_runs_cancelled_; }

 private:
  std::shared_ptr<tf::LoadedVersion> loaded_;
  std::shared_ptr<servable::ServableEntry> entry_;
  mutable std::mutex batching_mutex_;
  // The entry's; null without batching, and after EndBatching. Guarded by batching_mutex_.
  const servable::BatchingServable* batching_;
  std::vector<servable::SignatureBatching> ended_batching_;  // guarded by batching_mutex_
  std::unique_ptr<inference::BatchProof> proof_;
  std::atomic<bool> are_runs_cancelled_{false};
};

}  // namespace millpond::python
