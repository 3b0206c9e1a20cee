#include "native/tf/run_memory_limits.h"

#include <atomic>

namespace millpond::tf {
namespace {

// Read by every run.
std::atomic<int64_t> run_memory_bytes_max{INT64_MAX};
std::atomic<base::ByteBudget*> runs_budget{nullptr};

std::atomic<int64_t> runs_ended_by_memory{0};

}  // namespace

void SetRunMemoryBytesMax(int64_t bytes, int64_t all_runs_bytes) {
  run_memory_bytes_max.store(bytes, std::memory_order_relaxed);
  // The earlier budget is never freed, because a run under way may have a share of it.
  runs_budget.store(new base::ByteBudget(all_runs_bytes), std::memory_order_release);
}

int64_t CurrentRunMemoryBytesMax() { return run_memory_bytes_max.load(std::memory_order_relaxed); }

base::ByteBudget* CurrentRunsBudget() { return runs_budget.load(std::memory_order_acquire); }

void CountRunEndedByMemory() { runs_ended_by_memory.fetch_add(1, std::memory_order_relaxed); }

int64_t RunsEndedByMemory() { return runs_ended_by_memory.load(std::memory_order_relaxed); }

}  // namespace millpond::tf
