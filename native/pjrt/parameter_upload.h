#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_buffer.h"
#include "native/pjrt/device_memory.h"
#include "native/pjrt/device_tables.h"
#include "native/pjrt/row_scatter.h"

namespace millpond::pjrt {

// The parameters of a version in an accelerator's memory. Its destructor frees those that no other
// copy has. Always owned by shared pointers.
class ParameterCopy : public std::enable_shared_from_this<ParameterCopy> {
 public:
  using Buffer = std::shared_ptr<const DeviceBuffer>;

  ParameterCopy(DeviceMemory::CopyCharge charge, std::vector<Buffer> buffers)
      : charge_(std::move(charge)), buffers_(std::move(buffers)) {}

  PJRT_Buffer* buffer(size_t index) const { return buffers_[index]->get(); }

 private:
  const DeviceMemory::CopyCharge charge_;  // returned when the buffers are free
  const std::vector<Buffer> buffers_;
};

// The version that an upload is for.
struct UploadWish {
  std::string model;
  int64_t run_bytes = 0;  // the memory of the largest run with the parameters
  DeviceMemory::Owner* owner = nullptr;
  int64_t now_ns = 0;
  bool is_of_load = true;  // false: parameters that were dropped come back
};

// One upload of a version's parameters to an accelerator. A table that is there already, as a part
// of another version's copy, is shared and not sent. If it differs in some rows, it is copied on
// the accelerator, and only those rows are sent. A table is never written to once a copy has it, so
// nothing that fails here leaves a wrong table, and the table is then sent as a whole.
//
// Thread: the accelerator's thread of uploads. Borrows all that it is made of.
class ParameterUpload {
 public:
  // The most bytes of an upload that are under way at once, and one tensor, if the plugin copies
  // only whole tensors: 32 MiB take 0.6 ms of a link of 52 GB/s. For others: ChunkedUpload.
  static constexpr int64_t kUnderWayBytes = int64_t{32} << 20U;

  ParameterUpload(const Accelerator& accelerator, const std::vector<HostTensor>& parameters,
                  const RowScatters& scatters);

  // Makes the copy, and waits until it is complete. Returns RESOURCE_EXHAUSTED if it does not fit,
  // and the plugin's errors; then it leaves nothing there. Returns UNAVAILABLE if the device is
  // gone; what it has is kept for ever then.
  base::StatusOr<std::shared_ptr<const ParameterCopy>> Make(const UploadWish& wish);

  // The bytes that were sent, and those of them that came from memory that was not pinned.
  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t unpinned_bytes() const { return unpinned_bytes_; }
  // Why tables with changed rows were sent as a whole, with the first one's name; "" if none was.
  const std::string& full_reason() const { return full_reason_; }

 private:
  // The source and the charge of one parameter.
  struct Plan {
    std::optional<DeviceTables::Found> found;
    const RowScatter* scatter = nullptr;  // by which its rows are written; null: it is shared
    SharedPart part;  // by which it is charged; without an id: with the copy's own bytes
  };

  // The index of a parameter, and the steps that make it.
  using ScatterUnderWay = std::pair<size_t, std::shared_ptr<RowScatter::Steps>>;

  void MakePlans(const std::string& model);
  void PlanRows(size_t index);
  void SendInFull(size_t index, const std::string& reason);
  std::vector<SharedPart> Parts(bool with_sources) const;
  base::StatusOr<DeviceMemory::CopyCharge> Charge(const UploadWish& wish);
  void Scatter(const std::string& model);
  void WarmUpScatters(const std::string& model);
  base::Status KeepAll(DeviceMemory::CopyCharge charge);
  base::StatusOr<std::shared_ptr<RowScatter::Steps>> StartScatter(size_t index,
                                                                  const std::string& model);
  void FinishScatter(const ScatterUnderWay& scatter);
  void GiveUpScatter(size_t index, const base::Status& failed);
  base::Status Send();
  base::Status SendChunks();
  base::Status SendTensors();
  void AddTables(const std::string& model) const;

  const Accelerator& accelerator_;
  const std::vector<HostTensor>& parameters_;
  const RowScatters& scatters_;
  std::vector<Plan> plans_;                     // of each parameter, as the next
  std::vector<ParameterCopy::Buffer> buffers_;  // null as long as it is to be sent
  int64_t sent_bytes_ = 0;
  int64_t unpinned_bytes_ = 0;
  std::string full_reason_;
  bool is_abandoned_ = false;  // by a device that is gone
  base::Status lost_;          // the error that shows it
};

}  // namespace millpond::pjrt
