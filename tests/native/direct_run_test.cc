#include "native/tf/direct_run.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "native/tf/callable.h"
#include "native/tf/run_executor.h"
#include "native/tf/signature_def.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"
#include "tensorflow/core/public/session.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"
#include "tests/native/threads.h"

namespace millpond::tf {
namespace {

using tensorflow::DT_FLOAT;
using tensorflow::DT_INT32;
using tensorflow::DT_STRING;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using testing::IsSame;
using testing::SavedModelFiles;
using testing::Scalar;
using testing::SetFloat;
using testing::Values;
using testing::Vector;

using Tensors = std::vector<Tensor>;
using Names = std::vector<std::string>;

// The runs that TensorFlow's sessions have counted in this process.
int64_t SessionRunCount() {
  const auto collected = tensorflow::monitoring::CollectionRegistry::Default()->CollectMetrics({});
  const auto found = collected->point_set_map.find("/tensorflow/core/direct_session_runs");
  if (found == collected->point_set_map.end() || found->second->points.empty()) return 0;
  return found->second->points[0]->int64_value;
}

std::unique_ptr<tensorflow::Session> MakeSession(const SavedModelFiles& files) {
  tensorflow::SessionOptions options;
  options.config.mutable_experimental()->set_executor_type(kRunExecutor);
  // Otherwise most nodes of a random graph are gone before it runs.
  options.config.mutable_graph_options()->mutable_rewrite_options()->set_disable_meta_optimizer(
      true);
  std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession(options));
  auto graph = files;
  const auto created = session->Create(graph.meta_graph().graph_def());
  EXPECT_TRUE(created.ok()) << created;
  return session;
}

// A callable of a session, and the same graph beside the session.
class Both {
 public:
  Both(tensorflow::Session* session, const Names& feeds, const Names& fetches)
      : session_(session), fetch_count_(fetches.size()) {
    tensorflow::CallableOptions options;
    options.mutable_run_options()->set_inter_op_thread_pool(-1);
    for (const std::string& feed : feeds) options.add_feed(feed);
    for (const std::string& fetch : fetches) options.add_fetch(fetch);
    const MadeExecutors executors;
    const auto made = session->MakeCallable(options, &handle_);
    EXPECT_TRUE(made.ok()) << made;
    EXPECT_NE(executors.OnlyInOrder(), nullptr);
    direct_ = std::make_unique<const DirectRun>(executors.OnlyInOrder(), session, fetches);
  }
  ~Both() { EXPECT_TRUE(session_->ReleaseCallable(handle_).ok()); }
  Both(const Both&) = delete;
  Both& operator=(const Both&) = delete;

  const DirectRun& direct() const { return *direct_; }

  std::pair<absl::Status, Tensors> RunOfSession(const Tensors& fed) const {
    Tensors fetched;
    const absl::Status ran = session_->RunCallable(handle_, fed, &fetched, nullptr);
    return {ran, fetched};
  }
  std::pair<absl::Status, Tensors> RunDirectly(const Tensors& fed) const {
    Tensors fetched(fetch_count_);
    const absl::Status ran = direct_->Run(fed, &fetched);
    return {ran, fetched};
  }

