#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "native/memory/memory_resource.h"

namespace millpond::memory {

// A resource together with the one that it wraps, which it borrows only.
class StackedMemory final : public MemoryResource {
 public:
  StackedMemory(std::unique_ptr<MemoryResource> upstream, std::unique_ptr<MemoryResource> wrapper)
      : upstream_(std::move(upstream)), wrapper_(std::move(wrapper)) {}

  // `make(upstream)` makes the wrapper. nullptr if there is no upstream.
  template <typename Make>
  static std::unique_ptr<MemoryResource> Over(std::unique_ptr<MemoryResource> upstream,
                                              const Make& make) {
    if (upstream == nullptr) return nullptr;
    std::unique_ptr<MemoryResource> wrapper = make(upstream.get());
    return std::make_unique<StackedMemory>(std::move(upstream), std::move(wrapper));
  }

  void* Allocate(size_t bytes, size_t alignment) noexcept override {
    return wrapper_->Allocate(bytes, alignment);
  }
  void Deallocate(void* block) noexcept override { wrapper_->Deallocate(block); }
  MemoryStatistics Statistics() const override { return wrapper_->Statistics(); }

 private:
  const std::unique_ptr<MemoryResource> upstream_;
  const std::unique_ptr<MemoryResource> wrapper_;
};

}  // namespace millpond::memory
