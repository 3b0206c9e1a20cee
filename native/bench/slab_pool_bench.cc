// Measures a step of the pool's keeper, of one unit of memory. The page fault is the most of it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "native/bench/measure.h"
#include "native/memory/slab_pool.h"

namespace millpond::bench {
namespace {

constexpr size_t kSpareBytes = 16 * memory::kSlabUnitBytes;

std::string NameOf(int owner) { return "model " + std::to_string(owner); }

int64_t KeepUntilDone(memory::SlabPool* pool) {
  int64_t step_count = 0;
  while (pool->KeepStep()) ++step_count;
  return step_count;
}

// Makes a spare for each owner and returns all spares to the system. Returns the cost of a step.
double StepNs(int owner_count) {
  memory::SlabPoolOptions options;
  options.spare_slab_count = owner_count;
  memory::SlabPool pool(options);
  const int64_t start_ns = ThreadCpuNs();
  for (int owner = 0; owner < owner_count; ++owner) {
    pool.Expect(NameOf(owner), {kSpareBytes, kSpareBytes, kSpareBytes});
  }
  pool.Refill(SIZE_MAX);
  int64_t step_count = KeepUntilDone(&pool);
  for (int owner = 0; owner < owner_count; ++owner) pool.Forget(NameOf(owner));
  step_count += KeepUntilDone(&pool);
  return static_cast<double>(ThreadCpuNs() - start_ns) / static_cast<double>(step_count);
}

// Prints the least of 7 runs: page faults only ever add.
void MeasureSteps(int owner_count) {
  double step_ns = std::numeric_limits<double>::max();
  for (int run = 0; run < 7; ++run) step_ns = std::min(step_ns, StepNs(owner_count));
  std::printf("step of the pool, owners=%d cpu_ns=%.0f\n", owner_count, step_ns);
}

}  // namespace
}  // namespace millpond::bench

int main() {
  for (const int owner_count : {1, 8}) millpond::bench::MeasureSteps(owner_count);
}
