#include "native/tf/restore_kernel.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/tf/checkpoint_index.h"
#include "native/tf/core_share.h"
#include "native/tf/load_control.h"
#include "native/tf/loaded_tables.h"
#include "native/tf/restore_pace.h"
#include "native/tf/shard_reader.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/saved_tensor_slice_util.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace millpond::tf {
namespace {

using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorSlice;
using tensorflow::tstring;

// Above the priority of the stock kernel, which is 0.
constexpr int kKernelPriority = 300;

// The length of one sleep. A wait is cut into sleeps, so that it soon notices a cancelled load or a
// changed limit.
constexpr int64_t kWaitSliceNs = 1'000'000;

absl::Status ToTensorFlow(const base::Status& status) {
  return {static_cast<absl::StatusCode>(status.code()), status.message()};
}

// One output of the op.
struct Wanted {
  int output = 0;
  std::string name;
  std::string shape_and_slice;  // empty for the whole tensor
  DataType dtype = tensorflow::DT_INVALID;
};

// The source of one output.
struct Plan {
  Wanted wanted;
  CheckpointEntry entry;             // has the bytes of the output if is_direct
  bool is_direct = false;            // false: read by BundleReader
  LoadedTable* table = nullptr;      // that becomes the output; null: none
  TensorShape shape;                 // of the output
  std::optional<TensorSlice> slice;  // of the wanted tensor; nullopt for the whole
};

absl::Status CheckInputs(OpKernelContext* context, size_t output_count) {
  const Tensor& prefix = context->input(0);
  if (prefix.NumElements() != 1) {
    return absl::InvalidArgumentError("prefix: expected one element, got " +
                                      std::to_string(prefix.NumElements()));
  }
  for (const int input : {1, 2}) {
    const TensorShape& shape = context->input(input).shape();
    if (shape.dims() != 1 || shape.dim_size(0) != static_cast<int64_t>(output_count)) {
      return absl::InvalidArgumentError(
          std::string(input == 1 ? "tensor_names" : "shape_and_slices") + ": expected [" +
          std::to_string(output_count) + "], the number of dtypes, got " + shape.DebugString());
    }
  }
  return absl::OkStatus();
}

// The pace of the load that runs on this thread. Outside a load nothing limits the restore.
class LoadPace {
 public:
  LoadPace() : control_(LoadScope::Current()), pace_(base::MonotonicNs()) {}

  // Waits until the next piece may be read. Returns CANCELLED if the load is cancelled.
  absl::Status WaitForBudget() {
    if (control_ == nullptr) return absl::OkStatus();
    while (!control_->is_cancelled.load(std::memory_order_relaxed)) {
      const int64_t wait_ns = pace_.WaitNs(base::MonotonicNs(), BytesPerSecondMax());
      if (wait_ns == 0) return absl::OkStatus();
      base::SleepNs(std::min(wait_ns, kWaitSliceNs));
    }
    return absl::CancelledError("the load was cancelled during its restore");
  }

