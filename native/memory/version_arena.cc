#include "native/memory/version_arena.h"

#include <utility>

namespace millpond::memory {

base::StatusOr<std::unique_ptr<VersionArena>> VersionArena::Take(std::shared_ptr<SlabPool> pool,
                                                                 const std::string& owner,
                                                                 size_t slab_bytes,
                                                                 size_t wanted_bytes,
                                                                 MemoryResource* overflow) {
  base::StatusOr<std::unique_ptr<Slab>> slab = pool->Take(owner, slab_bytes, wanted_bytes);
  if (!slab.ok()) return slab.status();
  base::StatusOr<std::unique_ptr<Arena>> arena = Arena::Create(slab.value().get());
  if (!arena.ok()) {
    pool->GiveBack(std::move(slab.value()));
    return arena.status();
  }
  return std::unique_ptr<VersionArena>(new VersionArena(std::move(pool), slab_bytes, wanted_bytes,
                                                        std::move(slab.value()),
                                                        std::move(arena.value()), overflow));
}

VersionArena::VersionArena(std::shared_ptr<SlabPool> pool, size_t slab_bytes, size_t wanted_bytes,
                           std::unique_ptr<Slab> slab, std::unique_ptr<Arena> arena,
                           MemoryResource* overflow)
    : pool_(std::move(pool)),
      slab_bytes_(slab_bytes),
      wanted_bytes_(wanted_bytes),
      slab_(std::move(slab)),
      arena_(std::move(arena)),
      memory_(arena_.get(), slab_->start(), slab_->reserved_bytes(), overflow) {}

VersionArena::~VersionArena() { Release(); }

void VersionArena::Pin() {
  const std::shared_ptr<PagePinner> pinner = pool_->pinner();
  if (pinner == nullptr) return;
  is_pinned_ = true;
  const size_t end = RoundUp(used_slab_bytes(), kPageBytes);
  while (slab_->PinNext(end, pinner)) {
  }
}

ArenaRemains VersionArena::Release() {
  if (slab_ == nullptr) return remains_;
  remains_.overflow_block_count = memory_.overflow_block_count();
  if (arena_->Destroy().ok()) {
    arena_.reset();
    pool_->GiveBack(std::move(slab_));
    return remains_;
  }
  remains_.live_bytes = arena_->Statistics().in_use_bytes;
  remains_.live_blocks = arena_->LiveBlocksBySize();
  pool_->Quarantine(std::move(slab_));
  return remains_;
}

}  // namespace millpond::memory
