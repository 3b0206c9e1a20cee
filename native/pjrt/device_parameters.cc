#include "native/pjrt/device_parameters.h"

#include <algorithm>
#include <utility>

#include "native/base/clock.h"

namespace millpond::pjrt {
namespace {

int64_t BytesOf(const std::vector<HostTensor>& tensors) {
  int64_t bytes = 0;
  for (const HostTensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.bytes);
  return bytes;
}

}  // namespace

DeviceParameters::DeviceParameters(std::shared_ptr<const Accelerator> accelerator,
                                   std::string model, std::vector<HostTensor> tensors, bool is_low,
                                   int64_t version)
    : accelerator_(std::move(accelerator)),
      model_(std::move(model)),
      tensors_(std::move(tensors)),
      is_low_(is_low),
      bytes_(BytesOf(tensors_)),
      crash_row_(model_, version) {}

DeviceParameters::~DeviceParameters() {
  accelerator_->uploads().Forget(this);
  accelerator_->memory().Forget(this);
}

// The upload of a load, which waits for its result.
class DeviceParameters::FirstUpload final : public DriverThread::Task {
 public:
  explicit FirstUpload(DeviceParameters* parameters) : parameters_(parameters) {}
  base::Status TakeResult() { return std::move(result_); }

 private:
  void Run() override { result_ = parameters_->UploadNow(/*is_of_load=*/true); }

  DeviceParameters* const parameters_;
  base::Status result_;
};

base::Status DeviceParameters::Upload(int64_t run_bytes, RowScatters scatters) {
  run_bytes_ = run_bytes;
  scatters_ = std::move(scatters);
  FirstUpload upload(this);
  if (accelerator_->uploads().Perform(&upload)) return upload.TakeResult();
  return {base::Code::kCancelled, "the accelerator is closed"};
}

void DeviceParameters::Run() {
  const auto running = base::CrashScope::Running(crash_row_);
  {
    // A Pin during a long upload has asked again.
    const std::lock_guard lock(mutex_);
    if (copy_ != nullptr) return;
  }
  base::Status uploaded = UploadNow(/*is_of_load=*/false);
  // There may be no room yet; the next Pin after a while asks again.
  if (uploaded.ok() || uploaded.code() == base::Code::kResourceExhausted) return;
  accelerator_->NoteFailure();
  const std::lock_guard lock(mutex_);
  upload_error_ = std::move(uploaded);
}

// On the thread of the uploads.
base::Status DeviceParameters::UploadNow(bool is_of_load) {
  const int64_t began_ns = base::MonotonicNs();
  ParameterUpload upload(*accelerator_, tensors_, scatters_);
  auto made = upload.Make({model_, run_bytes_, this, began_ns, is_of_load});
  if (!made.ok()) return made.status();
  std::shared_ptr<const ParameterCopy> copy = std::move(made.value());
  const int64_t now_ns = base::MonotonicNs();
  upload_count_.fetch_add(1, std::memory_order_relaxed);
  upload_ns_.fetch_add(now_ns - began_ns, std::memory_order_relaxed);
  uploaded_bytes_.fetch_add(upload.sent_bytes(), std::memory_order_relaxed);
  kept_bytes_.fetch_add(std::max<int64_t>(bytes_ - upload.sent_bytes(), 0),
                        std::memory_order_relaxed);
  unpinned_bytes_.fetch_add(upload.unpinned_bytes(), std::memory_order_relaxed);
  if (!upload.full_reason().empty()) full_count_.fetch_add(1, std::memory_order_relaxed);
  last_use_ns_.store(now_ns, std::memory_order_relaxed);
  accelerator_->NoteSuccess();
  // A copy that was there before is freed without the lock: that takes the lock of DeviceMemory.
  const std::lock_guard lock(mutex_);
  std::swap(copy_, copy);
  if (!upload.full_reason().empty()) full_reason_ = upload.full_reason();
  return {};
}

std::shared_ptr<const ParameterCopy> DeviceParameters::Pin() {
  const int64_t now_ns = base::CoarseMonotonicNs();
  {
    const std::lock_guard lock(mutex_);
    if (copy_ != nullptr) {
      last_use_ns_.store(now_ns, std::memory_order_relaxed);
      return copy_;
    }
    if (!upload_error_.ok()) return nullptr;
  }
  AskForCopy(now_ns);
  return nullptr;
}

bool DeviceParameters::IsThere() const {
  const std::lock_guard lock(mutex_);
  return copy_ != nullptr;
}

base::Status DeviceParameters::upload_error() const {
  const std::lock_guard lock(mutex_);
  return upload_error_;
}

void DeviceParameters::AskForCopy(int64_t now_ns) {
  int64_t next_try_ns = next_try_ns_.load(std::memory_order_relaxed);
  if (now_ns < next_try_ns ||
      !next_try_ns_.compare_exchange_strong(next_try_ns, now_ns + kRetryNs)) {
    return;
  }
  accelerator_->uploads().Request(this);
}

bool DeviceParameters::IsInUse() const {
  const std::lock_guard lock(mutex_);
  return copy_.use_count() > 1;
}

std::shared_ptr<const void> DeviceParameters::TakeOut() {
  const std::lock_guard lock(mutex_);
  // Only Pin makes further holders, under this lock.
  if (copy_ == nullptr || copy_.use_count() > 1) return nullptr;
  drop_count_.fetch_add(1, std::memory_order_relaxed);
  next_try_ns_.store(0, std::memory_order_relaxed);
  return std::exchange(copy_, nullptr);
}

UploadFigures DeviceParameters::figures() const {
  UploadFigures figures;
  figures.device = accelerator_->name();
  figures.upload_count = upload_count_.load(std::memory_order_relaxed);
  figures.upload_ns = upload_ns_.load(std::memory_order_relaxed);
  figures.uploaded_bytes = uploaded_bytes_.load(std::memory_order_relaxed);
  figures.unpinned_bytes = unpinned_bytes_.load(std::memory_order_relaxed);
  figures.drop_count = drop_count_.load(std::memory_order_relaxed);
  figures.kept_bytes = kept_bytes_.load(std::memory_order_relaxed);
  figures.full_count = full_count_.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  figures.full_reason = full_reason_;
  figures.resident_bytes = copy_ == nullptr ? 0 : bytes_;
  return figures;
}

}  // namespace millpond::pjrt
