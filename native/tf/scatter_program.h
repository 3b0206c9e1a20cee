#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "native/base/status.h"
#include "native/pjrt/device_buffer.h"

namespace millpond::tf {

// Returns the programs by which RowScatter writes rows of a table like `tensor`, by their numbers
// of rows, as serialized xla.HloModuleProtos. None if the table must be sent as a whole
// (RowScatter::SizesFor). Each takes a block and the table, and may write over the table. All bits
// stay as they are. Takes a few milliseconds for each.
base::StatusOr<std::map<int64_t, std::string>> ScatterPrograms(const pjrt::HostTensor& tensor);

}  // namespace millpond::tf
