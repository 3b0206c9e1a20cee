#pragma once

#include <semaphore.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "native/base/status.h"
#include "native/metrics/request_recorder.h"
#include "native/servable/request_reservoir.h"
#include "native/servable/servable.h"

namespace millpond::servable {

// A servable with the count of the handles that pin it: what a serving map points to.
//
// Life: made, published in one map, retired from it, quiesced, destroyed. Pins are taken and
// dropped by request threads, wait-free; all else is the control plane's, on one thread at a time.
class ServableEntry {
 public:
  // `reservoir` takes requests that this version answers; null where none are wanted.
  explicit ServableEntry(std::unique_ptr<Servable> servable,
                         std::shared_ptr<RequestReservoir> reservoir = nullptr);
  ~ServableEntry();
  ServableEntry(const ServableEntry&) = delete;
  ServableEntry& operator=(const ServableEntry&) = delete;

  // Requires that Destroy has not been called: pinned, published or owned by the caller.
  const Servable& servable() const { return *servable_; }
  const ServableId& id() const { return id_; }
  metrics::RequestRecorder& requests() { return *requests_; }
  const metrics::RequestRecorder& requests() const { return *requests_; }
  // For who tells of the requests after the version is gone; it ends with Destroy.
  const std::shared_ptr<metrics::RequestRecorder>& recorder() const { return requests_; }
  // The model's, shared by its versions and outliving each. May be null.
  const std::shared_ptr<RequestReservoir>& reservoir() const { return reservoir_; }

  int64_t handle_count() const;

  // For ServingMap. A map publishes it (again, after a rollback), and retires it once no reader can
  // pin it any more. FAILED_PRECONDITION where its life does not allow it.
  base::Status MarkPublished();
  void MarkRetired();
  bool is_published() const { return phase_.load(std::memory_order_acquire) == Phase::kPublished; }
  bool is_destroyed() const { return phase_.load(std::memory_order_acquire) == Phase::kDestroyed; }

  // Waits until the last handle is gone; false where `timeout_ns` passed first.
  // FAILED_PRECONDITION while it is published.
  base::StatusOr<bool> Quiesce(int64_t timeout_ns);

  // Frees the servable on this thread. FAILED_PRECONDITION while it is published or a request holds
  // it. A second call does nothing.
  base::Status Destroy();

 private:
  friend class ServableHandle;

  enum class Phase { kMade, kPublished, kRetired, kQuiesced, kDestroyed };

  // Beside the count of handles, in one word, so that the last handle of a retired entry knows
  // that it is.
  static constexpr int64_t kRetired = int64_t{1} << 62;

  void Pin() { pins_.fetch_add(1, std::memory_order_relaxed); }
  bool PinUnlessRetired();
  void Unpin();

  const ServableId id_;
  std::unique_ptr<Servable> servable_;
  const std::shared_ptr<metrics::RequestRecorder> requests_ =
      std::make_shared<metrics::RequestRecorder>();
  const std::shared_ptr<RequestReservoir> reservoir_;
  alignas(64) std::atomic<int64_t> pins_{0};
  std::atomic<Phase> phase_{Phase::kMade};
  // Posted by the last handle of a retirement. A semaphore, because posting takes no lock: the
  // waiter runs at idle priority and must not hold anything that a request thread wants.
  sem_t last_handle_gone_{};
};

// Pins one version for one request: neither the map nor another version waits for it.
class ServableHandle {
 public:
  ServableHandle() = default;
  // Pins `entry`. Only ServingMap's look-up and the owner of an entry may make one.
  explicit ServableHandle(ServableEntry* entry) : entry_(entry) { entry_->Pin(); }
  // For who has an entry that another thread may unload meanwhile, and not from a map: empty once
  // it is retired, so that after the last handle there is none.
  static ServableHandle UnlessRetired(ServableEntry* entry) {
    ServableHandle handle;
    if (entry->PinUnlessRetired()) handle.entry_ = entry;
    return handle;
  }
  ~ServableHandle() { Release(); }
  ServableHandle(ServableHandle&& other) noexcept : entry_(other.entry_) { other.entry_ = nullptr; }
  ServableHandle& operator=(ServableHandle&& other) noexcept;

  explicit operator bool() const { return entry_ != nullptr; }
  // The analyzer does not follow a status from the look-up that fills a handle to who asks for OK.
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage)
  const Servable& operator*() const { return entry_->servable(); }
  const Servable* operator->() const { return &entry_->servable(); }
  metrics::RequestRecorder& requests() const { return entry_->requests(); }
  // May be null.
  const std::shared_ptr<RequestReservoir>& reservoir() const { return entry_->reservoir(); }

 private:
  void Release();

  ServableEntry* entry_ = nullptr;
};

}  // namespace millpond::servable
