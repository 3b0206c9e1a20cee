// Measures a run of a callable: by Session::RunCallable, and beside the session as Callable does.
// The graph computes one difference of rows, or 64. Up to as many threads run as the process has
// cores, on one session and each on a session of its own: the difference is what the runs of one
// session wait for one another.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "native/base/thread_cores.h"
#include "native/bench/measure.h"
#include "native/tf/callable.h"
#include "native/tf/run_executor.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/public/session.h"

namespace millpond::bench {
namespace {

using tensorflow::Tensor;

constexpr int kRowFloats = 16;

tensorflow::GraphDef Differences(int count) {
  tensorflow::GraphDef graph;
  tensorflow::NodeDef* node = graph.add_node();
  node->set_name("n0");
  node->set_op("Placeholder");
  (*node->mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  for (int i = 1; i <= count; ++i) {
    const std::string before = "n" + std::to_string(i - 1);
    node = graph.add_node();
    node->set_name("n" + std::to_string(i));
    node->set_op("Sub");
    node->add_input(before);
    node->add_input(before);
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
  }
  return graph;
}

tensor::Signature SignatureOf(int count) {
  tensor::Signature signature;
  signature.name = "differences";
  signature.inputs.emplace_back();
  signature.inputs[0].tensor_name = "n0:0";
  signature.outputs.emplace_back();
  signature.outputs[0].tensor_name = "n" + std::to_string(count) + ":0";
  return signature;
}

// A session with one callable.
class Runner {
 public:
  explicit Runner(int count) : signature_(SignatureOf(count)) {
    tensorflow::SessionOptions options;
    options.config.mutable_experimental()->set_executor_type(tf::kRunExecutor);
    session_.reset(tensorflow::NewSession(options));
    TF_CHECK_OK(session_->Create(Differences(count)));
    callable_ =
        std::make_unique<tf::Callable>(session_.get(), signature_, tensor::OutputSet::All(1));
    tensorflow::CallableOptions of_session;
    of_session.mutable_run_options()->set_inter_op_thread_pool(-1);
    of_session.add_feed(signature_.inputs[0].tensor_name);
    of_session.add_fetch(signature_.outputs[0].tensor_name);
    TF_CHECK_OK(session_->MakeCallable(of_session, &handle_));
    Tensor row(tensorflow::DT_FLOAT, {1, kRowFloats});
    row.flat<float>().setZero();
    fed_.storage().tensors = {row};
  }
  ~Runner() { TF_CHECK_OK(session_->ReleaseCallable(handle_)); }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void RunCallable() const {
    std::vector<Tensor> fetched;
    TF_CHECK_OK(session_->RunCallable(handle_, fed_.storage().tensors, &fetched, nullptr));
    Keep(fetched.data());
  }
  void Run() const {
    tensor::TensorList fetched;
    if (!callable_->Run(fed_, &fetched).ok()) std::abort();
    Keep(&fetched);
  }

 private:
  const tensor::Signature signature_;
  tensor::TensorList fed_;
  std::unique_ptr<tensorflow::Session> session_;
  std::unique_ptr<tf::Callable> callable_;
  tensorflow::Session::CallableHandle handle_ = 0;
};

// The runs of `threads` threads on one session, and on a session for each thread.
void MeasureRuns(int count, int threads) {
  std::vector<std::unique_ptr<Runner>> runners;
  for (int i = 0; i < threads; ++i) runners.push_back(std::make_unique<Runner>(count));
  const int calls = 200'000 / (count + 10);
  const std::string kernels = std::to_string(count) + " kernels, ";
  Measure((kernels + "RunCallable").c_str(), threads, calls,
          [&](int, int) { runners[0]->RunCallable(); });
  Measure((kernels + "Callable").c_str(), threads, calls, [&](int, int) { runners[0]->Run(); });
  Measure((kernels + "RunCallable, apart").c_str(), threads, calls,
          [&](int thread, int) { runners[thread]->RunCallable(); });
  Measure((kernels + "Callable, apart").c_str(), threads, calls,
          [&](int thread, int) { runners[thread]->Run(); });
}

void Run() {
  tf::RegisterRunExecutor();
  const int core_count = static_cast<int>(base::AllowedCores().size());
  for (const int count : {1, 64}) {
    for (int threads = 1; threads <= core_count; threads *= 2) MeasureRuns(count, threads);
  }
}

}  // namespace
}  // namespace millpond::bench

int main() { millpond::bench::Run(); }
