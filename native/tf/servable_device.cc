#define EIGEN_USE_THREADS  // before Eigen, for its devices with several threads

#include "native/tf/servable_device.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "native/base/clock.h"
#include "native/memory/thread_usage.h"
#include "native/tf/core_share.h"
#include "native/tf/kernel_shapes.h"
#include "native/tf/run_executor.h"
#include "native/tf/run_memory_limits.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session_options.h"
#include "unsupported/Eigen/CXX11/Tensor"
#include "xla/tsl/platform/threadpool.h"

namespace millpond::tf {
namespace {

constexpr char kDeviceType[] = "CPU";

thread_local RunScope* current_scope = nullptr;

std::atomic<uint64_t> device_count{0};

}  // namespace

// The part of a run that the allocator and the device use.
class RunMemory {
 public:
  static const tensor::RunContext& ContextOf(const RunScope& scope) { return scope.run_; }
  // Returns true if a watched kernel need not be computed. Memory that the watch keeps is not
  // charged to the run.
  static bool IsDone(RunScope* scope, const tensorflow::OpKernel& kernel,
                     tensorflow::OpKernelContext* context) {
    if (scope->writes_ == nullptr) return false;
    const int64_t before_bytes = memory::ThreadUsageBytes();
    const bool is_done = scope->writes_->IsDone(kernel, scope->run_.may_write, context);
    scope->Forget(memory::ThreadUsageBytes() - before_bytes);
    return is_done;
  }
  static bool ChecksShapes(const RunScope& scope) { return scope.checks_shapes_; }
  static bool IsLimited(const RunScope& scope) {
    return scope.usage_bytes_max_ != RunScope::kNoLimit;
  }
  static void SetNeverFails(RunScope* scope, bool never_fails) {
    scope->never_fails_ = never_fails;
  }
  // Returns true if the run may allocate `bytes` more.
  static bool Allows(RunScope* scope, size_t bytes) {
    if (!IsLimited(*scope) || scope->never_fails_) return true;
    const int64_t left_bytes =
        scope->usage_bytes_max_ - memory::ThreadUsageBytes() - scope->pool_usage_.bytes();
    if (left_bytes >= 0 && bytes <= static_cast<size_t>(left_bytes)) return true;
    return scope->Grow(static_cast<int64_t>(std::min<size_t>(bytes, INT64_MAX / 2)));
  }
};

namespace {

// Returns true if the kernel does not look if an allocation failed.
bool IgnoresFailedAllocations(const tensorflow::OpKernel& kernel) {
  return absl::StartsWith(kernel.type_string_view(), "_Mkl");
}

// Returns false only if the outputs of a product of two matrices are small, whatever is transposed.
// Most kernels of small models are such products, and a shape function costs more than some of
// them.
bool MayHaveLargeOutputs(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context) {
  constexpr int64_t kSmallElements = int64_t{1} << 22U;
  if (!absl::StrContains(kernel.type_string_view(), "MatMul") || context->num_inputs() < 2) {
    return true;
  }
  int64_t elements = 1;
  for (int i = 0; i < 2; ++i) {
    const tensorflow::TensorShape& shape = context->input(i).shape();
    if (shape.dims() != 2) return true;
    const int64_t size = std::max(shape.dim_size(0), shape.dim_size(1));
    if (__builtin_mul_overflow(elements, size, &elements)) return true;
  }
  return elements > kSmallElements;
}

// Computes without a failed allocation while it lives, if the kernel needs that.
class UnfailingAllocations {
 public:
  explicit UnfailingAllocations(const tensorflow::OpKernel& kernel)
      : scope_(current_scope != nullptr && IgnoresFailedAllocations(kernel) ? current_scope
                                                                            : nullptr) {
    if (scope_ != nullptr) RunMemory::SetNeverFails(scope_, true);
  }
  ~UnfailingAllocations() {
    if (scope_ != nullptr) RunMemory::SetNeverFails(scope_, false);
  }
  UnfailingAllocations(const UnfailingAllocations&) = delete;
  UnfailingAllocations& operator=(const UnfailingAllocations&) = delete;

