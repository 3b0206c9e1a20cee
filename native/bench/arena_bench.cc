// Measures the cost of an arena: of making and destroying it, of a pair of Allocate and Deallocate,
// and of its statistics. Prints how much of a slab the CTR model's tables take. Fails if jemalloc
// is not preloaded: run it with LD_PRELOAD=libjemalloc.so.2.
#include <cstdio>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "native/bench/measure.h"
#include "native/memory/arena.h"
#include "native/memory/jemalloc_api.h"
#include "native/memory/slab.h"

namespace millpond::bench {
namespace {

using memory::Arena;
using memory::Slab;

constexpr size_t kAlignment = 64;

std::unique_ptr<Arena> CreateArena(Slab* slab) { return std::move(Arena::Create(slab).value()); }

void MeasureLifeCycle(Slab* slab) {
  Measure("arena_create_destroy", 1, 100, [&](int, int) {
    const std::unique_ptr<Arena> arena = CreateArena(slab);
    arena->Deallocate(arena->Allocate(1 << 20, kAlignment));
  });
}

void MeasureUse(Slab* slab) {
  const std::unique_ptr<Arena> arena = CreateArena(slab);
  for (const size_t bytes : {256, 16'384, 1 << 20}) {
    const std::string name = "arena_pair bytes=" + std::to_string(bytes);
    Measure(name.c_str(), 1, 100'000,
            [&](int, int) { arena->Deallocate(arena->Allocate(bytes, kAlignment)); });
  }
  Measure("arena_stats", 1, 200, [&](int, int) {
    const memory::ArenaStatistics statistics = arena->ArenaStats();
    Keep(&statistics);
  });
  Measure("arena_live_blocks_by_size", 1, 200, [&](int, int) {
    const auto blocks = arena->LiveBlocksBySize();
    Keep(&blocks);
  });
}

void ReportTables() {
  const std::vector<size_t> tables(26, 19'200'000);
  const size_t planned_bytes = memory::PlanSlabBytes(tables);
  const auto slab = std::move(Slab::Reserve(planned_bytes).value());
  const std::unique_ptr<Arena> arena = CreateArena(slab.get());
  std::vector<void*> blocks;
  for (const size_t bytes : tables) blocks.push_back(arena->Allocate(bytes, kAlignment));
  std::printf("tables: asked=%zu planned=%zu used=%lld\n",
              std::accumulate(tables.begin(), tables.end(), size_t{0}), planned_bytes,
              static_cast<long long>(arena->ArenaStats().used_bytes()));
  for (void* block : blocks) arena->Deallocate(block);
}

}  // namespace
}  // namespace millpond::bench

int main() {
  if (!millpond::memory::IsJemallocPreloaded()) {
    std::fprintf(stderr, "run it with LD_PRELOAD=libjemalloc.so.2\n");
    return 1;
  }
  const auto slab = std::move(millpond::memory::Slab::Reserve(size_t{64} << 20).value());
  millpond::bench::MeasureLifeCycle(slab.get());
  millpond::bench::MeasureUse(slab.get());
  millpond::bench::ReportTables();
}
