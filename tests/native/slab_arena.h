#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "native/memory/arena.h"
#include "native/memory/jemalloc_api.h"
#include "native/memory/memory_resource.h"
#include "native/memory/slab.h"
#include "tests/native/stacked_memory.h"
#include "tests/native/units.h"

namespace millpond::memory {

using testing::kMiB;

// A slab and the arena on it.
struct SlabArena {
  explicit SlabArena(size_t bytes)
      : slab(std::move(Slab::Reserve(bytes).value())),
        arena(std::move(Arena::Create(slab.get()).value())) {}

  std::unique_ptr<Slab> slab;
  std::unique_ptr<Arena> arena;
};

// Makes both as one resource for the contract suite; returns nullptr if jemalloc is not preloaded.
inline std::unique_ptr<MemoryResource> CreateArenaMemory() {
  class ArenaMemory final : public MemoryResource {
   public:
    void* Allocate(size_t bytes, size_t alignment) noexcept override {
      return on_slab_.arena->Allocate(bytes, alignment);
    }
    void Deallocate(void* block) noexcept override { on_slab_.arena->Deallocate(block); }
    MemoryStatistics Statistics() const override { return on_slab_.arena->Statistics(); }

   private:
    SlabArena on_slab_{256 * kMiB};
  };
  return IsJemallocPreloaded() ? std::make_unique<ArenaMemory>() : nullptr;
}

}  // namespace millpond::memory
