#pragma once

#include <cstddef>
#include <string>

#include "native/base/status.h"

namespace millpond::tf {

// Returns the program `hlo`, a serialized xla.HloModuleProto, as one that takes its first
// `input_count` arguments in one block of memory, and returns its outputs in another
// (pjrt::PackedTensors). The other arguments follow the block. All bits stay as they are. Takes a
// few milliseconds. Returns INTERNAL if `hlo` is no program, or has fewer arguments.
base::StatusOr<std::string> PackProgram(const std::string& hlo, size_t input_count);

}  // namespace millpond::tf
