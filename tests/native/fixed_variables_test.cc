#include "native/tf/fixed_variables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "native/tf/fixed_value.h"
#include "native/tf/run_executor.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

using tensorflow::DataType;
using tensorflow::DT_FLOAT;
using tensorflow::DT_INT32;
using tensorflow::DT_INT64;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using testing::IsSame;
using testing::SavedModelFiles;
using testing::Scalar;
using testing::Values;
using testing::Vector;

constexpr char kUsualExecutor[] = "";

// A graph, and the result of each fetch: a tensor, or the error.
class Model {
 public:
  explicit Model(const SavedModelFiles& files, const char* executor_type = kRunExecutor) {
    tensorflow::SessionOptions options;
    options.config.mutable_experimental()->set_executor_type(executor_type);
    // Otherwise constants are gathered before the run.
    options.config.mutable_graph_options()->mutable_rewrite_options()->set_constant_folding(
        tensorflow::RewriterConfig::OFF);
    session_.reset(tensorflow::NewSession(options));
    auto graph = files;
    const auto extended = session_->Create(graph.meta_graph().graph_def());
    EXPECT_TRUE(extended.ok()) << extended;
  }

  void Do(const std::string& node) {
    const auto ran = session_->Run({}, {}, {node}, nullptr);
    EXPECT_TRUE(ran.ok()) << ran;
  }

  std::pair<Tensor, std::string> Fetch(
      const std::string& name, const std::vector<std::pair<std::string, Tensor>>& feeds = {}) {
    std::vector<Tensor> fetched;
    const auto ran = session_->Run(feeds, {name}, {}, &fetched);
    if (!ran.ok()) return {Tensor(), std::string(ran.message())};
    return {fetched[0], ""};
  }
  std::vector<float> Floats(const std::string& name) { return Values<float>(Fetch(name).first); }

  tensorflow::Session* session() { return session_.get(); }

  tensorflow::core::RefCountPtr<tensorflow::Var> Variable(const std::string& name) {
    const tensorflow::DeviceMgr* manager = nullptr;
    EXPECT_TRUE(session_->LocalDeviceManager(&manager).ok());
    auto* const resources = manager->ListDevices()[0]->resource_manager();
    tensorflow::Var* found = nullptr;
    EXPECT_TRUE(resources->Lookup(resources->default_container(), name, &found).ok());
    return tensorflow::core::RefCountPtr<tensorflow::Var>(found);
  }

 private:
  std::unique_ptr<tensorflow::Session> session_;
};

// A variable `v`, an assignment `set` of `value` to it, reads, and a gather of the rows `ids`.
SavedModelFiles VariableGraph(const Tensor& value, const Tensor& ids) {
  SavedModelFiles files;
  const auto dtype = [&](NodeDef* node) { (*node->mutable_attr())["dtype"].set_type(DT_FLOAT); };
  files.AddNode("v", "VarHandleOp", {}, [&](NodeDef* node) {
    dtype(node);
    (*node->mutable_attr())["shared_name"].set_s("v");
    value.shape().AsProto((*node->mutable_attr())["shape"].mutable_shape());
  });
  files.AddConst("value", value);
  files.AddConst("ids", ids);
  files.AddConst("two", Scalar<float>(2));
  files.AddNode("set", "AssignVariableOp", {"v", "value"}, dtype);
  files.AddNode("handle", "Identity", {"v"}, [](NodeDef* node) {
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_RESOURCE);
  });
  files.AddNode("read", "ReadVariableOp", {"handle"}, dtype);
  files.AddNode("twice", "Mul", {"read", "two"}, testing::SetFloat);
  files.AddNode("gather", "ResourceGather", {"v", "ids"}, [&](NodeDef* node) {
    dtype(node);
    (*node->mutable_attr())["Tindices"].set_type(ids.dtype());
  });
  files.AddNode("twice_gather", "Mul", {"gather", "two"}, testing::SetFloat);
  return files;
}

// An error without the names of nodes, which follow its text.
std::string WithoutNode(const std::string& message) {
  return message.substr(0, message.find("[["));
}