 private:
  RunScope* const scope_;
};

// Returns OK if the run may compute the kernel. Runs before every kernel of a graph, and takes a
// few nanoseconds for a usual run.
absl::Status CheckMayGoOn(const tensorflow::OpKernel& kernel, uint64_t device_id,
                          tensorflow::OpKernelContext* context) {
  if (current_scope == nullptr) return absl::OkStatus();
  CoreShareScope::GiveWay();
  // Counts strings and other objects of kernels, because these do not come from the device's
  // allocator.
  if (!RunMemory::Allows(current_scope, 0)) {
    return absl::ResourceExhaustedError("the run's kernels have allocated more than their limit");
  }
  const bool asks_ahead = RunMemory::IsLimited(*current_scope) &&
                          IgnoresFailedAllocations(kernel) && MayHaveLargeOutputs(kernel, context);
  if (asks_ahead) {
    const int64_t bytes = InferredOutputBytes(kernel, context);
    if (!RunMemory::Allows(current_scope, static_cast<size_t>(bytes))) {
      return absl::ResourceExhaustedError("the outputs of the next kernel take " +
                                          std::to_string(bytes) + " bytes");
    }
  }
  const tensor::RunContext* const run = &RunMemory::ContextOf(*current_scope);
  if (run->is_cancelled != nullptr && run->is_cancelled->load(std::memory_order_relaxed)) {
    return absl::CancelledError("the run was cancelled");
  }
  if (run->deadline_ns != tensor::RunContext::kNoDeadline &&
      base::CoarseMonotonicNs() >= run->deadline_ns) {
    return absl::DeadlineExceededError("the request's deadline passed during its run");
  }
  return RunMemory::ChecksShapes(*current_scope) ? CheckKernelShapes(kernel, device_id, context)
                                                 : absl::OkStatus();
}

}  // namespace

RunScope::RunScope(const tensor::RunContext& run, bool checks_shapes, int64_t memory_bytes_max,
                   KernelWatch* writes, base::ByteBudget* all_runs)
    : run_(run),
      checks_shapes_(checks_shapes),
      memory_bytes_max_(memory_bytes_max),
      writes_(writes),
      // The runs of a load are not charged, because clients must not be able to fail a load.
      charge_(run.budget == nullptr ? nullptr : all_runs),
      pool_usage_(memory_bytes_max != kNoLimit && memory::IsThreadUsageCounted()),
      outer_(current_scope) {
  if (memory_bytes_max != kNoLimit && memory::IsThreadUsageCounted()) {
    begin_bytes_ = memory::ThreadUsageBytes();
    const bool is_charged = charge_.budget() != nullptr;
    usage_bytes_max_ =
        begin_bytes_ + (is_charged ? std::min(kFreeBytes, memory_bytes_max) : memory_bytes_max);
  }
  current_scope = this;
}

RunScope::~RunScope() { current_scope = outer_; }

int64_t RunScope::UsageBytes() const {
  return memory::ThreadUsageBytes() + pool_usage_.bytes() - begin_bytes_;
}

void RunScope::Forget(int64_t bytes) {
  if (usage_bytes_max_ == kNoLimit) return;
  begin_bytes_ += bytes;
  usage_bytes_max_ += bytes;
}

// Charges an eighth more than is asked for, so that a run that grows in small steps does not write
// to the budget's cache line in each step.
bool RunScope::Grow(int64_t bytes) {
  const int64_t wanted_bytes = UsageBytes() + bytes;
  if (wanted_bytes > memory_bytes_max_) {
    refusal_ = Refusal::kOfRun;
    return false;
  }
  const int64_t charged_bytes =
      std::min(memory_bytes_max_, wanted_bytes + std::max(kFreeBytes, wanted_bytes / 8));
  if (!charge_.Resize(charged_bytes)) {
    refusal_ = Refusal::kOfAllRuns;
    return false;
  }
  // The pool's part is counted beside the thread's.
  usage_bytes_max_ = begin_bytes_ + charged_bytes;
  return true;
}

std::shared_ptr<const base::ByteBudget::Share> RunScope::TakeCharge() {
  if (charge_.bytes() == 0) return nullptr;
  const int64_t left_bytes = std::clamp<int64_t>(UsageBytes(), 0, charge_.bytes());
  charge_.Resize(left_bytes);
  if (left_bytes < kFreeBytes) return nullptr;
  return std::make_shared<const base::ByteBudget::Share>(std::move(charge_));
}

int64_t RunScope::CurrentDeadlineNs() {
  return current_scope == nullptr ? tensor::RunContext::kNoDeadline
                                  : current_scope->run_.deadline_ns;
}

base::Status RunScope::Explain(base::Status ran) const {
  if (refusal_ == Refusal::kNone || ran.ok()) return ran;
  CountRunEndedByMemory();
  if (refusal_ == Refusal::kOfAllRuns) {
    return {base::Code::kResourceExhausted,
            "no memory is left for the run: all runs under way take " +
                std::to_string(charge_.budget()->in_use_bytes()) + " of the " +
                std::to_string(charge_.budget()->limit_bytes()) +
                " bytes that all together may (a quarter of the memory that was free at the start, "
                "and at least twice --run_memory_bytes); try again later, send a smaller request, "
                "or use another server: " +
                ran.message()};
  }
  return {base::Code::kResourceExhausted,
          "the run needed more than the " + std::to_string(memory_bytes_max_) +
              " bytes that --run_memory_bytes allows; send a smaller request, or raise the flag: " +
              ran.message()};
}

void* RunAllocator::AllocateRaw(size_t alignment, size_t num_bytes) {
  if (current_scope != nullptr && !RunMemory::Allows(current_scope, num_bytes)) return nullptr;
  return requests_->AllocateRaw(alignment, num_bytes);
}

// A pool without threads of its own: a task runs at once on the thread that schedules it.
class CallingThreadPool final : public tsl::thread::ThreadPoolInterface {
 public:
  void Schedule(std::function<void()> task) override { task(); }
  int NumThreads() const override { return 1; }
  int CurrentThreadId() const override { return 0; }
};

// A pool of TensorFlow behind a RunPool, in the forms that kernels use, for each share of the cores
// (CoreShareScope). A run whose share is one core uses its own thread.
struct RunWorkers {
  RunWorkers(const tensorflow::DeviceBase::CpuWorkerThreads& stock, Eigen::Allocator* allocator)
      : run_pool(stock.workers->AsEigenThreadPool()), pool(&run_pool), one(&calling_thread) {
    for (int count = 1; count <= stock.num_threads; ++count) {
      workers.push_back({count, count == 1 ? &one : &pool});
      // Some kernels, like the product of matrices, schedule a task and wait for it even if their
      // device has one thread. So such a device needs the calling thread as its pool.
      devices.push_back(std::make_unique<Eigen::ThreadPoolDevice>(
          workers.back().workers->AsEigenThreadPool(), count, allocator));
    }
  }
  size_t IndexOfShare() const {
    return static_cast<size_t>(std::min(CurrentCoreShare(), static_cast<int>(workers.size())) - 1);
  }