  // Reports bytes that need not be read.
  void ReportKept(int64_t bytes) {
    if (control_ != nullptr) control_->kept_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

  // Reports bytes that were copied within memory. They disturb requests as reading does.
  void ReportCopied(int64_t bytes) {
    if (control_ == nullptr) return;
    pace_.Spend(bytes);
    control_->copied_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

  void Report(int64_t bytes) {
    if (control_ == nullptr) return;
    pace_.Spend(bytes);
    control_->restored_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  // Subtracts reported bytes, because their checksum does not match.
  void Retract(int64_t bytes) {
    if (control_ == nullptr) return;
    control_->restored_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  }

 private:
  // 0: no limit.
  int64_t BytesPerSecondMax() const {
    const int64_t fixed = control_->restore_bytes_per_second_max.load(std::memory_order_relaxed);
    const int64_t target_ns = control_->restore_ns_target.load(std::memory_order_relaxed);
    if (fixed > 0 || target_ns <= 0 || !AreRequestsComing()) return fixed;
    return PaceBesideRequests(control_->restore_bytes.load(std::memory_order_relaxed), target_ns);
  }

  LoadControl* const control_;
  RestorePace pace_;
};

// One run of the op. Plans all outputs first, and then reads them in the order of the files, and
// the tables last.
class Restore {
 public:
  Restore(OpKernelContext* context, const std::string& prefix, CheckpointIndexReader index)
      : context_(context),
        prefix_(prefix),
        index_(std::move(index)),
        shards_(prefix, index_.header().shard_count),
        is_plain_(prefix.find("://") == std::string::npos && !index_.header().is_big_endian) {}

  absl::Status Run(const std::vector<Wanted>& all_wanted) {
    std::vector<Plan> plans;
    for (const Wanted& wanted : all_wanted) {
      Plan& plan = plans.emplace_back();
      plan.wanted = wanted;
      TF_RETURN_IF_ERROR(MakePlan(&plan));
    }
    // Tables last: a wrong bit in a delta's own rows then fails the load before a table is copied.
    const auto place = [](const Plan& plan) {
      return std::tuple(plan.table != nullptr, plan.entry.shard, plan.entry.offset_bytes);
    };
    std::sort(plans.begin(), plans.end(),
              [&](const Plan& a, const Plan& b) { return place(a) < place(b); });
    for (const Plan& plan : plans) TF_RETURN_IF_ERROR(Perform(plan));
    return absl::OkStatus();
  }

 private:
  absl::Status MakePlan(Plan* plan) {
    const Wanted& wanted = plan->wanted;
    base::StatusOr<CheckpointEntry> entry = index_.Find(wanted.name);
    if (!entry.ok()) return ToTensorFlow(entry.status());
    plan->entry = std::move(entry.value());
    if (plan->entry.dtype != wanted.dtype) {
      return absl::InvalidArgumentError(
          "tensor '" + wanted.name + "': the graph expects " + DataTypeString(wanted.dtype) +
          ", and the checkpoint holds " + DataTypeString(plan->entry.dtype));
    }
    plan->shape = plan->entry.shape;
    if (!wanted.shape_and_slice.empty()) TF_RETURN_IF_ERROR(PlanSlice(plan));
    plan->is_direct = is_plain_ && plan->entry.slices.empty() &&
                      tensorflow::DataTypeCanUseMemcpy(wanted.dtype) &&
                      plan->entry.shape == plan->shape;
    LoadedTables* const tables = TablesScope::Current();
    if (tables != nullptr && plan->is_direct && tables->Has(wanted.name)) {
      plan->table =
          tables->Take({wanted.name, wanted.shape_and_slice}, ContentsOf(plan->entry, &shards_));
    }
    return absl::OkStatus();
  }

  static int64_t OutputBytes(const Plan& plan) {
    return plan.shape.num_elements() * ElementBytes(plan.wanted.dtype);
  }

  absl::Status PlanSlice(Plan* plan) {
    const Wanted& wanted = plan->wanted;
    TensorShape full_shape;
    TensorSlice slice;
    TF_RETURN_IF_ERROR(tensorflow::checkpoint::ParseShapeAndSlice(
        wanted.shape_and_slice, &full_shape, &slice, &plan->shape));
    if (full_shape != plan->entry.shape) {
      return absl::InvalidArgumentError(
          "tensor '" + wanted.name + "': the graph expects a slice '" + wanted.shape_and_slice +
          "', and the checkpoint holds " + plan->entry.shape.DebugString());
    }
    plan->slice = slice;
    // A variable is usually partitioned as it was when it was saved, and then the slice has an
    // entry.
    const auto& slices = plan->entry.slices;
    if (std::find(slices.begin(), slices.end(), slice) == slices.end()) return absl::OkStatus();
    base::StatusOr<CheckpointEntry> entry =
        index_.Find(tensorflow::checkpoint::EncodeTensorNameSlice(wanted.name, slice));
    if (!entry.ok()) return ToTensorFlow(entry.status());
    entry.value().name = wanted.name + " " + slice.DebugString();
    if (entry.value().dtype == wanted.dtype) plan->entry = std::move(entry.value());
    return absl::OkStatus();
  }

  absl::Status Perform(const Plan& plan) {
    // Checked before the output is allocated, because a damaged index may claim more bytes than the
    // shard has.
    if (is_plain_) TF_RETURN_IF_ERROR(shards_.CheckHolds(plan.entry));
    TF_RETURN_IF_ERROR(pace_.WaitForBudget());
    if (plan.table != nullptr) return PlaceTable(plan);
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context_->allocate_output(plan.wanted.output, plan.shape, &output));
    return plan.is_direct ? ReadDirect(plan.entry, static_cast<char*>(output->data()))
                          : ReadByBundleReader(plan, output);
  }

  // Makes the table the output, with the bytes of the checkpoint.
  absl::Status PlaceTable(const Plan& plan) {
    memory::TableClaim& claim = *plan.table->claim;
    if (claim.use() == memory::TableUse::kUndo) TF_RETURN_IF_ERROR(UndoRows(&claim));
    if (!claim.is_in_place()) claim.BeginOverwrite();
    if (claim.copies()) {
      TF_RETURN_IF_ERROR(Copy(&claim));
    } else if (!claim.is_in_place()) {
      TF_RETURN_IF_ERROR(ReadDirect(plan.entry, reinterpret_cast<char*>(claim.data())));
      claim.EndOverwrite();
      plan.table->report.read_bytes = claim.bytes();
    }
    if (plan.table->report.read_bytes == 0) pace_.ReportKept(OutputBytes(plan));
    context_->set_output(plan.wanted.output,
                         LoadedTables::MakeTensor(*plan.table, plan.wanted.dtype, plan.shape));
    return absl::OkStatus();
  }

  // Makes the table a copy of one that other versions hold.
  absl::Status Copy(memory::TableClaim* claim) {
    constexpr size_t kPieceBytes = ShardReader::kPieceBytes;
    while (claim->bytes_to_fill() > 0) {
      TF_RETURN_IF_ERROR(pace_.WaitForBudget());
      pace_.ReportCopied(static_cast<int64_t>(claim->CopyNext(kPieceBytes)));
    }
    TF_RETURN_IF_ERROR(UndoRows(claim));
    claim->EndOverwrite();
    return absl::OkStatus();
  }

  absl::Status UndoRows(memory::TableClaim* claim) {
    // About a millisecond's work.
    constexpr size_t kPieceRowCount = 8192;
    do {
      TF_RETURN_IF_ERROR(pace_.WaitForBudget());
      claim->UndoRows(kPieceRowCount);
    } while (claim->changed_row_count() > 0);
    return absl::OkStatus();
  }

  absl::Status ReadDirect(const CheckpointEntry& entry, char* to) {
    uint32_t crc32c = 0;
    for (int64_t done = 0; done < entry.size_bytes;) {
      TF_RETURN_IF_ERROR(pace_.WaitForBudget());
      const int64_t piece_bytes =
          std::min<int64_t>(ShardReader::kPieceBytes, entry.size_bytes - done);
      TF_RETURN_IF_ERROR(shards_.ReadPiece(entry, done, piece_bytes, to + done, &crc32c));
      pace_.Report(piece_bytes);
      done += piece_bytes;
    }
    if (crc32c == entry.crc32c) return absl::OkStatus();
    pace_.Retract(entry.size_bytes);
    return absl::DataLossError(shards_.Place(entry) + " (" + std::to_string(entry.size_bytes) +
                               " bytes) does not match its checksum: crc32c " +
                               std::to_string(crc32c) + ", and the index has " +
                               std::to_string(entry.crc32c) + "; copy the version again");
  }

  absl::Status ReadByBundleReader(const Plan& plan, Tensor* output) {
    if (bundle_ == nullptr) {
      bundle_ = std::make_unique<tensorflow::BundleReader>(tensorflow::Env::Default(), prefix_);
      TF_RETURN_IF_ERROR(bundle_->status());
    }
    const std::string& name = plan.wanted.name;
    const absl::Status read = plan.slice.has_value()
                                  ? bundle_->LookupSlice(name, *plan.slice, output)
                                  : bundle_->Lookup(name, output);
    if (!read.ok()) {
      return {read.code(), shards_.Place(plan.entry) + ": " + std::string(read.message())};
    }
    pace_.Report(output->NumElements() * ElementBytes(output->dtype()));
    return absl::OkStatus();
  }

  OpKernelContext* const context_;
  const std::string prefix_;
  CheckpointIndexReader index_;
  ShardReader shards_;
  const bool is_plain_;  // local files of this machine's byte order, read without BundleReader
  std::unique_ptr<tensorflow::BundleReader> bundle_;  // made on first use
  LoadPace pace_;
};

class RestoreKernel : public tensorflow::OpKernel {
 public:
  explicit RestoreKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtypes", &dtypes_));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckInputs(context, dtypes_.size()));
    const std::string prefix = context->input(0).flat<tstring>()(0);
    base::StatusOr<CheckpointIndexReader> index = CheckpointIndexReader::Open(prefix);
    OP_REQUIRES_OK(context, ToTensorFlow(index.status()));
    Restore restore(context, prefix, std::move(index.value()));
    OP_REQUIRES_OK(context, restore.Run(ReadWanted(context)));
  }

 private:
  std::vector<Wanted> ReadWanted(OpKernelContext* context) const {
    const auto names = context->input(1).flat<tstring>();
    const auto slices = context->input(2).flat<tstring>();
    std::vector<Wanted> wanted;
    for (int output = 0; output < static_cast<int>(dtypes_.size()); ++output) {
      wanted.push_back({output, names(output), slices(output), dtypes_[output]});
    }
    return wanted;
  }

  std::vector<DataType> dtypes_;
};

}  // namespace

void RegisterRestoreKernel() {
  // Registers at run time. REGISTER_KERNEL_BUILDER would register the kernel when the library is
  // loaded, but a server that measures the stock runtime must keep TensorFlow's kernel.
  const tensorflow::kernel_factory::OpKernelRegistrar registrar(
      tensorflow::KernelDefBuilder("RestoreV2")
          .Device(tensorflow::DEVICE_CPU)
          .Priority(kKernelPriority)
          .Build(),
      kRestoreKernelName, [](tensorflow::OpKernelConstruction* context) -> tensorflow::OpKernel* {
        return new RestoreKernel(context);
      });
}

}  // namespace millpond::tf