Tensor Rows() {
  Tensor rows(DT_FLOAT, {4, 2});
  for (int i = 0; i < 8; ++i) rows.flat<float>()(i) = static_cast<float>(i);
  return rows;
}

void Overwrite(tensorflow::Var* variable, float value) {
  const tensorflow::mutex_lock lock(*variable->mu());
  Tensor changed(DT_FLOAT, variable->tensor()->shape());
  changed.flat<float>().setConstant(value);
  *variable->tensor() = changed;
}

TEST(FixedVariables, AnswersAreThoseOfTheVariable) {
  Model model(VariableGraph(Rows(), Vector<int64_t>({3, 0, 3})));
  model.Do("set");
  FixVariables(model.session());
  EXPECT_EQ(model.Floats("twice"), (std::vector<float>{0, 2, 4, 6, 8, 10, 12, 14}));
  EXPECT_EQ(model.Floats("twice_gather"), (std::vector<float>{12, 14, 0, 2, 12, 14}));
}

// A run does not look the variable up, so it does not see a value that came behind its back.
TEST(FixedVariables, RunDoesNotLookTheVariableUp) {
  Model model(VariableGraph(Rows(), Vector<int32_t>({1})));
  model.Do("set");
  FixVariables(model.session());
  EXPECT_EQ(model.Floats("twice_gather"), (std::vector<float>{4, 6}));
  const std::vector<float> before = model.Floats("twice");
  Overwrite(model.Variable("v").get(), 100);
  EXPECT_EQ(model.Floats("twice_gather"), (std::vector<float>{4, 6}));
  EXPECT_EQ(model.Floats("twice"), before);
}

TEST(FixedVariables, WithoutFixingEachRunLooksItUp) {
  Model model(VariableGraph(Rows(), Vector<int32_t>({1})));
  model.Do("set");
  EXPECT_EQ(model.Floats("twice_gather"), (std::vector<float>{4, 6}));
  Overwrite(model.Variable("v").get(), 100);
  EXPECT_EQ(model.Floats("twice_gather"), (std::vector<float>{200, 200}));
}

// TensorFlow's gather has all later reads copy the variable.
TEST(FixedVariables, GatherIsOursWithoutFixingToo) {
  Model model(VariableGraph(Rows(), Vector<int32_t>({1})));
  model.Do("set");
  EXPECT_EQ(model.Floats("gather"), (std::vector<float>{2, 3}));
  EXPECT_FALSE(model.Variable("v")->copy_on_read_mode);
}

// TensorFlow's gather copies a table to which there is a second reference.
TEST(FixedVariables, VariableKeepsTheOnlyReferenceToItsBuffer) {
  Model model(VariableGraph(Rows(), Vector<int32_t>({1})));
  model.Do("set");
  const void* const memory = model.Variable("v")->tensor()->data();
  FixVariables(model.session());
  model.Floats("twice");
  model.Floats("twice_gather");
  EXPECT_TRUE(model.Variable("v")->tensor()->RefCountIsOne());
  EXPECT_EQ(model.Variable("v")->tensor()->data(), memory);
}

TEST(FixedVariables, ValueOutlivesTheVariablesBuffer) {
  Model model(VariableGraph(Rows(), Vector<int32_t>({1})));
  model.Do("set");
  FixVariables(model.session());
  const std::vector<float> before = model.Floats("twice");
  *model.Variable("v")->tensor() = Tensor();
  EXPECT_EQ(model.Floats("twice"), before);
}

TEST(FixedVariables, VariableWithoutValueIsAnErrorOfTheRun) {
  Model model(VariableGraph(Rows(), Vector<int32_t>({1})));
  FixVariables(model.session());
  EXPECT_NE(model.Fetch("twice").second, "");
  EXPECT_NE(model.Fetch("twice_gather").second, "");
  model.Do("set");
  EXPECT_EQ(model.Floats("twice_gather"), (std::vector<float>{4, 6}));
}

