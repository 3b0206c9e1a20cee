#include "native/memory/arena.h"

#include <algorithm>
#include <string>
#include <utility>

#include "native/base/sharded.h"
#include "native/memory/jemalloc_api.h"
#include "native/memory/jemalloc_control.h"

namespace millpond::memory {
namespace {

constexpr size_t kTensorAlignment = 64;  // As in TensorFlow.

// The layout of jemalloc's arena_config_t, which its public header leaves out.
struct ArenaConfig {
  extent_hooks_t* extent_hooks;
  bool metadata_use_hooks;
};

base::Status NotPreloaded() {
  return base::FailedPrecondition(
      "jemalloc is not preloaded, so there are no arenas; start through `millpond serve` or set "
      "LD_PRELOAD=libjemalloc.so.2");
}

base::Status TooOld(const std::string& control) {
  return base::FailedPrecondition("jemalloc " + JemallocVersion() + " has no control '" + control +
                                  "'; use jemalloc 5.3");
}

base::StatusOr<unsigned> CreateJemallocArena(extent_hooks_t* hooks) {
  ArenaConfig config{hooks, /*metadata_use_hooks=*/false};
  unsigned index = 0;
  size_t index_bytes = sizeof(index);
  const char* const name = "experimental.arenas_create_ext";
  if (mallctl(name, &index, &index_bytes, &config, sizeof(config)) != 0) return TooOld(name);
  return index;
}

std::string ControlOf(unsigned index, const char* control) {
  return "arena." + std::to_string(index) + "." + control;
}

// Refreshes the statistics of all arenas. jemalloc takes their locks one by one for it.
bool RefreshStatistics() { return WriteControl<uint64_t>("epoch", 1); }

// Moves freed extents to the retained list at once. Any smaller block can be cut from that list.
// From jemalloc's dirty list, a block gets an extent of at most 64 times its size. A slab could
// then be full although most of its bytes are free.
bool RetainFreedExtents(unsigned index) {
  return WriteControl<ssize_t>(ControlOf(index, "dirty_decay_ms"), 0) &&
         WriteControl<ssize_t>(ControlOf(index, "muzzy_decay_ms"), 0);
}

size_t BlockBytesAt(size_t bytes, size_t alignment) {
  return nallocx(std::max<size_t>(bytes, 1), MALLOCX_ALIGN(alignment));
}

// Appends `prefix`.<i>.`count_name` blocks of `size_prefix`.<i>.size bytes for each i with live
// blocks.
void AppendLiveBlocks(const std::string& prefix, const char* count_name,
                      const std::string& size_prefix, unsigned class_count,
                      std::vector<LiveBlocks>* blocks) {
  for (unsigned i = 0; i < class_count; ++i) {
    const std::string number = std::to_string(i);
    const auto count = ReadControl<size_t>(prefix + number + count_name).value_or(0);
    if (count == 0) continue;
    const auto bytes = ReadControl<size_t>(size_prefix + number + ".size").value_or(0);
    blocks->push_back({static_cast<int64_t>(bytes), static_cast<int64_t>(count)});
  }
}

}  // namespace

base::StatusOr<std::unique_ptr<Arena>> Arena::Create(Slab* slab) {
  if (!IsJemallocPreloaded()) return NotPreloaded();
  base::StatusOr<SizeClasses> size_classes = SizeClasses::OfJemalloc();
  if (!size_classes.ok()) return size_classes.status();
  auto hooks = std::make_unique<ExtentHooks>(slab->start(), slab->reserved_bytes());
  const base::StatusOr<unsigned> created = CreateJemallocArena(hooks->Table());
  if (!created.ok()) return created.status();
  std::unique_ptr<Arena> arena(
      new Arena(slab, std::move(hooks), std::move(size_classes.value()), created.value()));
  if (!RetainFreedExtents(arena->index_)) return TooOld("arena.<i>.dirty_decay_ms");
  return arena;
}

Arena::Arena(Slab* slab, std::unique_ptr<ExtentHooks> hooks, SizeClasses size_classes,
             unsigned index)
    : slab_(slab),
      hooks_(std::move(hooks)),
      size_classes_(std::move(size_classes)),
      index_(index) {}

Arena::~Arena() {
  if (!Destroy().ok()) static_cast<void>(hooks_.release());  // jemalloc still refers to them.
}

void* Arena::Allocate(size_t bytes, size_t alignment) noexcept {
  if (slab_->is_sealed() || is_destroyed_.load(std::memory_order_relaxed)) return nullptr;
  const size_t block_bytes = BlockBytesAt(bytes, alignment);
  if (block_bytes == 0 || block_bytes > slab_->reserved_bytes()) return nullptr;
  const int flags = MALLOCX_ARENA(index_) | MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(alignment);
  const ExtentHooks::SizeLimit limit(size_classes_.ExtentBytes(block_bytes));
  void* block = mallocx(std::max<size_t>(bytes, 1), flags);
  if (block != nullptr) CountAllocation(static_cast<int64_t>(block_bytes));
  return block;
}

void Arena::CountAllocation(int64_t block_bytes) {
  const int64_t live_bytes = live_bytes_.fetch_add(block_bytes) + block_bytes;
  base::RaiseTo(live_bytes_peak_, live_bytes);
  live_block_count_.fetch_add(1);
  allocation_count_.fetch_add(1, std::memory_order_relaxed);
}

void Arena::Deallocate(void* block) noexcept {
  if (block == nullptr) return;
  const auto block_bytes = static_cast<int64_t>(sallocx(block, 0));
  dallocx(block, MALLOCX_TCACHE_NONE);
  live_block_count_.fetch_sub(1);
  live_bytes_.fetch_sub(block_bytes);  // Last: a thread that reads 0 may destroy the arena.
}

MemoryStatistics Arena::Statistics() const {
  return {live_bytes_.load(), live_bytes_peak_.load(), allocation_count_.load()};
}

ArenaStatistics Arena::ArenaStats() const {
  const std::lock_guard lock(destroy_mutex_);
  const auto reserved_bytes = static_cast<int64_t>(slab_->reserved_bytes());
  const auto cut_bytes = static_cast<int64_t>(hooks_->cut_bytes());
  ArenaStatistics statistics;
  statistics.allocated_bytes = live_bytes_.load();
  // If other threads allocate at the same time, the counts are of different moments. No figure may
  // become negative.
  const int64_t active_bytes =
      std::clamp(ActiveBytes(), statistics.allocated_bytes, reserved_bytes);
  statistics.active_unused_bytes = active_bytes - statistics.allocated_bytes;
  statistics.retained_bytes = std::max<int64_t>(cut_bytes - active_bytes, 0);
  statistics.unused_bytes = reserved_bytes - active_bytes - statistics.retained_bytes;
  statistics.slab_resident_bytes = static_cast<int64_t>(slab_->ResidentBytes());
  return statistics;
}

// Returns the bytes of the arena's active pages. jemalloc publishes the address of this count only
// after its statistics were refreshed once since the arena was made. From then on it is read
// without a refresh.
int64_t Arena::ActiveBytes() const {
  if (is_destroyed_) return 0;
  const std::string name = "experimental.arenas." + std::to_string(index_) + ".pactivep";
  if (active_page_count_ == nullptr) {
    auto count = ReadControl<const size_t*>(name);
    if (!count && RefreshStatistics()) count = ReadControl<const size_t*>(name);
    if (!count) return 0;
    active_page_count_ = *count;
  }
  return static_cast<int64_t>(__atomic_load_n(active_page_count_, __ATOMIC_RELAXED) * kPageBytes);
}

std::vector<LiveBlocks> Arena::LiveBlocksBySize() const {
  const std::lock_guard lock(destroy_mutex_);
  std::vector<LiveBlocks> blocks;
  if (is_destroyed_ || !RefreshStatistics()) return blocks;
  const std::string stats = "stats.arenas." + std::to_string(index_);
  const unsigned bin_count = ReadControl<unsigned>("arenas.nbins").value_or(0);
  const unsigned large_count = ReadControl<unsigned>("arenas.nlextents").value_or(0);
  AppendLiveBlocks(stats + ".bins.", ".curregs", "arenas.bin.", bin_count, &blocks);
  AppendLiveBlocks(stats + ".lextents.", ".curlextents", "arenas.lextent.", large_count, &blocks);
  return blocks;
}

base::Status Arena::Destroy() {
  const std::lock_guard lock(destroy_mutex_);
  if (is_destroyed_) return {};
  const int64_t live_bytes = live_bytes_.load();
  if (live_bytes != 0) {
    return base::FailedPrecondition("arena " + std::to_string(index_) + " has " +
                                    std::to_string(live_bytes) + " live bytes in " +
                                    std::to_string(live_block_count_.load()) +
                                    " blocks; destroy the holders of the blocks first");
  }
  if (!CallControl(ControlOf(index_, "destroy"))) {
    return base::Internal("jemalloc refused to destroy arena " + std::to_string(index_));
  }
  is_destroyed_ = true;
  return {};
}

size_t Arena::BlockBytes(size_t bytes) { return BlockBytesAt(bytes, kTensorAlignment); }

base::Status CheckArenas() {
  base::StatusOr<std::unique_ptr<Slab>> slab = Slab::Reserve(kSlabUnitBytes);
  if (!slab.ok()) return slab.status();
  return Arena::Create(slab.value().get()).status();
}

size_t PlanSlabBytes(const std::vector<size_t>& tensor_bytes) {
  const base::StatusOr<SizeClasses> size_classes = SizeClasses::OfJemalloc();
  if (!size_classes.ok()) return 0;
  std::vector<size_t> block_bytes;
  block_bytes.reserve(tensor_bytes.size());
  for (const size_t bytes : tensor_bytes) block_bytes.push_back(Arena::BlockBytes(bytes));
  return size_classes.value().ExtentBytesOfAll(block_bytes);
}

}  // namespace millpond::memory
