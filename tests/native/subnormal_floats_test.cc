#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "native/tf/callable.h"
#include "native/tf/run_executor.h"
#include "native/tf/session_callables.h"
#include "native/tf/session_options.h"
#include "native/tf/signature_def.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"

// TensorFlow's threads take subnormal floats for zero. Runs on a thread of another kind do too.
namespace millpond::tf {
namespace {

using tensorflow::DT_DOUBLE;
using tensorflow::DT_FLOAT;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using testing::SavedModelFiles;
using testing::SetFloat;
using testing::Values;
using testing::Vector;

constexpr float kSubnormal = 1e-40F;

void AddCast(const std::string& input, SavedModelFiles* files) {
  files->AddNode("as_double", "Cast", {input}, [](NodeDef* node) {
    (*node->mutable_attr())["SrcT"].set_type(DT_FLOAT);
    (*node->mutable_attr())["DstT"].set_type(DT_DOUBLE);
  });
}

// x -> third (x / 3), as_double.
SavedModelFiles DividingModel() {
  SavedModelFiles files;
  files.AddPlaceholder("x", DT_FLOAT, {-1});
  files.AddConst("three", Vector<float>({3}));
  files.AddNode("third", "RealDiv", {"x", "three"}, SetFloat);
  AddCast("x", &files);
  files.AddSignature("s", {{"x", "x:0", DT_FLOAT}},
                     {{"third", "third:0", DT_FLOAT}, {"as_double", "as_double:0", DT_DOUBLE}});
  return files;
}

// The same in a graph that TensorFlow's usual executor runs, because it has control flow.
SavedModelFiles BranchingModel() {
  SavedModelFiles files = DividingModel();
  files.AddConst("yes", testing::Scalar<bool>(true));
  files.AddNode("switch", "Switch", {"third", "yes"}, SetFloat);
  files.AddNode("taken", "Identity", {"switch:1"}, SetFloat);
  files.meta_graph().clear_signature_def();
  files.AddSignature("s", {{"x", "x:0", DT_FLOAT}},
                     {{"third", "taken:0", DT_FLOAT}, {"as_double", "as_double:0", DT_DOUBLE}});
  return files;
}

// The same of a constant, from which the session computes a constant before it runs. It is too
// large for Grappler.
SavedModelFiles FoldedModel() {
  Tensor large(DT_FLOAT, {1'000'000});
  large.flat<float>().setConstant(kSubnormal);
  SavedModelFiles files;
  files.AddPlaceholder("x", DT_FLOAT, {-1});
  files.AddConst("large", large);
  files.AddConst("three", Vector<float>({3}));
  files.AddNode("folded", "RealDiv", {"large", "three"}, SetFloat);
  AddCast("large", &files);
  files.AddSignature("s", {{"x", "x:0", DT_FLOAT}},
                     {{"third", "folded:0", DT_FLOAT}, {"as_double", "as_double:0", DT_DOUBLE}});
  return files;
}

std::unique_ptr<tensorflow::Session> MakeSession(const SavedModelFiles& files,
                                                 const tensorflow::SessionOptions& options) {
  SavedModelFiles copy = files;
  std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession(options));
  const auto created = session->Create(copy.meta_graph().graph_def());
  EXPECT_TRUE(created.ok()) << created;
  return session;
}

struct Answer {
  std::vector<float> third;
  std::vector<double> as_double;
};

bool operator==(const Answer& one, const Answer& other) {
  return one.third == other.third && one.as_double == other.as_double;
}

Answer AnswerOf(const std::vector<Tensor>& outputs) {
  Answer answer;
  for (const Tensor& output : outputs) {
    if (output.dtype() == DT_FLOAT) answer.third = Values<float>(output);
    if (output.dtype() == DT_DOUBLE) answer.as_double = Values<double>(output);
  }
  return answer;
}

const Tensor& Inputs() {
  static const Tensor inputs =
      Vector<float>({kSubnormal, -kSubnormal, std::numeric_limits<float>::min(), 1, 0});
  return inputs;
}

// The answer of TensorFlow's session on the threads of its pool.
Answer StockAnswer(SavedModelFiles files) {
  const auto& outputs = files.meta_graph().signature_def().at("s").outputs();
  const auto session = MakeSession(files, {});
  std::vector<Tensor> fetched;
  const auto ran =
      session->Run({{"x:0", Inputs()}},
                   {outputs.at("third").name(), outputs.at("as_double").name()}, {}, &fetched);
  EXPECT_TRUE(ran.ok()) << ran;
  return AnswerOf(fetched);
}

// The answers of two runs of a callable on this thread: the first is the session's, and the second
// is beside the session if the graph has a fixed order.
std::vector<Answer> AnswersHere(SavedModelFiles files) {
  const auto session = MakeSession(files, MakeSessionOptions(files.meta_graph()));
  const auto signature = MakeSignature("s", files.meta_graph().signature_def().at("s"));
  const Callable callable(session.get(), signature, tensor::OutputSet::All(2));
  tensor::TensorList inputs;
  inputs.Reset(1);
  inputs.storage().tensors[0] = Inputs();
  std::vector<Answer> answers;
  for (int run = 0; run < 2; ++run) {
    tensor::TensorList result;
    const base::Status ran = callable.Run(inputs, &result);
    EXPECT_TRUE(ran.ok()) << ran.message();
    answers.push_back(AnswerOf(result.storage().tensors));
  }
  return answers;
}

void ExpectStockAnswers(const SavedModelFiles& files) {
  const Answer expected = StockAnswer(files);
  ASSERT_EQ(expected.third.front(), 0) << "TensorFlow does not flush subnormal floats any more";
  for (const Answer& answer : AnswersHere(files)) EXPECT_TRUE(answer == expected);
}

TEST(SubnormalFloats, AreFlushedInAFixedOrder) { ExpectStockAnswers(DividingModel()); }

TEST(SubnormalFloats, AreFlushedByTheUsualExecutor) { ExpectStockAnswers(BranchingModel()); }

TEST(SubnormalFloats, AreFlushedInFoldedConstants) { ExpectStockAnswers(FoldedModel()); }

TEST(SubnormalFloats, AreFlushedInARunOfTheSession) {
  SavedModelFiles files = DividingModel();
  const auto session = MakeSession(files, MakeSessionOptions(files.meta_graph()));
  SessionCallables callables(session.get());
  tensor::TensorList inputs;
  inputs.Reset(1);
  inputs.storage().tensors[0] = Inputs();
  tensor::TensorList result;
  ASSERT_TRUE(callables.Run({{"x:0"}, {"third:0", "as_double:0"}, {}}, inputs, &result).ok());
  EXPECT_TRUE(AnswerOf(result.storage().tensors) == StockAnswer(files));
}

TEST(SubnormalFloats, StayOutsideOfRuns) {
  AnswersHere(DividingModel());
  AnswersHere(BranchingModel());
  const volatile float subnormal = kSubnormal;
  EXPECT_GT(subnormal / 3, 0);
}

}  // namespace
}  // namespace millpond::tf
