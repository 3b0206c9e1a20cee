#include "native/tf/gather_kernel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "native/tf/fixed_value.h"
#include "tensorflow/core/framework/bounds_check.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/util.h"
#include "tensorflow/core/util/work_sharder.h"

namespace millpond::tf {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kCacheLineBytes = 64;
// A row is asked for so many rows before it is copied: a core has 10 to 16 cache lines under way.
constexpr int64_t kRowsAhead = 16;
// The processor itself fetches the lines that follow these.
constexpr int64_t kFetchedBytesMax = 4 * kCacheLineBytes;
constexpr int64_t kNone = -1;

// The rows of a table, the ids to look up, and the place for the rows.
template <typename Id>
struct RowCopy {
  const char* table;
  int64_t row_count;
  int64_t row_bytes;
  const Id* ids;
  char* output;

  void Fetch(int64_t i) const {
    const char* const row = table + static_cast<int64_t>(ids[i]) * row_bytes;
    for (int64_t at = 0; at < std::min(row_bytes, kFetchedBytesMax); at += kCacheLineBytes) {
      __builtin_prefetch(row + at);
    }
  }

  // Copies the rows of the ids `begin` to `end`. Returns the first index with an id that is out of
  // range, or kNone. If `bytes` is not 0, it is the size of a row, known to the compiler.
  template <int64_t bytes>
  int64_t Copy(int64_t begin, int64_t end) const {
    const int64_t size = bytes == 0 ? row_bytes : bytes;
    for (int64_t i = begin; i < std::min(end, begin + kRowsAhead); ++i) Fetch(i);
    for (int64_t i = begin; i < end; ++i) {
      if (i + kRowsAhead < end) Fetch(i + kRowsAhead);
      const Id id = tensorflow::internal::SubtleMustCopy(ids[i]);
      if (!tensorflow::FastBoundsCheck(id, row_count)) return i;
      std::memcpy(output + i * size, table + static_cast<int64_t>(id) * size, size);
    }
    return kNone;
  }

  int64_t Copy(int64_t begin, int64_t end) const {
    switch (row_bytes) {
      case 4:
        return Copy<4>(begin, end);
      case 16:
        return Copy<16>(begin, end);
      case 32:
        return Copy<32>(begin, end);
      case 64:
        return Copy<64>(begin, end);
      case 128:
        return Copy<128>(begin, end);
      default:
        return Copy<0>(begin, end);
    }
  }
};

// Copies the rows of `count` ids, with the threads that the run's share of the cores allows.
template <typename Id>
int64_t CopyRows(OpKernelContext* context, const RowCopy<Id>& rows, int64_t count) {
  std::atomic<int64_t> bad_index{kNone};
  const auto copy = [&](int64_t begin, int64_t end) {
    const int64_t bad = rows.Copy(begin, end);
    if (bad != kNone) bad_index.store(bad, std::memory_order_relaxed);
  };
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(workers.num_threads, workers.workers, count, rows.row_bytes, copy);
  return bad_index.load(std::memory_order_relaxed);
}

template <typename Id>
absl::Status CheckIdsReach(int64_t row_count) {
  if (row_count <= static_cast<int64_t>(std::numeric_limits<Id>::max())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "params.shape[0] too large for " +
      tensorflow::DataTypeString(tensorflow::DataTypeToEnum<Id>::v()) + " indexing: " +
      std::to_string(row_count) + " > " + std::to_string(std::numeric_limits<Id>::max()));
}

// TensorFlow's GatherV2 does not check the ids if the rows are empty, and its ResourceGather does.
enum class EmptyRows { kChecked, kUnchecked };

template <typename Id>
void Gather(OpKernelContext* context, const Tensor& table, const Tensor& ids, EmptyRows empty) {
  const int64_t row_count = table.dim_size(0);
  OP_REQUIRES_OK(context, CheckIdsReach<Id>(row_count));
  TensorShape row_shape = table.shape();
  row_shape.RemoveDim(0);
  TensorShape shape = ids.shape();
  OP_REQUIRES_OK(context, shape.AppendShapeWithStatus(row_shape));
  Tensor* output = nullptr;
  OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
  if (ids.NumElements() == 0) return;
  if (output->NumElements() == 0 && empty == EmptyRows::kUnchecked) return;
  const RowCopy<Id> rows{static_cast<const char*>(table.data()), row_count,
                         row_shape.num_elements() * tensorflow::DataTypeSize(table.dtype()),
                         static_cast<const Id*>(ids.data()), static_cast<char*>(output->data())};
  const int64_t bad = CopyRows(context, rows, ids.NumElements());
  OP_REQUIRES(
      context, bad == kNone,
      absl::InvalidArgumentError("indices" + tensorflow::SliceDebugString(ids.shape(), bad) +
                                 " = " + std::to_string(rows.ids[bad]) + " is not in [0, " +
                                 std::to_string(row_count) + ")"));
}

void GatherByIds(OpKernelContext* context, const Tensor& table, EmptyRows empty) {
  const Tensor& ids = context->input(1);
  if (ids.dtype() == tensorflow::DT_INT32) return Gather<int32_t>(context, table, ids, empty);
  Gather<int64_t>(context, table, ids, empty);
}

// ResourceGather from a variable that does not change.
class FixedGather final : public tensorflow::OpKernel {
 public:
  explicit FixedGather(OpKernelConstruction* context) : OpKernel(context) {
    absl::StatusOr<Tensor> value = FixedValue(context);
    OP_REQUIRES_OK(context, value.status());
    OP_REQUIRES(context, value->dtype() == output_type(0) && value->dims() >= 1,
                absl::InvalidArgumentError("the variable has no rows of the gather's dtype"));
    table_ = std::move(*value);
  }

  void Compute(OpKernelContext* context) override {
    GatherByIds(context, table_, EmptyRows::kChecked);
  }

 private:
  Tensor table_;
};

// ResourceGather from a variable that a request may change. Holds the variable's lock during the
// copy, because a second reference to the table would make a write copy all of it.
class VariableGather final : public tensorflow::OpKernel {
 public:
  explicit VariableGather(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(
                                context, tensorflow::HandleFromInput(context, 0), &variable));
    const tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& table = *variable->tensor();
    OP_REQUIRES(context, table.dtype() == output_type(0) && table.dims() >= 1,
                absl::InvalidArgumentError("the variable has no rows of the gather's dtype"));
    GatherByIds(context, table, EmptyRows::kChecked);
  }
};

// GatherV2 along axis 0.
class RowGather final : public tensorflow::OpKernel {
 public:
  explicit RowGather(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& table = context->input(0);
    OP_REQUIRES(context, table.dims() >= 1,
                absl::InvalidArgumentError("params must be at least 1 dimensional"));
    GatherByIds(context, table, EmptyRows::kUnchecked);
  }
};

template <typename Kernel>
void Register(const char* op, const char* label, const char* name) {
  const tensorflow::kernel_factory::OpKernelRegistrar registrar(
      tensorflow::KernelDefBuilder(op).Device(tensorflow::DEVICE_CPU).Label(label).Build(), name,
      [](OpKernelConstruction* context) -> tensorflow::OpKernel* { return new Kernel(context); });
}

}  // namespace

void RegisterGatherKernels() {
  Register<FixedGather>("ResourceGather", kMillpondKernel, "FixedGather");
  Register<VariableGather>("ResourceGather", kVariableKernel, "VariableGather");
  Register<RowGather>("GatherV2", kMillpondKernel, "RowGather");
}

}  // namespace millpond::tf
