#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <utility>

#include "native/base/clock.h"
#include "native/base/status.h"
#include "native/inference/controlled_version.h"
#include "native/memory/copy_ahead.h"
#include "native/memory/request_memory.h"
#include "native/memory/slab_keeper.h"
#include "native/memory/slab_pool.h"
#include "native/memory/table_store.h"
#include "native/metrics/request_statistics.h"
#include "native/tf/loaded_version.h"
#include "native/tf/version_load.h"

// Declarations that the files of this folder share. Each Register* adds one concept to the module.
// module.cc is the table of contents, and serving/data_plane/plane.py is the contract.
namespace millpond::python {

void RegisterStatus(nanobind::module_& module);
void RegisterRuntime(nanobind::module_& module);
void RegisterMemory(nanobind::module_& module);
void RegisterReservoir(nanobind::module_& module);
void RegisterRequestLog(nanobind::module_& module);
void RegisterStatistics(nanobind::module_& module);
void RegisterSpans(nanobind::module_& module);
void RegisterAccelerator(nanobind::module_& module);
void RegisterServable(nanobind::module_& module);
void RegisterServingMap(nanobind::module_& module);
void RegisterTransport(nanobind::module_& module);
void RegisterAdmission(nanobind::module_& module);
void RegisterByteBudget(nanobind::module_& module);
void RegisterServer(nanobind::module_& module);
void RegisterTrace(nanobind::module_& module);
void RegisterValues(nanobind::module_& module);

// Returns the bytes of a path for the operating system. Python holds bytes of a path that are not
// UTF-8 as surrogates, which are no text. Needs the GIL.
std::string PathBytes(const nanobind::str& path);

// Returns a text that may hold any bytes, such as those of a path: bytes that are no UTF-8 are
// shown as \xe9. Needs the GIL.
nanobind::str AnyText(const std::string& text);

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

using base::SecondsToNs;

// Returns TensorFlow's allocator for all memory except parameters. It lives as long as the process,
// because tensors may outlive the module.
memory::RequestMemory& TheRequestMemory();

// The slabs of all models and the thread that keeps them.
class PySlabPool {
 public:
  PySlabPool(memory::SlabPoolOptions options, std::function<void()> on_thread_start)
      : pool_(std::make_shared<memory::SlabPool>(options)),
        tables_(std::make_shared<memory::TableStore>(pool_, options.spare_slab_count)),
        copy_ahead_(std::make_unique<memory::CopyAhead>(tables_)),
        keeper_(std::make_unique<memory::SlabKeeper>(pool_.get(), std::move(on_thread_start),
                                                     [this] { return copy_ahead_->Step(); })) {}
  ~PySlabPool() {
    const nanobind::gil_scoped_release release;
    Stop();
  }
  PySlabPool(const PySlabPool&) = delete;
  PySlabPool& operator=(const PySlabPool&) = delete;

  // The pool, which versions share. They may outlive this object.
  const std::shared_ptr<memory::SlabPool>& pool() const { return pool_; }
  // The tables that versions hand on, on slabs of the pool. As shared as the pool.
  const std::shared_ptr<memory::TableStore>& tables() const { return tables_; }
  void Stop() {
    keeper_->Stop();
    copy_ahead_ = nullptr;
  }

 private:
  const std::shared_ptr<memory::SlabPool> pool_;
  const std::shared_ptr<memory::TableStore> tables_;
  std::unique_ptr<memory::CopyAhead> copy_ahead_;  // The keeper's thread uses it.
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
  PyServable(tf::FinishedLoad finished, int64_t run_ns_max)
      : loaded_(std::move(finished.version)),
        version_(std::make_unique<inference::ControlledVersion>(std::move(finished.entry),
                                                                finished.batching, run_ns_max)) {}
  // The last reference frees the version, without the GIL, because that may take long.
  ~PyServable() {
    const nanobind::gil_scoped_release release;
    version_.reset();
    loaded_.reset();
  }
  PyServable(const PyServable&) = delete;
  PyServable& operator=(const PyServable&) = delete;

  inference::ControlledVersion& version() const { return *version_; }
  tf::LoadedVersion& loaded() const { return *loaded_; }

 private:
  std::shared_ptr<tf::LoadedVersion> loaded_;              // null only in the destructor
  std::unique_ptr<inference::ControlledVersion> version_;  // null only in the destructor
};

}  // namespace millpond::python
