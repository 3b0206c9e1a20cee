#include "native/tf/servable_device.h"

#include <utility>

#include "native/base/clock.h"
#include "native/tf/kernel_shapes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session_options.h"

namespace millpond::tf {
namespace {

constexpr char kDeviceType[] = "CPU";

thread_local const RunContext* current_run = nullptr;
thread_local bool checks_kernel_shapes = false;

// OK if the run may compute the kernel. A few nanoseconds for a usual run: it stands before every
// kernel of a graph.
absl::Status CheckMayGoOn(const tensorflow::OpKernel& kernel,
                          tensorflow::OpKernelContext* context) {
  const RunContext* run = current_run;
  if (run == nullptr) return absl::OkStatus();
  if (run->is_cancelled != nullptr && run->is_cancelled->load(std::memory_order_relaxed)) {
    return absl::CancelledError("the run was cancelled");
  }
  if (run->deadline_ns != RunContext::kNoDeadline &&
      base::CoarseMonotonicNs() >= run->deadline_ns) {
    return absl::DeadlineExceededError("the request's deadline passed while it ran");
  }
  return checks_kernel_shapes ? CheckKernelShapes(kernel, context) : absl::OkStatus();
}

}  // namespace

RunScope::RunScope(const RunContext& run, bool checks_shapes)
    : outer_(current_run), outer_checks_shapes_(checks_kernel_shapes) {
  current_run = &run;
  checks_kernel_shapes = checks_shapes;
}

RunScope::~RunScope() {
  current_run = outer_;
  checks_kernel_shapes = outer_checks_shapes_;
}

ServableDevice::ServableDevice(const tensorflow::SessionOptions& options, const std::string& name,
                               tsl::Allocator* requests,
                               std::shared_ptr<ParameterMemory> parameters)
    : ThreadPoolDevice(options, name, tensorflow::Bytes(256 << 20), tensorflow::DeviceLocality(),
                       requests),
      requests_(requests),
      parameters_(std::move(parameters)) {}

tsl::Allocator* ServableDevice::GetAllocator(tensorflow::AllocatorAttributes) {
  return parameters_ == nullptr ? requests_ : parameters_->allocator();
}

absl::Status ServableDevice::MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                                 tensorflow::AllocatorAttributes attributes,
                                                 tensorflow::Tensor* tensor) {
  tensorflow::Tensor parsed;
  if (!parsed.FromProto(GetAllocator(attributes), proto)) {
    return absl::InvalidArgumentError(
        "a constant of the graph does not parse, or there is no "
        "memory for it: dtype " +
        tensorflow::DataTypeString(proto.dtype()));
  }
  *tensor = std::move(parsed);
  return absl::OkStatus();
}

void ServableDevice::Compute(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context) {
  const absl::Status may_go_on = CheckMayGoOn(*kernel, context);
  if (!may_go_on.ok()) return context->SetStatus(may_go_on);
  ThreadPoolDevice::Compute(kernel, context);
}

void ServableDevice::ComputeAsync(tensorflow::AsyncOpKernel* kernel,
                                  tensorflow::OpKernelContext* context,
                                  tensorflow::AsyncOpKernel::DoneCallback done) {
  const absl::Status may_go_on = CheckMayGoOn(*kernel, context);
  if (!may_go_on.ok()) {
    context->SetStatus(may_go_on);
    return done();
  }
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
