#include "native/tf/callable_set.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "native/tensor/run_context.h"
#include "native/tf/servable_device.h"
#include "native/tf/session_runner.h"
#include "native/tf/signature_def.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"
#include "tests/native/threads.h"

namespace millpond::tf {
namespace {

using base::Code;
using base::Status;
using tensorflow::DT_FLOAT;
using testing::SavedModelFiles;
using testing::SetFloat;
using testing::Values;
using testing::Vector;

// x -> checked (x, and fails for NaN), doubled (x + x), x_back (x, handed through).
constexpr size_t kChecked = 0;
constexpr size_t kDoubled = 1;
constexpr size_t kBack = 2;

SavedModelFiles CheckedModel() {
  SavedModelFiles files;
  files.AddPlaceholder("x", DT_FLOAT, {-1});
  files.AddNode("check", "CheckNumerics", {"x"}, [](tensorflow::NodeDef* node) {
    SetFloat(node);
    (*node->mutable_attr())["message"].set_s("x is checked");
  });
  files.AddNode("sum", "AddV2", {"x", "x"}, SetFloat);
  files.AddSignature("s", {{"x", "x:0", DT_FLOAT}},
                     {{"checked", "check:0", DT_FLOAT},
                      {"doubled", "sum:0", DT_FLOAT},
                      {"x_back", "x:0", DT_FLOAT}});
  return files;
}

// x -> y0, y1, ... (x times two to the power of the index).
SavedModelFiles ManyOutputsModel(int output_count) {
  SavedModelFiles files;
  files.AddPlaceholder("x", DT_FLOAT, {-1});
  std::vector<SavedModelFiles::Named> outputs;
  std::string last = "x";
  for (int i = 0; i < output_count; ++i) {
    // The order by name equals the order by number.
    const std::string name = "y" + std::to_string(1'000 + i);
    files.AddNode(name, "AddV2", {last, last}, SetFloat);
    outputs.push_back({name, name + ":0", DT_FLOAT});
    last = name;
  }
  files.AddSignature("s", {{"x", "x:0", DT_FLOAT}}, outputs);
  return files;
}

class CallableSetTest : public ::testing::Test {
 protected:
  void Make(SavedModelFiles files) {
    session_.reset(tensorflow::NewSession({}));
    ASSERT_TRUE(session_->Create(files.meta_graph().graph_def()).ok());
    signature_ = MakeSignature("s", files.meta_graph().signature_def().at("s"));
    callables_ = std::make_unique<CallableSet>(session_.get(), signature_);
  }

  tensor::OutputSet Of(const std::vector<size_t>& indices) const {
    tensor::OutputSet outputs(signature_.outputs.size());
    for (const size_t index : indices) outputs.Add(index);
    return outputs;
  }

  static Status Run(const SignatureRunner& runner, const tensor::OutputSet& outputs, float x,
                    std::vector<float>* values) {
    tensor::TensorList inputs;
    tensor::TensorList result;
    inputs.storage().tensors = {Vector<float>({x})};
    const Status ran = runner.Run(outputs, inputs, &result);
    values->clear();
    for (const auto& tensor : result.storage().tensors) values->push_back(tensor.flat<float>()(0));
    return ran;
  }
  void ExpectAnswer(const std::vector<size_t>& indices, float x,
                    const std::vector<float>& expected) const {
    std::vector<float> values;
    const Status ran = Run(*callables_, Of(indices), x, &values);
    ASSERT_TRUE(ran.ok()) << ran.message();
    EXPECT_EQ(values, expected);
  }
  Code CodeOf(const std::vector<size_t>& indices, float x) const {
    std::vector<float> values;
    return Run(*callables_, Of(indices), x, &values).code();
  }

  std::unique_ptr<tensorflow::Session> session_;
  tensor::Signature signature_;
  std::unique_ptr<CallableSet> callables_;
};

TEST_F(CallableSetTest, EverySetIsAnsweredWithoutACallableOfItsOwn) {
  Make(CheckedModel());
  ExpectAnswer({kChecked, kDoubled, kBack}, 3, {3, 6, 3});
  ExpectAnswer({kDoubled}, 3, {6});
  ExpectAnswer({kChecked, kBack}, 3, {3, 3});
  ExpectAnswer({kBack}, 3, {3});
  EXPECT_EQ(callables_->set_count(), 0);
}

TEST_F(CallableSetTest, ASetIsAnsweredByItsOwnCallable) {
  Make(CheckedModel());
  ASSERT_TRUE(callables_->MakeCallable(Of({kDoubled, kBack})).ok());
  ASSERT_TRUE(callables_->MakeCallable(Of({kDoubled, kBack})).ok());
  ASSERT_TRUE(callables_->MakeCallable(Of({kBack})).ok());
  EXPECT_EQ(callables_->set_count(), 2);
  ExpectAnswer({kDoubled, kBack}, 3, {6, 3});
  ExpectAnswer({kBack}, 3, {3});
  ExpectAnswer({kDoubled}, 3, {6});
}

TEST_F(CallableSetTest, AllOutputsNeedNoFurtherCallable) {
  Make(CheckedModel());
  EXPECT_TRUE(callables_->MakeCallable(Of({kChecked, kDoubled, kBack})).ok());
  EXPECT_EQ(callables_->set_count(), 0);
}

TEST_F(CallableSetTest, UnrequestedOutputsFailNoRequest) {
  Make(CheckedModel());
  std::vector<float> values;
  const Status ran = Run(*callables_, Of({kDoubled, kBack}), NAN, &values);
  ASSERT_TRUE(ran.ok()) << ran.message();
  ASSERT_EQ(values.size(), 2);
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_EQ(CodeOf({kBack}, NAN), Code::kOk);
  // Made for this set of outputs, and used from then on.
  EXPECT_EQ(callables_->set_count(), 2);
  ExpectAnswer({kDoubled, kBack}, 3, {6, 3});
}

TEST_F(CallableSetTest, RequestedOutputsFailOnlyTheirRequest) {
  Make(CheckedModel());
  std::vector<float> values;
  const Status failed = Run(*callables_, Of({kChecked, kDoubled}), NAN, &values);
  EXPECT_EQ(failed.code(), Code::kInvalidArgument);
  EXPECT_NE(failed.message().find("x is checked"), std::string::npos) << failed.message();
  EXPECT_EQ(CodeOf({kChecked}, NAN), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf({kChecked, kDoubled, kBack}, NAN), Code::kInvalidArgument);
  ExpectAnswer({kChecked, kDoubled}, 3, {3, 6});
}

TEST_F(CallableSetTest, ARunThatWasEndedIsNotTriedAgain) {
  Make(CheckedModel());
  tensor::RunContext expired;
  expired.deadline_ns = 1;
  const RunScope scope(expired);
  EXPECT_EQ(CodeOf({kDoubled}, 3), Code::kDeadlineExceeded);
  EXPECT_EQ(callables_->set_count(), 0);
}

TEST_F(CallableSetTest, RunnableOutputsAreAnsweredBesideOthers) {
  SavedModelFiles files = CheckedModel();
  auto& outputs = *(*files.meta_graph().mutable_signature_def())["s"].mutable_outputs();
  outputs["checked"].set_name("nowhere:0");
  Make(std::move(files));
  EXPECT_FALSE(callables_->made().ok());
  EXPECT_FALSE(callables_->MakeCallable(Of({kChecked})).ok());
  EXPECT_NE(CodeOf({kChecked}, 3), Code::kOk);
  EXPECT_NE(CodeOf({kChecked, kDoubled, kBack}, 3), Code::kOk);
  ExpectAnswer({kDoubled, kBack}, 3, {6, 3});
}

TEST_F(CallableSetTest, BeyondTheSetsThatAreKeptAnswersAreRightAllTheSame) {
  Make(ManyOutputsModel(7));
  const auto outputs_of = [&](unsigned mask) {
    tensor::OutputSet outputs(7);
    for (size_t i = 0; i < 7; ++i) {
      if ((mask >> i & 1) != 0) outputs.Add(i);
    }
    return outputs;
  };
  unsigned mask = 1;
  for (; mask <= CallableSet::kSetCountMax; ++mask) {
    ASSERT_TRUE(callables_->MakeCallable(outputs_of(mask)).ok()) << mask;
  }
  EXPECT_EQ(callables_->MakeCallable(outputs_of(mask)).code(), Code::kResourceExhausted);
  EXPECT_EQ(callables_->set_count(), CallableSet::kSetCountMax);
  for (mask = 1; mask < 128; ++mask) {
    std::vector<float> expected;
    for (int i = 0; i < 7; ++i) {
      if ((mask >> i & 1) != 0) expected.push_back(static_cast<float>(2 << i));
    }
    std::vector<float> values;
    ASSERT_TRUE(Run(*callables_, outputs_of(mask), 1, &values).ok()) << mask;
    ASSERT_EQ(values, expected) << mask;
  }
}

TEST_F(CallableSetTest, OfMoreThanSixtyFourOutputsTheRightOnesArePicked) {
  Make(ManyOutputsModel(100));
  ExpectAnswer({0, 63, 64, 99}, 1,
               {2, std::ldexp(1.F, 64), std::ldexp(1.F, 65), std::ldexp(1.F, 100)});
}

TEST_F(CallableSetTest, CallablesAreMadeWhileRequestsRun) {
  Make(CheckedModel());
  testing::RunTogether(4, [&](int thread) {
    if (thread < 2) {
      EXPECT_TRUE(callables_->MakeCallable(Of({kDoubled})).ok());
      EXPECT_TRUE(callables_->MakeCallable(Of({kChecked})).ok());
      return;
    }
    for (int run = 0; run < 500; ++run) {
      ExpectAnswer({kDoubled}, static_cast<float>(run), {2.F * static_cast<float>(run)});
      ExpectAnswer({kChecked, kDoubled, kBack}, 3, {3, 6, 3});
    }
  });
  EXPECT_EQ(callables_->set_count(), 2);
}

TEST_F(CallableSetTest, ASessionRunnerAnswersTheSame) {
  Make(CheckedModel());
  const SessionRunner runner(session_.get(), signature_);
  EXPECT_TRUE(runner.made().ok());
  EXPECT_TRUE(runner.MakeCallable(Of({kDoubled})).ok());
  std::vector<float> values;
  ASSERT_TRUE(Run(runner, Of({kChecked, kDoubled, kBack}), 3, &values).ok());
  EXPECT_EQ(values, (std::vector<float>{3, 6, 3}));
  ASSERT_TRUE(Run(runner, Of({kDoubled}), 3, &values).ok());
  EXPECT_EQ(values, std::vector<float>{6});
  ASSERT_TRUE(Run(runner, Of({kBack}), 3, &values).ok());
  EXPECT_EQ(values, std::vector<float>{3});
  EXPECT_EQ(Run(runner, Of({kChecked}), NAN, &values).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace millpond::tf
