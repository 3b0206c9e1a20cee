#include "native/pjrt/row_scatter.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <optional>

#include "native/pjrt/copies.h"
#include "native/pjrt/staging.h"

namespace millpond::pjrt {
namespace {

constexpr int64_t kIdBytes = sizeof(int32_t);
constexpr size_t kTableArgument = 1;  // of a program; the block is the one before
// The steps whose blocks are there at once: one is sent while the other one is computed.
constexpr size_t kStepsAtOnce = 2;

// True if XLA moves the elements without a change. It may compute shorter floats as float32, which
// changes a NaN.
bool IsMovedAsItIs(PJRT_Buffer_Type type) {
  switch (type) {
    case PJRT_Buffer_Type_S8:
    case PJRT_Buffer_Type_S16:
    case PJRT_Buffer_Type_S32:
    case PJRT_Buffer_Type_S64:
    case PJRT_Buffer_Type_U8:
    case PJRT_Buffer_Type_U16:
    case PJRT_Buffer_Type_U32:
    case PJRT_Buffer_Type_U64:
    case PJRT_Buffer_Type_F32:
    case PJRT_Buffer_Type_F64:
      return true;
    default:
      return false;
  }
}

int64_t RowCount(const HostTensor& tensor) { return tensor.dims.front(); }
int64_t RowBytes(const HostTensor& tensor) {
  return static_cast<int64_t>(tensor.bytes) / RowCount(tensor);
}

// Writes the block of a step that has `size` rows, of which `count` from `rows` on are real.
void FillBlock(const HostTensor& tensor, const int64_t* rows, int64_t count, int64_t size,
               char* block) {
  constexpr int64_t kRowsAhead = 16;
  const int64_t row_bytes = RowBytes(tensor);
  const auto* const elements = static_cast<const char*>(tensor.elements);
  const PackedTensors packed = RowScatter::BlockOf(size, row_bytes);
  char* const ids = block + packed.offsets[0];
  char* const to = block + packed.offsets[1];
  for (int64_t i = 0; i < size; ++i) {
    // An id beyond the table is left out, and no two of them are equal.
    const auto id = static_cast<int32_t>(i < count ? rows[i] : RowCount(tensor) + i);
    std::memcpy(ids + i * kIdBytes, &id, kIdBytes);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (i + kRowsAhead < count) __builtin_prefetch(elements + rows[i + kRowsAhead] * row_bytes);
    std::memcpy(to + i * row_bytes, elements + rows[i] * row_bytes, row_bytes);
  }
  std::memset(to + count * row_bytes, 0, (size - count) * row_bytes);
}

}  // namespace

// The steps of one scatter.
class RowScatter::Steps {
 public:
  Steps(const Accelerator& accelerator, DeviceMemory::RunCharge charge, const DeviceBuffer& source,
        const HostTensor& tensor, size_t block_bytes)
      : accelerator_(accelerator),
        charge_(std::move(charge)),
        source_(source),
        tensor_(tensor),
        copies_(accelerator.api()) {
    for (size_t i = 0; i < kStepsAtOnce; ++i) {
      leases_.push_back(accelerator.upload_staging().Take());
      blocks_[i] = leases_.back().data();
      if (blocks_[i] != nullptr) continue;
      own_[i].reset(new (std::nothrow) char[block_bytes]);
      blocks_[i] = own_[i].get();
    }
  }
  // Nothing is under way any more, after an error either: its memory is charged until then.
  ~Steps() = default;
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  // Writes `count` rows of the table by a program for `size` of them.
  base::Status Take(const Executable& program, const int64_t* rows, int64_t count, int64_t size) {
    if (device_blocks_.size() == kStepsAtOnce) MILLPOND_RETURN_IF_ERROR(Await());
    char* const block = blocks_[device_blocks_.size()];
    if (block == nullptr) {
      return {base::Code::kResourceExhausted, "no memory is left for the rows of a table"};
    }
    FillBlock(tensor_, rows, count, size, block);
    const size_t bytes = BlockOf(size, RowBytes(tensor_)).bytes;
    const auto word_count = static_cast<int64_t>(bytes / PackedTensors::kWordBytes);
    PJRT_Event* copied = nullptr;
    base::StatusOr<DeviceBuffer> sent =
        accelerator_.StartUpload({PJRT_Buffer_Type_U32, {word_count}, block, bytes}, &copied);
    if (!sent.ok()) return sent.status();
    copies_.Add(copied);
    device_blocks_.push_back(std::move(sent.value()));
    MILLPOND_RETURN_IF_ERROR(AwaitBlock());
    // Others read the source, and no one the result of the step before.
    std::vector<int64_t> kept;
    if (!table_) kept.push_back(kTableArgument);
    std::vector<DeviceBuffer> results;
    MILLPOND_RETURN_IF_ERROR(program.Run(
        {device_blocks_.back().get(), table_ ? table_->get() : source_.get()}, &results, kept));
    if (results.size() != 1)
      return base::Internal("a program that writes rows has several outputs");
    const bool is_copied = table_ && table_->IsThere();
    table_.emplace(std::move(results.front()));
    if (!is_copied) return {};
    return {base::Code::kUnimplemented, "the plugin copies a table in each step"};
  }

