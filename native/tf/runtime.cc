#include "native/tf/runtime.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <tuple>

#include "absl/log/globals.h"
#include "native/memory/memory_resource.h"
#include "native/tf/fixed_variables.h"
#include "native/tf/memory_allocator.h"
#include "native/tf/restore_kernel.h"
#include "native/tf/run_executor.h"
#include "native/tf/servable_device.h"
#include "native/tf/status.h"
#include "tensorflow/c/c_api.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"
#include "xla/tsl/framework/allocator_registry.h"

namespace millpond::tf {
namespace {

// Above the priorities of TensorFlow's own: 200 for its oneDNN allocator, 70 and 60 for its CPU
// devices.
constexpr int kAllocatorPriority = 300;
constexpr int kDevicePriority = 300;

constexpr char kAllocatorName[] = "millpond_request";

// Serves TensorFlow's own pools that allocate memory by the region. Requests use none of these
// pools.
class ResourceSubAllocator : public tsl::SubAllocator {
 public:
  explicit ResourceSubAllocator(memory::MemoryResource* resource)
      : SubAllocator({}, {}), resource_(resource) {}

  void* Alloc(size_t alignment, size_t num_bytes, size_t* bytes_received) override {
    *bytes_received = num_bytes;
    return resource_->Allocate(num_bytes, alignment);
  }
  void Free(void* block, size_t) override { resource_->Deallocate(block); }
  bool SupportsCoalescing() const override { return false; }

 private:
  memory::MemoryResource* const resource_;
};

class RequestAllocatorFactory : public tsl::AllocatorFactory {
 public:
  explicit RequestAllocatorFactory(memory::MemoryResource* resource) : resource_(resource) {}

  tsl::Allocator* CreateAllocator() override {
    return new MemoryAllocator(kAllocatorName, resource_);
  }
  tsl::SubAllocator* CreateSubAllocator(int) override {
    return new ResourceSubAllocator(resource_);
  }

 private:
  memory::MemoryResource* const resource_;
};

// Turns off the informational line that TensorFlow writes for every load, past our log and in
// another format. Failures are returned as a status anyway. TF_CPP_MIN_LOG_LEVEL turns the lines on
// again.
void QuietTensorFlow() {
  if (std::getenv("TF_CPP_MIN_LOG_LEVEL") != nullptr) return;
  absl::SetMinLogLevel(absl::LogSeverityAtLeast::kError);
}

void TakeTheStockRuntimesPlace(memory::MemoryResource* request_memory) {
  tsl::AllocatorFactoryRegistry::singleton()->Register(__FILE__, __LINE__, kAllocatorName,
                                                       kAllocatorPriority,
                                                       new RequestAllocatorFactory(request_memory));
  // Never freed: sessions and their tensors may outlive any owner in this code.
  auto* const allocator = new RunAllocator(new MemoryAllocator(kAllocatorName, request_memory));
  tensorflow::DeviceFactory::Register("CPU", std::make_unique<ServableDeviceFactory>(allocator),
                                      kDevicePriority, /*is_pluggable_device=*/false);
  RegisterRestoreKernel();
  RegisterFixedKernels();
  RegisterRunExecutor();
}

// Starts TensorFlow's pools at the caller's priority. TensorFlow makes its pools with the first
// session, and a thread inherits the priority of its maker. If a loader made the pools, requests
// would wait for threads that run only when the machine is idle.
base::Status StartPools(const RuntimeOptions& options) {
  tensorflow::SessionOptions session_options;
  session_options.config.set_intra_op_parallelism_threads(options.intra_op_thread_count);
  session_options.config.set_inter_op_parallelism_threads(options.inter_op_thread_count);
  tensorflow::Session* session = nullptr;
  MILLPOND_RETURN_IF_TF_ERROR(tensorflow::NewSession(session_options, &session),
                              "starting TensorFlow's pools");
  const std::unique_ptr<tensorflow::Session> owned(session);
  return FromTensorFlow(owned->Close());
}

// The state of the process's runtime. It belongs to the process, as TensorFlow's registries and
// pools do.
struct Runtime {
  std::mutex mutex;
  bool is_initialized = false;
  RuntimeOptions options;
};

Runtime& TheRuntime() {
  static auto* const runtime = new Runtime;
  return *runtime;
}

}  // namespace

bool RuntimeOptions::operator==(const RuntimeOptions& other) const {
  const auto all = [](const RuntimeOptions& options) {
    return std::tie(options.intra_op_thread_count, options.inter_op_thread_count, options.is_stock,
                    options.has_load_pool, options.checks_method_names, options.serves_session_run,
                    options.keeps_graphs);
  };
  return all(*this) == all(other);
}

base::Status InitializeRuntime(const RuntimeOptions& options,
                               memory::MemoryResource* request_memory) {
  Runtime& runtime = TheRuntime();
  const std::lock_guard<std::mutex> lock(runtime.mutex);
  if (runtime.is_initialized) {
    if (options == runtime.options) return {};
    return base::FailedPrecondition(
        "TensorFlow's pools are made once in a process, with intra_op_thread_count " +
        std::to_string(runtime.options.intra_op_thread_count) + " and inter_op_thread_count " +
        std::to_string(runtime.options.inter_op_thread_count) +
        (runtime.options.is_stock ? ", as the stock runtime" : "") + "; start another process");
  }
  QuietTensorFlow();
  if (!options.is_stock) TakeTheStockRuntimesPlace(request_memory);
  MILLPOND_RETURN_IF_ERROR(StartPools(options));
  runtime.options = options;
  runtime.is_initialized = true;
  return {};
}

RuntimeOptions CurrentRuntimeOptions() {
  Runtime& runtime = TheRuntime();
  const std::lock_guard<std::mutex> lock(runtime.mutex);
  return runtime.options;
}

bool IsRuntimeInitialized() {
  Runtime& runtime = TheRuntime();
  const std::lock_guard<std::mutex> lock(runtime.mutex);
  return runtime.is_initialized;
}

std::string TensorFlowVersion() { return TF_Version(); }

}  // namespace millpond::tf