TEST(FixedVariables, EmptyVariableIsRead) {
  Model model(VariableGraph(Tensor(DT_FLOAT, {0, 2}), Tensor(DT_INT32, {0})));
  model.Do("set");
  FixVariables(model.session());
  EXPECT_EQ(model.Fetch("twice").first.shape(), TensorShape({0, 2}));
  EXPECT_EQ(model.Fetch("twice_gather").first.shape(), TensorShape({0, 2}));
}

TEST(FixedVariables, GatherFailsAsWithoutFixing) {
  int failed_count = 0;
  for (const TensorShape& shape : {TensorShape({4, 2}), TensorShape({4, 0}), TensorShape({0, 2})}) {
    for (const int64_t id : {-1, 0, 3, 4}) {
      const SavedModelFiles files =
          VariableGraph(Tensor(DT_FLOAT, shape), Vector<int64_t>({0, id}));
      Model theirs(files, kUsualExecutor);
      theirs.Do("set");
      const auto expected = theirs.Fetch("gather");
      Model model(files);
      model.Do("set");
      const auto unfixed = model.Fetch("gather");
      EXPECT_EQ(unfixed.first.shape(), expected.first.shape()) << shape << " by " << id;
      EXPECT_EQ(WithoutNode(unfixed.second), WithoutNode(expected.second)) << shape << " by " << id;
      FixVariables(model.session());
      const auto answer = model.Fetch("twice_gather");
      EXPECT_EQ(answer.first.shape(), expected.first.shape()) << shape << " by " << id;
      EXPECT_EQ(WithoutNode(answer.second), WithoutNode(expected.second)) << shape << " by " << id;
      if (!expected.second.empty()) ++failed_count;
    }
  }
  EXPECT_GT(failed_count, 3);
}

// A random graph of products and sums over a fed value and reads of four variables.
SavedModelFiles RandomGraph(std::mt19937* random) {
  SavedModelFiles files;
  files.AddPlaceholder("x", DT_FLOAT, {2});
  std::vector<std::string> values = {"x"};
  const auto dtype = [](NodeDef* node) { (*node->mutable_attr())["dtype"].set_type(DT_FLOAT); };
  std::vector<std::string> sets;
  for (int i = 0; i < 4; ++i) {
    const std::string name = "v" + std::to_string(i);
    files.AddNode(name, "VarHandleOp", {}, [&](NodeDef* node) {
      dtype(node);
      (*node->mutable_attr())["shared_name"].set_s(name);
      (*node->mutable_attr())["shape"].mutable_shape()->set_unknown_rank(true);
    });
    files.AddConst(name + "/value", Vector<float>({1.5F + static_cast<float>(i), -0.5F}));
    files.AddNode(name + "/set", "AssignVariableOp", {name, name + "/value"}, dtype);
    files.AddNode(name + "/read", "ReadVariableOp", {name}, dtype);
    sets.push_back("^" + name + "/set");
    values.push_back(name + "/read");
  }
  files.AddNode("set", "NoOp", sets);
  for (int i = 0; i < 12; ++i) {
    const std::string name = "n" + std::to_string(i);
    const char* const op = (*random)() % 2 == 0 ? "Sub" : "Mul";
    // The last node is fetched, and uses the one before it.
    const std::string first = values[(*random)() % values.size()];
    const std::string second = i == 11 ? values.back() : values[(*random)() % values.size()];
    files.AddNode(name, op, {first, second}, testing::SetFloat);
    values.push_back(name);
  }
  files.AddNode("again", "Neg", {"n11"}, testing::SetFloat);
  return files;
}