  RunPool run_pool;
  CallingThreadPool calling_thread;
  tsl::thread::ThreadPool pool;
  tsl::thread::ThreadPool one;
  std::vector<tensorflow::DeviceBase::CpuWorkerThreads> workers;  // with 1, 2, ... threads
  std::vector<std::unique_ptr<Eigen::ThreadPoolDevice>> devices;  // the same
};

namespace {

// Returns the workers over the pool of `stock`, which TensorFlow makes once for all devices. Never
// freed: objects that a model leaves in its device's resources may use them to the end.
const RunWorkers* WorkersOver(const tensorflow::DeviceBase::CpuWorkerThreads& stock,
                              Eigen::Allocator* allocator) {
  static auto* const mutex = new std::mutex;
  static auto* const made = new std::map<tsl::thread::ThreadPool*, std::unique_ptr<RunWorkers>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  std::unique_ptr<RunWorkers>& workers = (*made)[stock.workers];
  if (workers == nullptr) workers = std::make_unique<RunWorkers>(stock, allocator);
  return workers.get();
}

}  // namespace

ServableDevice::ServableDevice(const tensorflow::SessionOptions& options, const std::string& name,
                               tsl::Allocator* requests,
                               std::shared_ptr<ParameterMemory> parameters)
    : ThreadPoolDevice(options, name, tensorflow::Bytes(256 << 20), tensorflow::DeviceLocality(),
                       requests),
      id_(++device_count),
      requests_(requests),
      parameters_(std::move(parameters)),
      workers_(WorkersOver(*ThreadPoolDevice::tensorflow_cpu_worker_threads(),
                           ThreadPoolDevice::eigen_cpu_device()->allocator())) {}

const tensorflow::DeviceBase::CpuWorkerThreads* ServableDevice::tensorflow_cpu_worker_threads()
    const {
  return &workers_->workers[workers_->IndexOfShare()];
}

const Eigen::ThreadPoolDevice* ServableDevice::eigen_cpu_device() {
  return workers_->devices[workers_->IndexOfShare()].get();
}

tsl::Allocator* ServableDevice::GetAllocator(tensorflow::AllocatorAttributes) {
  const bool is_loading = parameters_ != nullptr && parameters_->is_loading();
  return is_loading ? parameters_->allocator() : requests_;
}

absl::Status ServableDevice::MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                                 tensorflow::AllocatorAttributes attributes,
                                                 tensorflow::Tensor* tensor) {
  tensorflow::Tensor parsed;
  if (!parsed.FromProto(GetAllocator(attributes), proto)) {
    return absl::InvalidArgumentError(
        "a constant of the graph does not parse, or no "
        "memory is left for it: dtype " +
        tensorflow::DataTypeString(proto.dtype()));
  }
  *tensor = std::move(parsed);
  return absl::OkStatus();
}

