// Measures 26 look-ups of rows, those of one request to the CTR model, and 26 sums of 20 rows for
// each row of a request: TensorFlow's kernels beside ours, with ids that are spread over tables of
// 300,000 rows, and with ids of the same 100 rows.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "native/bench/measure.h"
#include "native/tf/fixed_value.h"
#include "native/tf/gather_kernel.h"
#include "native/tf/segment_kernel.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/public/version.h"

namespace millpond::bench {
namespace {

using tensorflow::Tensor;

constexpr int kTableCount = 26;
constexpr int64_t kTableRows = 300'000;
constexpr int64_t kHotRows = 100;
constexpr int64_t kRowFloats = 16;
constexpr int kRequestCount = 64;  // different ones

constexpr char kGather[] = "GatherV2";
constexpr char kSum[] = "SparseSegmentSum";
constexpr int64_t kSummedRows = 20;

class GatherBench {
 public:
  GatherBench() {
    tensorflow::SessionOptions options;
    options.config.set_intra_op_parallelism_threads(1);
    device_ =
        tensorflow::DeviceFactory::NewDevice("CPU", options, "/job:localhost/replica:0/task:0");
    for (int i = 0; i < kTableCount; ++i) {
      tables_.emplace_back(tensorflow::DT_FLOAT, tensorflow::TensorShape{kTableRows, kRowFloats});
      tables_.back().flat<float>().setConstant(1);
    }
  }

  // Measures requests of `rows` rows whose ids are below `id_end`.
  void Measure(const char* op, int64_t rows, int64_t id_end) {
    const bool is_sum = op == kSum;
    const std::string what = std::string(op) + " " + std::to_string(rows) +
                             (id_end == kHotRows ? " rows, hot" : " rows, spread");
    if (is_sum) rows *= kSummedRows;
    third_ = is_sum ? Segments(rows) : Tensor(0);
    std::mt19937_64 random(/*seed=*/1);
    std::vector<Tensor> ids;
    for (int i = 0; i < kRequestCount * kTableCount; ++i) {
      ids.emplace_back(tensorflow::DT_INT64, tensorflow::TensorShape{rows});
      auto flat = ids.back().flat<int64_t>();
      for (int64_t row = 0; row < rows; ++row) {
        flat(row) = static_cast<int64_t>(random() % static_cast<uint64_t>(id_end));
      }
    }
    for (const char* label : {"", tf::kMillpondKernel}) {
      const auto kernel = Make(op, label);
      const std::string name = what + (*label == '\0' ? ", TensorFlow" : ", Millpond");
      bench::Measure(name.c_str(), 1, static_cast<int>(20'000 / (rows + 10)) + 10,
                     [&](int, int call) { Answer(kernel.get(), ids, call % kRequestCount); });
    }
  }

 private:
  // Ascending, with kSummedRows ids in each segment.
  static Tensor Segments(int64_t id_count) {
    Tensor segments(tensorflow::DT_INT32, tensorflow::TensorShape{id_count});
    for (int64_t i = 0; i < id_count; ++i) {
      segments.flat<int32_t>()(i) = static_cast<int32_t>(i / kSummedRows);
    }
    return segments;
  }
  std::unique_ptr<tensorflow::OpKernel> Make(const char* op, const char* label) const {
    tensorflow::NodeDef node;
    TF_CHECK_OK(tensorflow::NodeDefBuilder("node", op)
                    .Input("table", 0, tensorflow::DT_FLOAT)
                    .Input("ids", 0, tensorflow::DT_INT64)
                    .Input("axis_or_segments", 0, tensorflow::DT_INT32)
                    .Finalize(&node));
    if (*label != '\0') (*node.mutable_attr())["_kernel"].set_s(label);
    absl::Status status;
    auto kernel =
        tensorflow::CreateOpKernel(tensorflow::DEVICE_CPU, device_.get(), device_->GetAllocator({}),
                                   node, TF_GRAPH_DEF_VERSION, &status);
    TF_CHECK_OK(status);
    return kernel;
  }
  // Computes the rows of all tables for one request, and frees them.
  void Answer(tensorflow::OpKernel* kernel, const std::vector<Tensor>& ids, int request) {
    std::vector<Tensor> answer;
    for (int i = 0; i < kTableCount; ++i) {
      Tensor of_table = ids[static_cast<size_t>(request * kTableCount + i)];
      const std::vector<tensorflow::TensorValue> inputs = {tensorflow::TensorValue(&tables_[i]),
                                                           tensorflow::TensorValue(&of_table),
                                                           tensorflow::TensorValue(&third_)};
      const tensorflow::AllocatorAttributes attributes;
      tensorflow::OpKernelContext::Params parameters;
      parameters.device = device_.get();
      parameters.op_kernel = kernel;
      parameters.inputs = inputs;
      parameters.output_attr_array = &attributes;
      tensorflow::OpKernelContext context(&parameters, 1);
      kernel->Compute(&context);
      TF_CHECK_OK(context.status());
      answer.push_back(*context.mutable_output(0));
    }
    Keep(answer.data());
  }

  std::unique_ptr<tensorflow::Device> device_;
  std::vector<Tensor> tables_;
  Tensor third_;  // the axis of a gather, or the segments of a sum
};

void Run() {
  tf::RegisterGatherKernels();
  tf::RegisterSegmentKernels();
  GatherBench bench;
  for (const int64_t id_end : {kTableRows, kHotRows}) {
    for (const int64_t rows : {1, 16, 100, 1'000}) bench.Measure(kGather, rows, id_end);
    for (const int64_t rows : {1, 16, 100}) bench.Measure(kSum, rows, id_end);
  }
}

}  // namespace
}  // namespace millpond::bench

int main() { millpond::bench::Run(); }
