#include "native/tf/segment_kernel.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/algorithm/container.h"
#include "native/tf/fixed_value.h"
#include "tensorflow/core/framework/bounds_check.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace millpond::tf {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::Tensor;

constexpr std::array<const char*, 3> kSegmentOps = {"SparseSegmentSum", "SparseSegmentMean",
                                                    "SparseSegmentSqrtN"};

constexpr int64_t kLineBytes = 64;
// The part of a core's second cache that rows may take before they are summed.
constexpr int64_t kAllRowsBytesMax = 512 << 10;
// The processor itself fetches the lines that follow these.
constexpr int64_t kOneRowBytesMax = 4 * kLineBytes;

// Asks for the rows of `ids`. An id out of range is left to the kernel that sums.
template <typename Id>
void FetchRows(const Tensor& table, const Tensor& ids) {
  const int64_t row_count = table.dim_size(0);
  if (row_count == 0) return;
  const char* const rows = static_cast<const char*>(table.data());
  const int64_t row_bytes = static_cast<int64_t>(table.TotalBytes()) / row_count;
  const int64_t fetched_bytes = std::min(row_bytes, kOneRowBytesMax);
  const int64_t fetched_count =
      std::min(ids.NumElements(), kAllRowsBytesMax / std::max(fetched_bytes, kLineBytes));
  const Id* const id = static_cast<const Id*>(ids.data());
  for (int64_t i = 0; i < fetched_count; ++i) {
    if (!tensorflow::FastBoundsCheck(id[i], row_count)) continue;
    const char* const row = rows + static_cast<int64_t>(id[i]) * row_bytes;
    for (int64_t at = 0; at < fetched_bytes; at += kLineBytes) {
      __builtin_prefetch(row + at, /*rw=*/0, /*locality=*/2);
    }
  }
}

// TensorFlow's kernel of the node, behind the fetching of its rows.
class FetchingSegment final : public OpKernel {
 public:
  explicit FetchingSegment(OpKernelConstruction* context) : OpKernel(context) {
    tensorflow::NodeDef node = context->def();
    node.mutable_attr()->erase("_kernel");
    absl::Status made;
    stock_ = tensorflow::CreateOpKernel(tensorflow::DeviceType(tensorflow::DEVICE_CPU),
                                        context->device(), context->device()->GetAllocator({}),
                                        node, context->graph_def_version(), &made);
    OP_REQUIRES_OK(context, made);
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const Tensor& table = context->input(0);
    const Tensor& ids = context->input(1);
    if (table.dims() >= 1 && ids.dtype() == tensorflow::DT_INT32) FetchRows<int32_t>(table, ids);
    if (table.dims() >= 1 && ids.dtype() == tensorflow::DT_INT64) FetchRows<int64_t>(table, ids);
    stock_->Compute(context);
  }

 private:
  std::unique_ptr<OpKernel> stock_;
};

}  // namespace

bool IsSegmentOp(const std::string& op) { return absl::c_linear_search(kSegmentOps, op); }

void RegisterSegmentKernels() {
  for (const char* const op : kSegmentOps) {
    const tensorflow::kernel_factory::OpKernelRegistrar registrar(
        tensorflow::KernelDefBuilder(op)
            .Device(tensorflow::DEVICE_CPU)
            .Label(kMillpondKernel)
            .Build(),
        "FetchingSegment",
        [](OpKernelConstruction* context) -> OpKernel* { return new FetchingSegment(context); });
  }
}

}  // namespace millpond::tf
