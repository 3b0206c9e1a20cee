#pragma once

#include <cstdint>
#include <string>

#include "native/base/status.h"

namespace millpond::memory {
class MemoryResource;
}  // namespace millpond::memory

namespace millpond::tf {

// How TensorFlow runs in this process.
struct RuntimeOptions {
  // TensorFlow's pools, which all sessions of the process share. 0: one thread a core.
  int intra_op_thread_count = 0;  // large kernels
  int inter_op_thread_count = 0;  // only what asks for a pool of its own: requests run inline
  // The control of load tests, which shows what ours saves: TensorFlow's own allocator, device and
  // restore kernel, and runs through Session::Run on its pools, as TensorFlow Serving has them.
  bool is_stock = false;
  // Of the stock runtime: restore and init run on an inter-op pool of the session's own.
  bool has_load_pool = false;
  // Of the models that are loaded: a signature answers only requests of its own method_name.
  bool checks_method_names = false;
  // Of the models that are loaded: clients may run any part of their graphs. Such a model is never
  // sealed, as a client may write to what it likes.
  bool serves_session_run = false;

  bool operator==(const RuntimeOptions& other) const;
};

// Puts our allocator, CPU device and restore kernel in the place of TensorFlow's, for the whole
// process (unless it is to be stock): all tensors but a version's parameters are allocated from
// `request_memory`, which is never freed. TensorFlow's pools start here, at the caller's priority.
// Call once, before TensorFlow allocates anything; a second call with the same options does
// nothing, with others it is FAILED_PRECONDITION.
base::Status InitializeRuntime(const RuntimeOptions& options,
                               memory::MemoryResource* request_memory);

// The options of the runtime; those of a default-made one before InitializeRuntime.
RuntimeOptions CurrentRuntimeOptions();
bool IsRuntimeInitialized();

// What the kernels of one run may have allocated at a time (RunScope), for runs from now on. Before
// it is set, anything. Any thread.
void SetRunMemoryBytesMax(int64_t bytes);
int64_t CurrentRunMemoryBytesMax();

// Runs that were ended because their kernels wanted too much memory, since the process's start.
int64_t RunsEndedByMemory();

// The version of the TensorFlow in this process, like "2.21.0".
std::string TensorFlowVersion();

}  // namespace millpond::tf
