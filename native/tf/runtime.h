#pragma once

#include <string>

#include "native/base/status.h"

namespace millpond::memory {
class MemoryResource;
}  // namespace millpond::memory

namespace millpond::tf {

// TensorFlow's pools, which all sessions of the process share. 0: one thread a core.
struct RuntimeOptions {
  int intra_op_thread_count = 0;  // large kernels
  int inter_op_thread_count = 0;  // only what asks for a pool of its own: requests run inline
};

// Puts our allocator and our CPU device in the place of TensorFlow's, for the whole process:
// all tensors, parameters too, are allocated from `request_memory`, which is never
// freed. Call once, before TensorFlow allocates anything; a second call with the same options does
// nothing, with others it is FAILED_PRECONDITION.
base::Status InitializeRuntime(const RuntimeOptions& options,
                               memory::MemoryResource* request_memory);

// The options of the runtime; those of a default-made one before InitializeRuntime.
RuntimeOptions CurrentRuntimeOptions();
bool IsRuntimeInitialized();

// The version of the TensorFlow in this process, like "2.21.0".
std::string TensorFlowVersion();

}  // namespace millpond::tf
