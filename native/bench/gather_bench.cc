// Measures 26 look-ups of rows, those of one request to the CTR model: TensorFlow's kernel beside
// ours, with ids that are spread over tables of 300,000 rows, and with ids of the same 100 rows.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "native/bench/measure.h"
#include "native/tf/fixed_value.h"
#include "native/tf/gather_kernel.h"
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
    axis_.scalar<int32_t>()() = 0;
  }

  // Measures requests of `rows` rows whose ids are below `id_end`.
  void Measure(int64_t rows, int64_t id_end) {
    std::mt19937_64 random(/*seed=*/1);
    std::vector<Tensor> ids;
    for (int i = 0; i < kRequestCount * kTableCount; ++i) {
      ids.emplace_back(tensorflow::DT_INT64, tensorflow::TensorShape{rows});
      auto flat = ids.back().flat<int64_t>();
      for (int64_t row = 0; row < rows; ++row) {
        flat(row) = static_cast<int64_t>(random() % static_cast<uint64_t>(id_end));
      }
    }
    const std::string what =
        std::to_string(rows) + (id_end == kHotRows ? " rows, hot" : " rows, spread");
    for (const char* label : {"", tf::kMillpondKernel}) {
      const auto kernel = Make(label);
      const std::string name = what + (*label == '\0' ? ", TensorFlow" : ", Millpond");
      bench::Measure(name.c_str(), 1, static_cast<int>(20'000 / (rows + 10)),
                     [&](int, int call) { Answer(kernel.get(), ids, call % kRequestCount); });
    }
  }

 private:
  std::unique_ptr<tensorflow::OpKernel> Make(const char* label) const {
    tensorflow::NodeDef node;
    TF_CHECK_OK(tensorflow::NodeDefBuilder("gather", "GatherV2")
                    .Input("table", 0, tensorflow::DT_FLOAT)
                    .Input("ids", 0, tensorflow::DT_INT64)
                    .Input("axis", 0, tensorflow::DT_INT32)
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
                                                           tensorflow::TensorValue(&axis_)};
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
  Tensor axis_{tensorflow::DT_INT32, tensorflow::TensorShape{}};
};

void Run() {
  tf::RegisterGatherKernels();
  GatherBench bench;
  for (const int64_t rows : {1, 16, 100, 1'000}) {
    for (const int64_t id_end : {kTableRows, kHotRows}) bench.Measure(rows, id_end);
  }
}

}  // namespace
}  // namespace millpond::bench

int main() { millpond::bench::Run(); }
