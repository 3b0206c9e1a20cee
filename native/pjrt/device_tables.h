#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "native/pjrt/device_buffer.h"
#include "native/pjrt/device_memory.h"
#include "native/pjrt/table_contents.h"

namespace millpond::pjrt {

// A parameter in an accelerator's memory, which copies of several versions may have. Nothing writes
// to it any more.
struct DeviceTable {
  std::string model;
  std::shared_ptr<const TableContents> contents;
  PJRT_Buffer_Type type = PJRT_Buffer_Type_INVALID;
  std::vector<int64_t> dims;
  SharedPart part;  // by which its memory is charged
  std::shared_ptr<const DeviceBuffer> buffer;
};

// The tables in the memory of one accelerator, as long as a copy of parameters has them.
//
// Thread: any. Owner: the Accelerator.
class DeviceTables {
 public:
  // A table that is there. It stays as it is as long as `buffer` lives.
  struct Found {
    SharedPart part;
    std::shared_ptr<const DeviceBuffer> buffer;
    std::vector<int64_t> rows;  // that may differ from the wanted ones, ascending
  };

  DeviceTables() = default;
  DeviceTables(const DeviceTables&) = delete;
  DeviceTables& operator=(const DeviceTables&) = delete;

  // Adds a table of a copy that is complete.
  void Add(DeviceTable table);
  // Finds a table of `model` with the base and the shape of `tensor`, whose contents are known. Of
  // several it takes the one of which the fewest rows may differ.
  std::optional<Found> Find(const std::string& model, const HostTensor& tensor) const;

 private:
  struct Entry {
    DeviceTable table;  // without its buffer
    std::weak_ptr<const DeviceBuffer> buffer;
  };

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // guarded by the mutex
};

}  // namespace millpond::pjrt
