#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "native/servable/servable_entry.h"
#include "tests/native/fake_servable.h"

namespace millpond::servable {

// The fate of a WatchedServable; it outlives the servable.
struct FakeServableFate {
  std::atomic<bool> is_alive{true};
  std::thread::id destroyed_by;
};

// A servable that reports its destruction.
class WatchedServable final : public testing::FakeServable {
 public:
  WatchedServable(ServableId id, FakeServableFate* fate)
      : FakeServable(std::move(id)), fate_(fate) {}
  ~WatchedServable() override {
    alive_mark_ = 0;
    if (fate_ == nullptr) return;
    fate_->destroyed_by = std::this_thread::get_id();
    fate_->is_alive = false;
  }

  // A plain read, so that a sanitizer detects a read of a servable that is being or has been
  // destroyed.
  bool IsWhole() const { return alive_mark_ == kAlive; }

 private:
  static constexpr int64_t kAlive = 0x616c697665;

  FakeServableFate* const fate_;
  int64_t alive_mark_ = kAlive;
};

// Returns an entry of a WatchedServable.
inline std::shared_ptr<ServableEntry> MakeFakeEntry(const std::string& name, int64_t version,
                                                    FakeServableFate* fate = nullptr) {
  return std::make_shared<ServableEntry>(
      std::make_unique<WatchedServable>(ServableId{name, version}, fate));
}

}  // namespace millpond::servable
