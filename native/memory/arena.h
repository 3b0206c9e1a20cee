#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "native/base/status.h"
#include "native/memory/arena_stats.h"
#include "native/memory/extent_hooks.h"
#include "native/memory/memory_resource.h"
#include "native/memory/size_classes.h"
#include "native/memory/slab.h"

namespace millpond::memory {

// The parameters of one version: a jemalloc arena whose blocks all lie in one slab. So loading and
// unloading touch no memory that a request uses, and take no lock that a request takes.
//
// Thread: any thread at any time, as for each MemoryResource. Destroy and the destructor may run
// only after the last allocation and deallocation. Statistics may be read during Destroy.
// Owner: the version. Borrows the slab, which must outlive the arena and carries one arena at a
// time.
// Full slab: Allocate returns nullptr, and never memory from outside the slab. The arena stays
// usable.
// Sealed slab: blocks may be read and deallocated. Allocate returns nullptr.
// Cost (native/bench/arena_bench.cc): 70 µs to make and destroy an arena, 0.3 µs a pair of Allocate
// and Deallocate. Each destroyed arena leaves a range of 2 MiB reserved, because jemalloc keeps the
// addresses of its records. The range holds almost no memory: a thousand arenas cost 2 GB virtual
// and 80 KiB resident memory. jemalloc's own records lie outside the slab, so neither the seal nor
// a stray write reaches them.
class Arena final : public MemoryResource {
 public:
  // Creates an arena on `slab`. Returns FAILED_PRECONDITION without jemalloc 5.3.
  static base::StatusOr<std::unique_ptr<Arena>> Create(Slab* slab);

  // Destroys the arena. If blocks are live (a leak), they stay valid: the arena index and its hooks
  // are leaked on purpose. The owner must then quarantine the slab, and never use it again.
  ~Arena() override;

  void* Allocate(size_t bytes, size_t alignment) noexcept override;
  void Deallocate(void* block) noexcept override;
  MemoryStatistics Statistics() const override;  // Exact, including the peak.

  // Returns how the bytes of the slab are used. Costs a mincore of the slab. The first call of an
  // arena may also refresh jemalloc's statistics (see LiveBlocksBySize), so a thread of normal
  // priority should make it.
  ArenaStatistics ArenaStats() const;

  // The bytes from the slab's low end up to the last byte that was ever part of a block. Makes no
  // call of jemalloc. The first ArenaStats of an arena, by contrast, may take the locks of all
  // other arenas.
  size_t used_slab_bytes() const { return hooks_->cut_bytes(); }

  // Returns the live blocks by ascending size, for the log line of a leak. Refreshes the statistics
  // of all of jemalloc's arenas and takes their locks one by one. So call it rarely, and never on
  // the request path.
  std::vector<LiveBlocks> LiveBlocksBySize() const;

  // Destroys the arena. Returns FAILED_PRECONDITION and changes nothing while a block is live.
  // Returns OK if the arena is already destroyed.
  base::Status Destroy();

  unsigned index() const { return index_; }

  // Returns the size of the block that jemalloc allocates for `bytes` at TensorFlow's alignment.
  // Returns 0 if no block can be that large. Requires jemalloc to be preloaded.
  static size_t BlockBytes(size_t bytes);

 private:
  Arena(Slab* slab, std::unique_ptr<ExtentHooks> hooks, SizeClasses size_classes, unsigned index);

  void CountAllocation(int64_t block_bytes);
  int64_t ActiveBytes() const;

  Slab* const slab_;
  std::unique_ptr<ExtentHooks> hooks_;
  const SizeClasses size_classes_;
  const unsigned index_;

  std::atomic<int64_t> live_bytes_{0};
  std::atomic<int64_t> live_bytes_peak_{0};
  std::atomic<int64_t> live_block_count_{0};
  std::atomic<int64_t> allocation_count_{0};

  mutable std::mutex destroy_mutex_;  // Keeps the arena alive while its statistics are read.
  std::atomic<bool> is_destroyed_{false};
  // jemalloc's own counter, which ends with the arena.
  mutable const size_t* active_page_count_ = nullptr;
};

// Tries to make an arena. Returns OK if this process's jemalloc can make one, and the error of
// Arena::Create if not.
base::Status CheckArenas();

// Returns the size of the slab for these tensors, allocated in any order with no deallocation in
// between. It includes an extra page for each large tensor, and the bytes by which jemalloc rounds
// sizes up (at most a quarter); neither is touched. Returns 0 if jemalloc does not report its size
// classes. Requires jemalloc to be preloaded.
size_t PlanSlabBytes(const std::vector<size_t>& tensor_bytes);

}  // namespace millpond::memory