TEST(FixedVariables, RandomGraphsAnswerAsWithoutFixing) {
  std::mt19937 random(2'026);
  for (int i = 0; i < 100; ++i) {
    Model model(RandomGraph(&random));
    model.Do("set");
    const std::vector<std::pair<std::string, Tensor>> feeds = {{"x", Vector<float>({0.25F, 3})}};
    std::vector<float> expected = Values<float>(model.Fetch("n11", feeds).first);
    for (float& value : expected) value = -value;
    FixVariables(model.session());
    for (int run = 0; run < 2; ++run) {
      EXPECT_EQ(Values<float>(model.Fetch("again", feeds).first), expected);
    }
  }
}

// --- Gathers: TensorFlow's kernel is the oracle ---

Tensor RandomTensor(DataType dtype, const TensorShape& shape, std::mt19937* random) {
  Tensor tensor(dtype, shape);
  auto* const bytes = static_cast<char*>(tensor.data());
  // A bool has two values.
  const unsigned mask = dtype == tensorflow::DT_BOOL ? 1 : 0xFF;
  for (size_t i = 0; i < tensor.TotalBytes(); ++i) {
    bytes[i] = static_cast<char>((*random)() & mask);
  }
  return tensor;
}

TensorShape RandomShape(int dims_min, int dims_max, std::mt19937* random) {
  constexpr int64_t kSizes[] = {0, 1, 1, 2, 3, 4, 7, 16, 33};
  TensorShape shape;
  const int dims = dims_min + static_cast<int>((*random)() % (dims_max - dims_min + 1));
  for (int i = 0; i < dims; ++i) shape.AddDim(kSizes[(*random)() % std::size(kSizes)]);
  return shape;
}

template <typename Id>
Tensor RandomIds(int64_t row_count, bool has_bad, std::mt19937* random) {
  Tensor ids(tensorflow::DataTypeToEnum<Id>::v(), RandomShape(0, 2, random));
  for (int64_t i = 0; i < ids.NumElements(); ++i) {
    ids.flat<Id>()(i) =
        static_cast<Id>((*random)() % static_cast<unsigned>(std::max<int64_t>(row_count, 1)));
  }
  if (has_bad && ids.NumElements() > 0) {
    ids.flat<Id>()((*random)() % ids.NumElements()) =
        static_cast<Id>((*random)() % 2 == 0 ? -1 : row_count);
  }
  return ids;
}

SavedModelFiles GatherGraph(DataType dtype, DataType id_dtype) {
  SavedModelFiles files;
  files.AddNode("table", "Placeholder", {},
                [&](NodeDef* node) { (*node->mutable_attr())["dtype"].set_type(dtype); });
  files.AddNode("ids", "Placeholder", {},
                [&](NodeDef* node) { (*node->mutable_attr())["dtype"].set_type(id_dtype); });
  files.AddConst("axis", Scalar<int32_t>(0));
  const auto add = [&](const std::string& name, const char* kernel) {
    files.AddNode(name, "GatherV2", {"table", "ids", "axis"}, [&](NodeDef* node) {
      (*node->mutable_attr())["Tparams"].set_type(dtype);
      (*node->mutable_attr())["Tindices"].set_type(id_dtype);
      (*node->mutable_attr())["Taxis"].set_type(DT_INT32);
      if (kernel != nullptr) (*node->mutable_attr())["_kernel"].set_s(kernel);
    });
  };
  add("theirs", nullptr);
  add("ours", kMillpondKernel);
  return files;
}

TEST(GatherKernel, AnswersBitForBitAsTensorFlows) {
  constexpr DataType kDtypes[] = {
      DT_FLOAT, tensorflow::DT_HALF, tensorflow::DT_BFLOAT16,  tensorflow::DT_INT8,
      DT_INT64, tensorflow::DT_BOOL, tensorflow::DT_COMPLEX128};
  std::mt19937 random(2'026);
  int failed_count = 0;
  for (const DataType dtype : kDtypes) {
    for (const DataType id_dtype : {DT_INT32, DT_INT64}) {
      Model model(GatherGraph(dtype, id_dtype), kUsualExecutor);
      for (int i = 0; i < 150; ++i) {
        const Tensor table = RandomTensor(dtype, RandomShape(1, 3, &random), &random);
        const bool has_bad = random() % 8 == 0;
        const Tensor ids = id_dtype == DT_INT32
                               ? RandomIds<int32_t>(table.dim_size(0), has_bad, &random)
                               : RandomIds<int64_t>(table.dim_size(0), has_bad, &random);
        const auto expected = model.Fetch("theirs", {{"table", table}, {"ids", ids}});
        const auto answer = model.Fetch("ours", {{"table", table}, {"ids", ids}});
        EXPECT_TRUE(IsSame(answer.first, expected.first))
            << table.DebugString() << " by " << ids.DebugString(100);
        EXPECT_EQ(WithoutNode(answer.second), WithoutNode(expected.second));
        if (!expected.second.empty()) ++failed_count;
      }
    }
  }
  EXPECT_GT(failed_count, 50);
}

TEST(GatherKernel, ScalarHasNoRows) {
  Model model(GatherGraph(DT_FLOAT, DT_INT32), kUsualExecutor);
  const std::vector<std::pair<std::string, Tensor>> feeds = {{"table", Scalar<float>(1)},
                                                             {"ids", Vector<int32_t>({0})}};
  EXPECT_NE(model.Fetch("theirs", feeds).second, "");
  EXPECT_NE(model.Fetch("ours", feeds).second, "");
}

// In an executor of ours a GatherV2 by rows has the kernel, and another axis has not.
TEST(GatherKernel, OtherAxesAreTensorFlows) {
  SavedModelFiles files;
  files.AddPlaceholder("table", DT_FLOAT, {2, 2});
  files.AddPlaceholder("ids", DT_INT32, {1});
  files.AddConst("rows", Scalar<int32_t>(0));
  files.AddConst("columns", Scalar<int32_t>(1));
  for (const std::string axis : {"rows", "columns"}) {
    files.AddNode("by_" + axis, "GatherV2", {"table", "ids", axis}, [](NodeDef* node) {
      (*node->mutable_attr())["Tparams"].set_type(DT_FLOAT);
      (*node->mutable_attr())["Tindices"].set_type(DT_INT32);
      (*node->mutable_attr())["Taxis"].set_type(DT_INT32);
    });
  }
  Model model(files);
  Tensor table(DT_FLOAT, {2, 2});
  for (int i = 0; i < 4; ++i) table.flat<float>()(i) = static_cast<float>(i);
  const std::vector<std::pair<std::string, Tensor>> feeds = {{"table", table},
                                                             {"ids", Vector<int32_t>({1})}};
  EXPECT_EQ(Values<float>(model.Fetch("by_rows", feeds).first), (std::vector<float>{2, 3}));
  EXPECT_EQ(Values<float>(model.Fetch("by_columns", feeds).first), (std::vector<float>{1, 3}));
}

// --- Sums of rows: TensorFlow's kernels are the oracle ---

constexpr const char* kSegmentOps[] = {"SparseSegmentSum", "SparseSegmentMean",
                                       "SparseSegmentSqrtN"};

// For each op a node with TensorFlow's kernel, and one with ours.
SavedModelFiles SegmentGraph(DataType dtype, DataType id_dtype, DataType segment_dtype) {
  SavedModelFiles files;
  const auto placeholder = [&](const char* name, DataType of) {
    files.AddNode(name, "Placeholder", {},
                  [&](NodeDef* node) { (*node->mutable_attr())["dtype"].set_type(of); });
  };
  placeholder("table", dtype);
  placeholder("ids", id_dtype);
  placeholder("segments", segment_dtype);
  for (const std::string op : kSegmentOps) {
    for (const bool is_ours : {false, true}) {
      files.AddNode(op + (is_ours ? "/ours" : "/theirs"), op, {"table", "ids", "segments"},
                    [&](NodeDef* node) {
                      (*node->mutable_attr())["T"].set_type(dtype);
                      (*node->mutable_attr())["Tidx"].set_type(id_dtype);
                      (*node->mutable_attr())["Tsegmentids"].set_type(segment_dtype);
                      if (is_ours) (*node->mutable_attr())["_kernel"].set_s(kMillpondKernel);
                    });
    }
  }
  return files;
}

// Segments in ascending order for as many ids, or one fewer, or not in order.
template <typename Segment>
Tensor RandomSegments(int64_t id_count, bool has_bad, std::mt19937* random) {
  const bool is_short = has_bad && (*random)() % 2 == 0 && id_count > 0;
  Tensor segments(tensorflow::DataTypeToEnum<Segment>::v(), {id_count - (is_short ? 1 : 0)});
  Segment segment = 0;
  for (int64_t i = 0; i < segments.NumElements(); ++i) {
    if ((*random)() % 4 == 0) segment = static_cast<Segment>(segment + (*random)() % 3);
    if (has_bad && (*random)() % 8 == 0) segment = static_cast<Segment>(segment - 1);
    segments.flat<Segment>()(i) = segment;
  }
  return segments;
}

template <typename Id, typename Segment>
void CompareSegments(DataType dtype, std::mt19937* random, int* failed_count) {
  Model model(SegmentGraph(dtype, tensorflow::DataTypeToEnum<Id>::v(),
                           tensorflow::DataTypeToEnum<Segment>::v()),
              kUsualExecutor);
  for (int i = 0; i < 60; ++i) {
    const Tensor table = RandomTensor(dtype, RandomShape(1, 3, random), random);
    Tensor ids = RandomIds<Id>(table.dim_size(0), (*random)() % 8 == 0, random);
    if (ids.dims() != 1 && (*random)() % 8 != 0) {
      Tensor flat;
      ASSERT_TRUE(flat.CopyFrom(ids, {ids.NumElements()}));
      ids = flat;
    }
    const Tensor segments =
        RandomSegments<Segment>(ids.NumElements(), (*random)() % 8 == 0, random);
    for (const std::string op : kSegmentOps) {
      const std::vector<std::pair<std::string, Tensor>> feeds = {
          {"table", table}, {"ids", ids}, {"segments", segments}};
      const auto expected = model.Fetch(op + "/theirs", feeds);
      const auto answer = model.Fetch(op + "/ours", feeds);
      EXPECT_TRUE(IsSame(answer.first, expected.first)) << op << " of " << table.DebugString();
      EXPECT_EQ(WithoutNode(answer.second), WithoutNode(expected.second));
      if (!expected.second.empty()) ++*failed_count;
    }
  }
}

TEST(SegmentKernel, AnswersBitForBitAsTensorFlows) {
  std::mt19937 random(2'026);
  int failed_count = 0;
  for (const DataType dtype : {DT_FLOAT, tensorflow::DT_HALF, tensorflow::DT_BFLOAT16}) {
    CompareSegments<int32_t, int32_t>(dtype, &random, &failed_count);
    CompareSegments<int64_t, int32_t>(dtype, &random, &failed_count);
    CompareSegments<int32_t, int64_t>(dtype, &random, &failed_count);
    CompareSegments<int64_t, int64_t>(dtype, &random, &failed_count);
  }
  EXPECT_GT(failed_count, 50);
}

// Sums of the rows of a variable: the graph of embedding_lookup_sparse with allow_fast_lookup.
TEST(SegmentKernel, SumsOfAFixedVariableAnswerAsBefore) {
  SavedModelFiles files = VariableGraph(Rows(), Vector<int64_t>({3, 0, 3}));
  files.AddConst("segments", Vector<int32_t>({0, 0, 1}));
  files.AddNode("sums", "SparseSegmentSum", {"read", "ids", "segments"}, [](NodeDef* node) {
    (*node->mutable_attr())["T"].set_type(DT_FLOAT);
    (*node->mutable_attr())["Tidx"].set_type(DT_INT64);
    (*node->mutable_attr())["Tsegmentids"].set_type(DT_INT32);
  });
  files.AddNode("twice_sums", "Mul", {"sums", "two"}, testing::SetFloat);
  Model model(files);
  model.Do("set");
  EXPECT_EQ(model.Floats("sums"), (std::vector<float>{6, 8, 6, 7}));
  FixVariables(model.session());
  EXPECT_EQ(model.Floats("twice_sums"), (std::vector<float>{12, 16, 12, 14}));
}

}  // namespace
}  // namespace millpond::tf
