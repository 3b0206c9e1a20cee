#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_buffer.h"
#include "native/pjrt/executable.h"
#include "native/pjrt/packed_tensors.h"

namespace millpond::pjrt {

// Makes tables of one shape, in an accelerator's memory, of tables that are there and differ in
// some rows: only those rows are sent. Each step sends so many rows as a program takes, with their
// ids, in one block. The first step copies the table on the accelerator, because others use it, and
// the next ones write over its result.
//
// Thread: the accelerator's thread of uploads. The accelerator outlives it.
class RowScatter {
 public:
  // The rows of the largest step, if a block then has no more than kBlockBytes, and of the smallest
  // one. Each size is so many times the next smaller one.
  static constexpr int64_t kLargeRows = 8192;
  static constexpr int64_t kSmallRows = 128;
  static constexpr int64_t kRatio = 4;
  static constexpr int64_t kBlockBytes = int64_t{4} << 20U;

  // Returns the numbers of rows that the programs for a table should have, ascending. None if its
  // type is one that XLA may change on the way, or if it has too few rows, or too many.
  static std::vector<int64_t> SizesFor(const HostTensor& tensor);

  // The place of a step's ids, which are of 32 bits, and of the rows after them in its block.
  static PackedTensors BlockOf(int64_t rows, int64_t row_bytes);

  // `programs` are of SizesFor, by their rows. Each takes a block and the table, and returns the
  // table with the rows of the block; it leaves out an id that the table has not.
  explicit RowScatter(std::map<int64_t, std::shared_ptr<const Executable>> programs)
      : programs_(std::move(programs)) {}

  // Returns the bytes that are sent for `row_count` rows of the table.
  int64_t BytesFor(int64_t row_count, const HostTensor& tensor) const;
  // A scatter under way. `source` and the elements of the tensor must stay until its end.
  class Steps;

  // Starts to make a copy of `source` that has the `rows` of `tensor`, 1 or more, ascending. The
  // last steps are still under way afterwards. `source` stays as it is. Charges `model` the blocks
  // while they are there. Returns RESOURCE_EXHAUSTED if there is no memory for them, and the
  // plugin's errors. Returns UNAVAILABLE if the device is gone: `source` must be kept for ever
  // then.
  base::StatusOr<std::shared_ptr<Steps>> Start(const Accelerator& accelerator,
                                               const std::string& model, const DeviceBuffer& source,
                                               const std::vector<int64_t>& rows,
                                               const HostTensor& tensor) const;
  // Waits for the end, and returns the table, which is complete, or an error as Start does.
  static base::StatusOr<DeviceBuffer> Finish(std::shared_ptr<Steps> steps);

  // Runs each program that has not run yet, at the driver's pace, so that a delta's scatter is not
  // the first run. Each writes no row, and copies `source`, which is a table like `tensor`; the
  // copy is charged to `model` while it is there. Leaves out programs for which there is no memory,
  // and those that fail. Returns UNAVAILABLE if the device is gone, as Start does.
  base::Status WarmUp(const Accelerator& accelerator, const std::string& model,
                      const DeviceBuffer& source, const HostTensor& tensor) const;

 private:
  static base::Status Ended(std::shared_ptr<Steps> steps, base::Status failed);
  // Returns the size of the next step if `row_count` rows are left: the largest that they fill to
  // the half. A step has its own cost, and a row in vain costs little.
  int64_t SizeFor(int64_t row_count) const;

  const std::map<int64_t, std::shared_ptr<const Executable>> programs_;
};

// The scatters of a version on an accelerator, by the shapes of its tables.
class RowScatters {
 public:
  using Shape = std::pair<PJRT_Buffer_Type, std::vector<int64_t>>;

  void Add(const HostTensor& tensor, std::unique_ptr<RowScatter> scatter) {
    scatters_[{tensor.type, tensor.dims}] = std::move(scatter);
  }
  // Returns null if there is none for the tensor's shape.
  const RowScatter* Find(const HostTensor& tensor) const {
    const auto found = scatters_.find({tensor.type, tensor.dims});
    return found == scatters_.end() ? nullptr : found->second.get();
  }

 private:
  std::map<Shape, std::unique_ptr<RowScatter>> scatters_;
};

}  // namespace millpond::pjrt