  // Waits for the end of all steps, and frees their blocks. Returns UNAVAILABLE if the device is
  // gone, and so does each later call.
  base::Status Await() {
    if (is_gone_) return {base::Code::kUnavailable, "the accelerator counts as lost"};
    base::Status copied;
    base::Status written;
    is_gone_ = !copies_.AwaitFor(accelerator_.stall_ns(), &copied) ||
               (table_ && !table_->AwaitReadyFor(accelerator_.stall_ns(), &written));
    if (!is_gone_) device_blocks_.clear();
    return copied.ok() ? written : copied;
  }
  // True if the device may use the blocks and the tables at any time.
  bool is_gone() const { return is_gone_; }
  const Accelerator& accelerator() const { return accelerator_; }

  DeviceBuffer TakeTable() { return std::move(*std::exchange(table_, std::nullopt)); }

 private:
  // Waits until the newest block is there: see Executable::Run.
  base::Status AwaitBlock() {
    base::Status arrived;
    is_gone_ = !device_blocks_.back().AwaitReadyFor(accelerator_.stall_ns(), &arrived);
    return arrived;
  }

  const Accelerator& accelerator_;
  const DeviceMemory::RunCharge charge_;
  const DeviceBuffer& source_;
  const HostTensor& tensor_;
  // All declared before the copies, which read them to their end.
  std::vector<StagingPool::Lease> leases_;
  std::array<std::unique_ptr<char[]>, kStepsAtOnce> own_;  // if no staging buffer is free
  std::array<char*, kStepsAtOnce> blocks_{};
  Copies copies_;
  std::vector<DeviceBuffer> device_blocks_;
  std::optional<DeviceBuffer> table_;  // the result of the last step
  bool is_gone_ = false;
};

std::vector<int64_t> RowScatter::SizesFor(const HostTensor& tensor) {
  if (!IsMovedAsItIs(tensor.type) || tensor.dims.empty() || tensor.bytes == 0) return {};
  if (RowCount(tensor) > std::numeric_limits<int32_t>::max() - kLargeRows) return {};
  const auto fits = [&](int64_t rows) {
    return static_cast<int64_t>(BlockOf(rows, RowBytes(tensor)).bytes) <= kBlockBytes;
  };
  int64_t largest = kLargeRows;
  while (largest > 0 && !fits(largest)) largest /= 2;
  std::vector<int64_t> sizes;
  for (int64_t rows = largest; rows > 0; rows /= kRatio) {
    sizes.insert(sizes.begin(), rows);
    if (rows * kLargeRows <= largest * kSmallRows) break;
  }
  return sizes;
}

PackedTensors RowScatter::BlockOf(int64_t rows, int64_t row_bytes) {
  return PackedTensors(
      {static_cast<size_t>(rows * kIdBytes), static_cast<size_t>(rows * row_bytes)});
}

int64_t RowScatter::SizeFor(int64_t row_count) const {
  for (auto program = programs_.rbegin(); program != programs_.rend(); ++program) {
    if (row_count >= (program->first + 1) / 2) return program->first;
  }
  return programs_.begin()->first;
}

int64_t RowScatter::BytesFor(int64_t row_count, const HostTensor& tensor) const {
  int64_t bytes = 0;
  while (row_count > 0) {
    const int64_t size = SizeFor(row_count);
    bytes += static_cast<int64_t>(BlockOf(size, RowBytes(tensor)).bytes);
    row_count -= size;
  }
  return bytes;
}

base::StatusOr<std::shared_ptr<RowScatter::Steps>> RowScatter::Start(
    const Accelerator& accelerator, const std::string& model, const DeviceBuffer& source,
    const std::vector<int64_t>& rows, const HostTensor& tensor) const {
  const auto row_count = static_cast<int64_t>(rows.size());
  const auto& [largest, program] = *programs_.find(SizeFor(row_count));
  const size_t block_bytes = BlockOf(largest, RowBytes(tensor)).bytes;
  DeviceMemory::RunCharge charge = accelerator.memory().ChargeRun(
      model, static_cast<int64_t>(kStepsAtOnce * block_bytes) + program->temporary_bytes());
  if (!charge) {
    return base::Status(base::Code::kResourceExhausted,
                        "the accelerator has no memory left for the changed rows");
  }
  auto steps = std::make_shared<Steps>(accelerator, std::move(charge), source, tensor, block_bytes);
  for (int64_t done = 0; done < row_count;) {
    const int64_t size = SizeFor(row_count - done);
    const int64_t count = std::min(size, row_count - done);
    base::Status taken = steps->Take(*programs_.at(size), rows.data() + done, count, size);
    if (!taken.ok()) return Ended(std::move(steps), std::move(taken));
    done += count;
  }
  return steps;
}

// Ends steps of which one has failed, and returns its error, or that of a device that is gone.
base::Status RowScatter::Ended(std::shared_ptr<Steps> steps, base::Status failed) {
  base::Status ended = steps->Await();
  if (!steps->is_gone()) return failed;
  steps->accelerator().CountAsLost();
  KeepForEver(std::move(steps));
  return ended;
}

base::StatusOr<DeviceBuffer> RowScatter::Finish(std::shared_ptr<Steps> steps) {
  base::Status ended = steps->Await();
  if (!ended.ok()) return Ended(std::move(steps), std::move(ended));
  return steps->TakeTable();
}

base::Status RowScatter::WarmUp(const Accelerator& accelerator, const std::string& model,
                                const DeviceBuffer& source, const HostTensor& tensor) const {
  for (const auto& entry : programs_) {
    const int64_t rows = entry.first;
    const Executable& program = *entry.second;
    if (program.has_run()) continue;
    const size_t block_bytes = BlockOf(rows, RowBytes(tensor)).bytes;
    DeviceMemory::RunCharge charge = accelerator.memory().ChargeRun(
        model, static_cast<int64_t>(block_bytes + tensor.bytes) + program.temporary_bytes());
    if (!charge) continue;
    auto steps =
        std::make_shared<Steps>(accelerator, std::move(charge), source, tensor, block_bytes);
    accelerator.pace().Make([&] {
      base::Status taken = steps->Take(program, nullptr, 0, rows);
      static_cast<void>(taken.ok() ? Finish(std::move(steps)).status()
                                   : Ended(std::move(steps), std::move(taken)));
    });
    if (accelerator.is_lost()) return Accelerator::LostStatus();
  }
  return {};
}

}  // namespace millpond::pjrt
