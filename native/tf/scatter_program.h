#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "native/base/status.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_buffer.h"
#include "native/pjrt/executable_cache.h"
#include "native/pjrt/row_scatter.h"

namespace millpond::tf {

// Returns the program by which RowScatter writes `rows` rows of a table like `tensor`, as a
// serialized xla.HloModuleProto. It takes a block and the table, and may write over the table. All
// bits stay as they are. Takes a few milliseconds.
base::StatusOr<std::string> ScatterProgram(const pjrt::HostTensor& tensor, int64_t rows);

// Compiles the programs of a table's scatters, unless the cache has them: about 0.1 s each. Returns
// null if the table must be sent as a whole (RowScatter::SizesFor).
base::StatusOr<std::unique_ptr<pjrt::RowScatter>> CompileScatter(
    const pjrt::ExecutableCache& cache, const pjrt::Accelerator& accelerator,
    const pjrt::HostTensor& tensor);

}  // namespace millpond::tf