void ServableDevice::Compute(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context) {
  const KernelInOrder in_order(*kernel, context);
  const absl::Status may_go_on = CheckMayGoOn(*kernel, id_, context);
  if (!may_go_on.ok()) return context->SetStatus(may_go_on);
  if (current_scope != nullptr && RunMemory::IsDone(current_scope, *kernel, context)) return;
  if (!context->status().ok()) return;
  const UnfailingAllocations unfailing(*kernel);
  ThreadPoolDevice::Compute(kernel, context);
}

void ServableDevice::ComputeAsync(tensorflow::AsyncOpKernel* kernel,
                                  tensorflow::OpKernelContext* context,
                                  tensorflow::AsyncOpKernel::DoneCallback done) {
  const absl::Status may_go_on = CheckMayGoOn(*kernel, id_, context);
  if (!may_go_on.ok()) {
    context->SetStatus(may_go_on);
    return done();
  }
  const bool is_done =
      current_scope != nullptr && RunMemory::IsDone(current_scope, *kernel, context);
  if (is_done || !context->status().ok()) return done();
  ThreadPoolDevice::ComputeAsync(kernel, context, std::move(done));
}

absl::Status ServableDeviceFactory::ListPhysicalDevices(std::vector<std::string>* devices) {
  devices->push_back("/physical_device:CPU:0");
  return absl::OkStatus();
}

absl::Status ServableDeviceFactory::CreateDevices(
    const tensorflow::SessionOptions& options, const std::string& name_prefix,
    std::vector<std::unique_ptr<tensorflow::Device>>* devices) {
  const auto& counts = options.config.device_count();
  const auto asked = counts.find(kDeviceType);
  const int count = asked == counts.end() ? 1 : asked->second;
  for (int i = 0; i < count; ++i) {
    const std::string name = name_prefix + "/device:CPU:" + std::to_string(i);
    devices->push_back(std::make_unique<ServableDevice>(options, name, requests_,
                                                        ParameterMemoryScope::Current()));
  }
  return absl::OkStatus();
}

}  // namespace millpond::tf
