#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "native/servable/servable.h"
#include "native/servable/servable_entry.h"

namespace millpond::servable {

// The fate of a FakeServable; it outlives the servable.
struct FakeServableFate {
  std::atomic<bool> is_alive{true};
  std::thread::id destroyed_by;
};

// A servable without TensorFlow. It has an id and reports its destruction.
class FakeServable final : public Servable {
 public:
  FakeServable(ServableId id, FakeServableFate* fate) : id_(std::move(id)), fate_(fate) {}
  ~FakeServable() override {
    alive_mark_ = 0;
    if (fate_ == nullptr) return;
    fate_->destroyed_by = std::this_thread::get_id();
    fate_->is_alive = false;
  }

  const ServableId& id() const override { return id_; }
  const tensor::SignatureMap& signatures() const override { return signatures_; }
  const std::string& signature_def_map() const override { return signature_def_map_; }
  base::Status Prepare(const tensor::Signature&, const tensor::OutputSet&) const override {
    return {};
  }
  base::Status Run(const tensor::Signature&, const tensor::OutputSet&, const tensor::RunContext&,
                   const tensor::TensorList&, tensor::TensorList*) const override {
    return {};
  }

  // A plain read, so that a sanitizer detects a read of a servable that is being or has been
  // destroyed.
  bool IsWhole() const { return alive_mark_ == kAlive; }

 private:
  static constexpr int64_t kAlive = 0x616c697665;

  const ServableId id_;
  FakeServableFate* const fate_;
  const tensor::SignatureMap signatures_;
  const std::string signature_def_map_;
  int64_t alive_mark_ = kAlive;
};

inline std::shared_ptr<ServableEntry> MakeFakeEntry(const std::string& name, int64_t version,
                                                    FakeServableFate* fate = nullptr) {
  return std::make_shared<ServableEntry>(
      std::make_unique<FakeServable>(ServableId{name, version}, fate));
}

}  // namespace millpond::servable
