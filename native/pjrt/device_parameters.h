#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "native/base/crash_page.h"
#include "native/base/status.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_memory.h"
#include "native/pjrt/driver_thread.h"
#include "native/pjrt/parameter_upload.h"

namespace millpond::pjrt {

// The uploads of a version's parameters to one accelerator since its load.
struct UploadFigures {
  std::string device;          // the accelerator's name
  int64_t resident_bytes = 0;  // on the accelerator now
  int64_t upload_count = 0;
  int64_t upload_ns = 0;       // of all uploads together
  int64_t uploaded_bytes = 0;  // that were sent
  int64_t unpinned_bytes = 0;  // of these, from memory that was not pinned
  int64_t drop_count = 0;      // the times that the copy was given up for another version's
  int64_t kept_bytes = 0;      // of all uploads: that were on the accelerator already
  int64_t full_count = 0;      // uploads that sent tables with changed rows as a whole
  std::string full_reason;     // of the last one of these; "" if there was none
};

// The parameters of a version, which are in the accelerator's memory as long as there is room, and
// always in this process's memory. If the copy is dropped for another version's, the next run asks
// for it, and the upload waits or is under way when Pin returns. An upload takes the time of the
// link: 20 ms a GB at 50 GB/s. A run that finds no copy is for the CPU.
//
// Thread: any; Upload by one at a time. The accelerator's client outlives it.
class DeviceParameters final : private DeviceMemory::Owner, private DriverThread::Task {
 public:
  // The pause after an upload for which there was no room: a version with requests keeps its place
  // for a second.
  static constexpr int64_t kRetryNs = 1'000'000'000;

  // `tensors` are the parameters of a version of `model`, whose elements must stay as they are for
  // as long as this lives. `is_low`: the model's runs have low priority. A crash in an upload that
  // a run has asked for is one of `version`.
  DeviceParameters(std::shared_ptr<const Accelerator> accelerator, std::string model,
                   std::vector<HostTensor> tensors, bool is_low = false, int64_t version = 0);
  ~DeviceParameters();
  DeviceParameters(const DeviceParameters&) = delete;
  DeviceParameters& operator=(const DeviceParameters&) = delete;

  // Copies the parameters to the accelerator, and waits until they are there. `run_bytes` is the
  // memory of the largest run with them. `scatters` are of the shapes of tables of which only rows
  // are sent (ParameterUpload). Returns RESOURCE_EXHAUSTED if they do not fit; then it leaves
  // nothing there, and a later Pin asks again.
  base::Status Upload(int64_t run_bytes, RowScatters scatters = {});
  // Returns the copy, which is not dropped as long as the caller has it. Null if there is none now.
  std::shared_ptr<const ParameterCopy> Pin();
  // True if the copy is there now. Unlike Pin, it asks for nothing.
  bool IsThere() const;
  // The error of an upload that a Pin asked for, after which no Pin asks again. OK if there was
  // none but RESOURCE_EXHAUSTED.
  base::Status upload_error() const;

  UploadFigures figures() const;
  const std::string& model() const { return model_; }
  bool is_low() const { return is_low_; }
  // The bytes of all parameters, wherever they are.
  int64_t bytes() const { return bytes_; }
  const std::shared_ptr<const Accelerator>& accelerator() const { return accelerator_; }

 private:
  class FirstUpload;

  int64_t last_use_ns() const override { return last_use_ns_.load(std::memory_order_relaxed); }
  bool IsInUse() const override;
  std::shared_ptr<const void> TakeOut() override;
  void Run() override;

  base::Status UploadNow(bool is_of_load);
  void AskForCopy(int64_t now_ns);

  const std::shared_ptr<const Accelerator> accelerator_;
  const std::string model_;
  const std::vector<HostTensor> tensors_;
  const bool is_low_;
  const int64_t bytes_;
  const base::CrashRow crash_row_;
  // Both set by the first Upload, before requests.
  int64_t run_bytes_ = 0;
  RowScatters scatters_;
  std::atomic<int64_t> last_use_ns_{0};
  std::atomic<int64_t> next_try_ns_{0};
  std::atomic<int64_t> upload_count_{0};
  std::atomic<int64_t> upload_ns_{0};
  std::atomic<int64_t> uploaded_bytes_{0};
  std::atomic<int64_t> kept_bytes_{0};
  std::atomic<int64_t> unpinned_bytes_{0};
  std::atomic<int64_t> full_count_{0};
  std::atomic<int64_t> drop_count_{0};
  mutable std::mutex mutex_;  // held for a copy of the pointer; after the lock of DeviceMemory
  // All guarded by the mutex.
  std::shared_ptr<const ParameterCopy> copy_;
  base::Status upload_error_;
  std::string full_reason_;
};

}  // namespace millpond::pjrt
