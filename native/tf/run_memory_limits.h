#pragma once

#include <cstdint>

#include "native/base/byte_budget.h"

// The memory that runs may take, for the whole process. Thread of all functions here: any.
namespace millpond::tf {

// Sets the memory that the kernels of one run may have allocated at a time, and those of all runs
// of clients together (RunScope), for later runs. Without a call the memory is not limited.
void SetRunMemoryBytesMax(int64_t bytes, int64_t all_runs_bytes);
int64_t CurrentRunMemoryBytesMax();
// Returns the budget of all runs; null without a limit. Lives as long as the process.
base::ByteBudget* CurrentRunsBudget();

// Counts a run that was ended because its kernels needed too much memory.
void CountRunEndedByMemory();
// Returns the number of these runs since the start of the process.
int64_t RunsEndedByMemory();

}  // namespace millpond::tf