 private:
  tensorflow::Session* const session_;
  const size_t fetch_count_;
  tensorflow::Session::CallableHandle handle_ = 0;
  std::unique_ptr<const DirectRun> direct_;
};

void ExpectSame(const std::pair<absl::Status, Tensors>& answer,
                const std::pair<absl::Status, Tensors>& expected) {
  EXPECT_EQ(answer.first, expected.first);
  if (!answer.first.ok()) return;
  ASSERT_EQ(answer.second.size(), expected.second.size());
  for (size_t i = 0; i < answer.second.size(); ++i) {
    EXPECT_TRUE(IsSame(answer.second[i], expected.second[i])) << i;
  }
}

// A random graph over two fed vectors: sums of different lengths fail, as do checks of values that
// are not numbers. Any node may be fetched, a fed one apart.
SavedModelFiles RandomChecks(std::mt19937* random) {
  SavedModelFiles files;
  files.AddPlaceholder("x", DT_FLOAT, {-1});
  files.AddPlaceholder("y", DT_FLOAT, {-1});
  files.AddConst("two", Vector<float>({2, -2}));
  Names values = {"x", "y", "two"};
  for (int i = 0; i < 12; ++i) {
    const std::string name = "n" + std::to_string(i);
    const auto any = [&] { return values[(*random)() % values.size()]; };
    switch ((*random)() % 10) {
      case 0:
        files.AddNode(name, "CheckNumerics", {any()}, [&](NodeDef* node) {
          SetFloat(node);
          (*node->mutable_attr())["message"].set_s(name + " is checked");
        });
        break;
      case 1:
        files.AddNode(name, "Log", {any()}, SetFloat);
        break;
      case 2:
        files.AddNode(name, "Identity", {any()}, SetFloat);
        break;
      case 3:
        files.AddNode(name, "Identity", {any(), "^" + any()}, SetFloat);
        break;
      default:
        files.AddNode(name, (*random)() % 2 == 0 ? "Sub" : "Mul", {any(), any()}, SetFloat);
    }
    values.push_back(name);
  }
  return files;
}

Tensor RandomVector(std::mt19937* random) {
  std::vector<float> values((*random)() % 8 == 0 ? 3 : (*random)() % 4 == 0 ? 1 : 2);
  for (float& value : values) value = static_cast<float>(static_cast<int>((*random)() % 9) - 2);
  Tensor tensor(DT_FLOAT, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) tensor.flat<float>()(i) = values[i];
  return tensor;
}

TEST(DirectRun, RandomGraphsAnswerAndFailAsTheSession) {
  std::mt19937 random(2'026);
  int failed_count = 0;
  int answered_count = 0;
  for (int i = 0; i < 60; ++i) {
    const auto session = MakeSession(RandomChecks(&random));
    Names fetches;
    for (int fetch = 0; fetch < 3; ++fetch) {
      fetches.push_back("n" + std::to_string(fetch * 4 + random() % 4) + ":0");
    }
    const Both both(session.get(), {"x:0", "y:0"}, fetches);
    for (int run = 0; run < 12; ++run) {
      const Tensors fed = {RandomVector(&random), RandomVector(&random)};
      const auto expected = both.RunOfSession(fed);
      ExpectSame(both.RunDirectly(fed), expected);
      ++(expected.first.ok() ? answered_count : failed_count);
    }
  }
  EXPECT_GT(failed_count, 100);
  EXPECT_GT(answered_count, 100);
}

TEST(DirectRun, FailsAsTheSessionForAnotherDtype) {
  const auto session = MakeSession(testing::DoublingModel());
  const Both both(session.get(), {"x:0"}, {"sum:0"});
  const Tensors fed = {Vector<int32_t>({1})};
  const auto expected = both.RunOfSession(fed);
  EXPECT_FALSE(expected.first.ok());
  ExpectSame(both.RunDirectly(fed), expected);
}

TEST(DirectRun, IsNotReadyBeforeARunOfTheSession) {
  const auto session = MakeSession(testing::DoublingModel());
  const Both both(session.get(), {"x:0"}, {"sum:0"});
  EXPECT_FALSE(both.direct().IsReady());
  EXPECT_TRUE(both.RunOfSession({Vector<float>({1})}).first.ok());
  EXPECT_TRUE(both.direct().IsReady());
}

// A read of a variable waits for its assignment, by way of nodes that only hand on.
SavedModelFiles AssigningModel() {
  SavedModelFiles files;
  const auto dtype = [](NodeDef* node) { (*node->mutable_attr())["dtype"].set_type(DT_FLOAT); };
  files.AddPlaceholder("x", DT_FLOAT, {-1});
  files.AddNode("v", "VarHandleOp", {}, [&](NodeDef* node) {
    dtype(node);
    (*node->mutable_attr())["shared_name"].set_s("v");
    (*node->mutable_attr())["shape"].mutable_shape()->set_unknown_rank(true);
  });
  files.AddNode("set", "AssignVariableOp", {"v", "x"}, dtype);
  files.AddNode("set_before", "Identity", {"x", "^set"}, SetFloat);
  files.AddNode("and_again", "Identity", {"set_before"}, SetFloat);
  files.AddNode("read", "ReadVariableOp", {"v", "^and_again"}, dtype);
  files.AddNode("negative", "Neg", {"read"}, SetFloat);
  return files;
}

TEST(DirectRun, NodesWaitForWhatHandedOnNodesWaitFor) {
  const auto session = MakeSession(AssigningModel());
  const Both both(session.get(), {"x:0"}, {"negative:0"});
  ASSERT_TRUE(both.RunOfSession({Vector<float>({1})}).first.ok());
  for (const float x : {2.0F, 3.0F, 4.0F}) {
    const auto answer = both.RunDirectly({Vector<float>({x})});
    ASSERT_TRUE(answer.first.ok()) << answer.first;
    EXPECT_EQ(Values<float>(answer.second[0]), (std::vector<float>{-x}));
  }
}

// An array that lives as long as its run; its size is fetched.
SavedModelFiles ArrayModel() {
  SavedModelFiles files;
  files.AddPlaceholder("size", DT_INT32, {});
  files.AddNode("array", "TensorArrayV3", {"size"},
                [](NodeDef* node) { (*node->mutable_attr())["dtype"].set_type(DT_FLOAT); });
  files.AddNode("size_of_array", "TensorArraySizeV3", {"array", "array:1"});
  return files;
}

TEST(DirectRun, LeavesNoResourcesOfTheRun) {
  const auto session = MakeSession(ArrayModel());
  const Both both(session.get(), {"size:0"}, {"size_of_array:0"});
  const Tensors fed = {Scalar<int32_t>(7)};
  const auto expected = both.RunOfSession(fed);
  ASSERT_TRUE(expected.first.ok()) << expected.first;
  for (int run = 0; run < 3; ++run) ExpectSame(both.RunDirectly(fed), expected);
  const tensorflow::DeviceMgr* devices = nullptr;
  ASSERT_TRUE(session->LocalDeviceManager(&devices).ok());
  const std::string left = devices->ListDevices()[0]->resource_manager()->DebugString();
  EXPECT_EQ(left.find("per_step"), std::string::npos) << left;
}

// `keep` keeps x in the session, and fetches its handle.
SavedModelFiles KeepingModel() {
  SavedModelFiles files;
  files.AddPlaceholder("x", DT_FLOAT, {-1});
  files.AddNode("keep", "GetSessionHandle", {"x"}, SetFloat);
  files.AddPlaceholder("handle", DT_STRING, {});
  files.AddNode("kept", "GetSessionTensor", {"handle"},
                [](NodeDef* node) { (*node->mutable_attr())["dtype"].set_type(DT_FLOAT); });
  return files;
}

TEST(DirectRun, KeepsTensorsInTheSession) {
  const auto session = MakeSession(KeepingModel());
  const Both keep(session.get(), {"x:0"}, {"keep:0"});
  const Both kept(session.get(), {"handle:0"}, {"kept:0"});
  ASSERT_TRUE(keep.RunOfSession({Vector<float>({1})}).first.ok());
  const auto handle = keep.RunDirectly({Vector<float>({2, 3})});
  ASSERT_TRUE(handle.first.ok()) << handle.first;
  const auto of_session = kept.RunOfSession(handle.second);
  ASSERT_TRUE(of_session.first.ok()) << of_session.first;
  EXPECT_EQ(Values<float>(of_session.second[0]), (std::vector<float>{2, 3}));
  ExpectSame(kept.RunDirectly(handle.second), of_session);
}

TEST(DirectRun, ManyThreadsRunAtATime) {
  const auto session = MakeSession(ArrayModel());
  const Both both(session.get(), {"size:0"}, {"size_of_array:0"});
  ASSERT_TRUE(both.RunOfSession({Scalar<int32_t>(1)}).first.ok());
  testing::RunTogether(4, [&](int thread) {
    for (int run = 0; run < 300; ++run) {
      const Tensors fed = {Scalar<int32_t>(thread * 1'000 + run)};
      const auto answer = both.RunDirectly(fed);
      ASSERT_TRUE(answer.first.ok()) << answer.first;
      ASSERT_EQ(answer.second[0].scalar<int32_t>()(), thread * 1'000 + run);
    }
  });
}

// --- Callables ---

class CallableTest : public ::testing::Test {
 protected:
  void Make(SavedModelFiles files) {
    session_ = MakeSession(files);
    signature_ = MakeSignature("s", files.meta_graph().signature_def().at("serving_default"));
    callable_ = std::make_unique<const Callable>(session_.get(), signature_,
                                                 tensor::OutputSet::All(signature_.outputs.size()));
  }
  // Runs three times, and returns the number of runs that were the session's.
  int64_t CountSessionRuns(const Tensors& fed, const Tensor& expected) {
    const int64_t before_count = SessionRunCount();
    for (int run = 0; run < 3; ++run) {
      tensor::TensorList inputs;
      inputs.storage().tensors = fed;
      tensor::TensorList result;
      const base::Status ran = callable_->Run(inputs, &result);
      EXPECT_TRUE(ran.ok()) << ran.message();
      EXPECT_TRUE(IsSame(result.storage().tensors.at(0), expected));
    }
    return SessionRunCount() - before_count;
  }

  std::unique_ptr<tensorflow::Session> session_;
  tensor::Signature signature_;
  std::unique_ptr<const Callable> callable_;
};

TEST_F(CallableTest, OnlyTheFirstRunIsTheSessions) {
  Make(testing::DoublingModel());
  EXPECT_EQ(CountSessionRuns({Vector<float>({3})}, Vector<float>({6})), 1);
}

TEST_F(CallableTest, EachRunOfALoopIsTheSessions) {
  Make(testing::CountingModel());
  EXPECT_EQ(CountSessionRuns({Scalar<float>(4), Scalar<float>(1)}, Scalar<float>(4)), 3);
}

TEST_F(CallableTest, MissingInputFailsAfterTheFirstRunToo) {
  Make(testing::DoublingModel());
  EXPECT_EQ(CountSessionRuns({Vector<float>({3})}, Vector<float>({6})), 1);
  tensor::TensorList result;
  EXPECT_EQ(callable_->Run({}, &result).code(), base::Code::kInvalidArgument);
}

}  // namespace
}  // namespace millpond::tf
