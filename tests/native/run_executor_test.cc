#include "native/tf/run_executor.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/executor_factory.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/public/version.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

using tensorflow::DT_FLOAT;
using tensorflow::NodeDef;
using testing::SavedModelFiles;

void SetShapeAndFloat(const char* attribute, NodeDef* node) {
  (*node->mutable_attr())[attribute].set_type(DT_FLOAT);
  (*node->mutable_attr())["shape"].mutable_shape();
}

SavedModelFiles ReferenceModel() {
  SavedModelFiles files;
  files.AddNode("v", "VariableV2", {}, [](NodeDef* node) { SetShapeAndFloat("dtype", node); });
  return files;
}

void SetComponentTypes(const char* attribute, NodeDef* node) {
  (*node->mutable_attr())[attribute].mutable_list()->add_type(DT_FLOAT);
}

// A dequeue would wait for an enqueue that comes after it.
SavedModelFiles QueueModel() {
  SavedModelFiles files;
  files.AddNode("queue", "FIFOQueueV2", {},
                [](NodeDef* node) { SetComponentTypes("component_types", node); });
  files.AddNode("dequeue", "QueueDequeueV2", {"queue"},
                [](NodeDef* node) { SetComponentTypes("component_types", node); });
  return files;
}

SavedModelFiles CallModel() {
  SavedModelFiles files;
  auto* const function = files.meta_graph().mutable_graph_def()->mutable_library()->add_function();
  function->mutable_signature()->set_name("does_nothing");
  files.AddNode("call", "StatefulPartitionedCall", {}, [](NodeDef* node) {
    (*node->mutable_attr())["Tin"].mutable_list();
    (*node->mutable_attr())["Tout"].mutable_list();
    (*node->mutable_attr())["f"].mutable_func()->set_name("does_nothing");
  });
  return files;
}

class RunExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto made = tensorflow::DeviceFactory::GetFactory("CPU")->CreateDevices(
        tensorflow::SessionOptions(), "/job:localhost/replica:0/task:0", &devices_);
    ASSERT_TRUE(made.ok()) << made;
  }

  // Makes an executor of the type for the model's whole graph.
  std::unique_ptr<tensorflow::Executor> Make(const std::string& type, SavedModelFiles files) {
    tensorflow::GraphDef graph_def = files.meta_graph().graph_def();
    tensorflow::GraphConstructorOptions options;
    options.allow_internal_ops = true;
    auto graph = std::make_unique<tensorflow::Graph>(tensorflow::OpRegistry::Global());
    const auto built = tensorflow::ConvertGraphDefToGraph(options, graph_def, graph.get());
    EXPECT_TRUE(built.ok()) << built;
    tensorflow::LocalExecutorParams params;
    params.device = devices_[0].get();
    params.create_kernel = [this](const auto& properties, tensorflow::OpKernel** kernel) {
      made_ops_.push_back(properties->node_def.op());
      return tensorflow::CreateNonCachedKernel(devices_[0].get(), nullptr, properties,
                                               TF_GRAPH_DEF_VERSION, kernel);
    };
    params.delete_kernel = [](tensorflow::OpKernel* kernel) {
      tensorflow::DeleteNonCachedKernel(kernel);
    };
    std::unique_ptr<tensorflow::Executor> executor;
    const auto made = tensorflow::NewExecutor(type, params, *graph, &executor);
    EXPECT_TRUE(made.ok()) << made;
    return executor;
  }

  bool HasUsualExecutor(const SavedModelFiles& files) {
    const auto made = Make(kRunExecutor, files);
    return made != nullptr && dynamic_cast<const InOrderExecutor*>(made.get()) == nullptr;
  }

  std::vector<std::unique_ptr<tensorflow::Device>> devices_;
  std::vector<std::string> made_ops_;  // of the kernels, in the order in which they were made
};

TEST_F(RunExecutorTest, PlainGraphRunsInOrder) {
  EXPECT_FALSE(HasUsualExecutor(testing::DoublingModel()));
}

TEST_F(RunExecutorTest, VariablesRunInOrder) {
  EXPECT_FALSE(HasUsualExecutor(testing::VariableModel(testing::Vector<float>({1}))));
}

TEST_F(RunExecutorTest, NodesThatOnlyHandOnHaveNoKernel) {
  SavedModelFiles files = testing::DoublingModel();
  files.AddNode("handed_on", "Identity", {"sum"}, testing::SetFloat);
  files.AddNode("again", "Identity", {"handed_on"}, testing::SetFloat);
  files.AddNode("negative", "Neg", {"again"}, testing::SetFloat);
  files.AddNode("waits", "Identity", {"sum", "^negative"}, testing::SetFloat);
  Make(kRunExecutor, files);
  EXPECT_EQ(absl::c_count(made_ops_, "Identity"), 0);
  EXPECT_EQ(absl::c_count(made_ops_, "Neg"), 1);
}

TEST_F(RunExecutorTest, LoopHasTheUsualExecutor) {
  EXPECT_TRUE(HasUsualExecutor(testing::CountingModel()));
}

TEST_F(RunExecutorTest, ReferencesHaveTheUsualExecutor) {
  EXPECT_TRUE(HasUsualExecutor(ReferenceModel()));
}

TEST_F(RunExecutorTest, AsynchronousKernelHasTheUsualExecutor) {
  EXPECT_TRUE(HasUsualExecutor(QueueModel()));
}

TEST_F(RunExecutorTest, CallOfFunctionHasTheUsualExecutor) {
  EXPECT_TRUE(HasUsualExecutor(CallModel()));
}

}  // namespace
}  // namespace millpond::tf
