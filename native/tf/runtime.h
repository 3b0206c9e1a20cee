#pragma once

#include <string>

#include "native/base/status.h"

namespace millpond::memory {
class MemoryResource;
}  // namespace millpond::memory

namespace millpond::tf {

// The configuration of TensorFlow in this process.
struct RuntimeOptions {
  // The sizes of TensorFlow's pools, which all sessions of the process share. 0: one thread a core.
  int intra_op_thread_count = 0;  // for large kernels
  int inter_op_thread_count = 0;  // for work that needs a pool; requests run inline
  // True for the control of load tests, which shows what our runtime saves: TensorFlow's own
  // allocator, device and restore kernel, and runs through Session::Run on its pools, as in
  // TensorFlow Serving.
  bool is_stock = false;
  // True if restore and init run on an inter-op pool of the session's own. For the stock runtime.
  bool has_load_pool = false;
  // True if a signature answers only requests of its own method_name.
  bool checks_method_names = false;
  // True if clients may run any part of a model's graph. Such a model is never sealed, because a
  // client may write to any variable.
  bool serves_session_run = false;
  // True if sessions keep their graphs, so that the host parts of signatures can be added.
  bool keeps_graphs = false;

  bool operator==(const RuntimeOptions& other) const;
};

// Replaces TensorFlow's allocator, CPU device and restore kernel with ours, for the whole process,
// unless the runtime is to be stock. All tensors except the parameters of versions are then
// allocated from `request_memory`, which is never freed. Starts TensorFlow's pools, at the caller's
// priority. Call it once, before TensorFlow allocates anything. A second call with the same options
// does nothing. With other options it returns FAILED_PRECONDITION.
base::Status InitializeRuntime(const RuntimeOptions& options,
                               memory::MemoryResource* request_memory);

// Returns the options of the runtime; default options before InitializeRuntime.
RuntimeOptions CurrentRuntimeOptions();
bool IsRuntimeInitialized();

// Returns the version of the TensorFlow in this process, like "2.21.0".
std::string TensorFlowVersion();

}  // namespace millpond::tf
