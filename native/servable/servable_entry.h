#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "native/base/sharded.h"
#include "native/base/status.h"
#include "native/metrics/request_recorder.h"
#include "native/servable/request_log.h"
#include "native/servable/request_reservoir.h"
#include "native/servable/servable.h"

namespace millpond::servable {

// A servable with the count of the handles that pin it. A serving map points to entries.
//
// Each thread counts its pins in a cell of its own, because one count would travel from core to
// core with each request. The sum of the cells is exact once the entry is retired: then cells only
// fall.
//
// Life: made, published in one map, retired from it, quiesced, destroyed. Request threads take and
// drop pins, wait-free. The control plane makes all other calls, on one thread at a time.
class ServableEntry {
 public:
  // `reservoir` takes samples of the requests that this version answers, and `request_log` those
  // that are logged. Both may be null.
  explicit ServableEntry(std::unique_ptr<Servable> servable,
                         std::shared_ptr<RequestReservoir> reservoir = nullptr,
                         std::shared_ptr<RequestLog> request_log = nullptr);
  ~ServableEntry();
  ServableEntry(const ServableEntry&) = delete;
  ServableEntry& operator=(const ServableEntry&) = delete;

  // Requires that Destroy has not been called: the entry is pinned, published or owned by the
  // caller.
  const Servable& servable() const { return *servable_; }
  const ServableId& id() const { return id_; }
  metrics::RequestRecorder& requests() { return *requests_; }
  const metrics::RequestRecorder& requests() const { return *requests_; }
  // The recorder for code that reports requests after the version is gone. Destroy marks it as
  // ended.
  const std::shared_ptr<metrics::RequestRecorder>& recorder() const { return requests_; }
  // The reservoir of the model, which all of its versions share and which outlives them. May be
  // null.
  const std::shared_ptr<RequestReservoir>& reservoir() const { return reservoir_; }
  // The log of the model, which lives as its reservoir does. May be null.
  const std::shared_ptr<RequestLog>& request_log() const { return request_log_; }

  // The answer to a question over HTTP for the version's metadata, as JSON. Set before the entry is
  // published.
  void SetMetadataJson(std::string json) { metadata_json_ = std::move(json); }
  const std::string& metadata_json() const { return metadata_json_; }

  // Exact if no request is looked up meanwhile, and once the entry is retired.
  int64_t handle_count() const;

  // For ServingMap, which publishes the entry, and again after a rollback. It retires the entry
  // once no reader can pin it any more. MarkPublished returns FAILED_PRECONDITION if the entry is
  // being unloaded or is destroyed.
  base::Status MarkPublished();
  void MarkRetired();
  bool is_published() const { return phase_.load(std::memory_order_acquire) == Phase::kPublished; }
  bool is_destroyed() const { return phase_.load(std::memory_order_acquire) == Phase::kDestroyed; }

  // Waits until the last handle is gone. Returns false if `timeout_ns` passes first, and
  // FAILED_PRECONDITION if the entry is published.
  base::StatusOr<bool> Quiesce(int64_t timeout_ns);

  // Frees the servable on this thread. Returns FAILED_PRECONDITION if the entry is published, not
  // quiesced yet, or pinned. A second call does nothing.
  base::Status Destroy();

 private:
  friend class ServableHandle;

  enum class Phase { kMade, kPublished, kRetired, kQuiesced, kDestroyed };

  struct alignas(base::kCacheLineBytes) Pins {
    std::atomic<int64_t> count{0};
  };

  void Pin() { pins_.Mine().count.fetch_add(1, std::memory_order_relaxed); }
  bool PinUnlessRetired();
  // The last access of a request to the entry, because the owner may free it from then on.
  void Unpin() { pins_.Mine().count.fetch_sub(1, std::memory_order_release); }

  const ServableId id_;
  std::unique_ptr<Servable> servable_;
  const std::shared_ptr<metrics::RequestRecorder> requests_ =
      std::make_shared<metrics::RequestRecorder>();
  const std::shared_ptr<RequestReservoir> reservoir_;
  const std::shared_ptr<RequestLog> request_log_;
  std::string metadata_json_;
  base::Sharded<Pins> pins_{base::CellCountForRequestThreads()};
  std::atomic<Phase> phase_{Phase::kMade};
};

// Pins one version for one request. It delays only the end of that version, not the map and not
// other versions.
class ServableHandle {
 public:
  ServableHandle() = default;
  // Pins `entry`. Only ServingMap's look-up and the owner of an entry may call it.
  explicit ServableHandle(ServableEntry* entry) : entry_(entry) { entry_->Pin(); }
  // Pins `entry`; returns an empty handle if the entry is retired. So no handle follows the last
  // handle of a retired entry. For callers that hold an entry without having looked it up, while
  // another thread may unload it.
  static ServableHandle UnlessRetired(ServableEntry* entry) {
    ServableHandle handle;
    if (entry->PinUnlessRetired()) handle.entry_ = entry;
    return handle;
  }
  ~ServableHandle() { Release(); }
  ServableHandle(ServableHandle&& other) noexcept : entry_(other.entry_) { other.entry_ = nullptr; }
  ServableHandle& operator=(ServableHandle&& other) noexcept;

  explicit operator bool() const { return entry_ != nullptr; }
  // The analyzer does not see that a handle is used only if the look-up that fills it returned OK.
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage)
  const Servable& operator*() const { return entry_->servable(); }
  const Servable* operator->() const { return &entry_->servable(); }
  metrics::RequestRecorder& requests() const { return entry_->requests(); }
  // May be null.
  const std::shared_ptr<RequestReservoir>& reservoir() const { return entry_->reservoir(); }
  const std::shared_ptr<RequestLog>& request_log() const { return entry_->request_log(); }
  const std::string& metadata_json() const { return entry_->metadata_json(); }

 private:
  void Release();

  ServableEntry* entry_ = nullptr;
};

}  // namespace millpond::servable
