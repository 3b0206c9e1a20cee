#include "native/tf/joint_runners.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/tensor/run_context.h"
#include "native/tf/callable_set.h"
#include "native/tf/servable_device.h"
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
using tensorflow::DT_INT32;
using testing::SavedModelFiles;
using testing::SetFloat;
using testing::Vector;
using Floats = std::vector<std::vector<float>>;

constexpr int kManyCount = 30;

// Signatures of one input x each, most of a placeholder of their own:
// sum (total = x + noise, x_back = x), difference (lower = x - noise), with one `noise` for a run;
// of_sum (x is sum's total: twice that), same (as sum, on sum's input); bad (nothing computes it);
// checked (x, fails for NaN); many0, many1, ... (x + x).
SavedModelFiles NoisyModel() {
  SavedModelFiles files;
  const auto add_input = [&](const std::string& name) {
    files.AddPlaceholder(name, DT_FLOAT, {-1});
  };
  files.AddConst("shape", Vector<int32_t>({1}));
  files.AddNode("noise", "RandomUniform", {"shape"}, [](tensorflow::NodeDef* node) {
    (*node->mutable_attr())["T"].set_type(DT_INT32);
    (*node->mutable_attr())["dtype"].set_type(DT_FLOAT);
  });
  add_input("a");
  add_input("b");
  add_input("c");
  files.AddNode("total", "AddV2", {"a", "noise"}, SetFloat);
  files.AddNode("lower", "Sub", {"b", "noise"}, SetFloat);
  files.AddNode("twice", "AddV2", {"total", "total"}, SetFloat);
  files.AddNode("check", "CheckNumerics", {"c"}, [](tensorflow::NodeDef* node) {
    SetFloat(node);
    (*node->mutable_attr())["message"].set_s("c is checked");
  });
  const auto add = [&](const std::string& name, const std::string& input,
                       const std::vector<SavedModelFiles::Named>& outputs) {
    files.AddSignature(name, {{"x", input, DT_FLOAT}}, outputs);
  };
  add("sum", "a:0", {{"total", "total:0", DT_FLOAT}, {"x_back", "a:0", DT_FLOAT}});
  add("same", "a:0", {{"total", "total:0", DT_FLOAT}});
  add("difference", "b:0", {{"lower", "lower:0", DT_FLOAT}});
  add("of_sum", "total:0", {{"twice", "twice:0", DT_FLOAT}});
  add("bad", "b:0", {{"lower", "nowhere:0", DT_FLOAT}});
  add("checked", "c:0", {{"x", "check:0", DT_FLOAT}});
  for (int i = 0; i < kManyCount; ++i) {
    const std::string name = "many" + std::to_string(i);
    add_input(name + "_x");
    files.AddNode(name, "AddV2", {name + "_x", name + "_x"}, SetFloat);
    add(name, name + "_x:0", {{"y", name + ":0", DT_FLOAT}});
  }
  return files;
}

class JointRunnersTest : public ::testing::Test {
 protected:
  JointRunnersTest() {
    SavedModelFiles files = NoisyModel();
    session_.reset(tensorflow::NewSession({}));
    EXPECT_TRUE(session_->Create(files.meta_graph().graph_def()).ok());
    for (const auto& [name, definition] : files.meta_graph().signature_def()) {
      signatures_[name] = MakeSignature(name, definition);
    }
    graph_ = files.meta_graph().graph_def();
    Make(JointRunners::kKeptCountMax);
  }

  void Make(size_t count_max) {
    joint_runners_ = std::make_unique<JointRunners>(
        signatures_, graph_, count_max, [this](const tensor::Signature& joint) {
          made_count_ += 1;
          return std::make_unique<CallableSet>(session_.get(), joint);
        });
  }

  std::vector<const tensor::Signature*> Named(const std::vector<std::string>& names) const {
    std::vector<const tensor::Signature*> signatures;
    for (const std::string& name : names) signatures.push_back(&signatures_.at(name));
    return signatures;
  }
  const JointRunner* FindOrMake(const std::vector<std::string>& names) const {
    return joint_runners_->FindOrMake(Named(names));
  }

  // `values` gets the first element of each output of each signature.
  Status Run(const std::vector<std::string>& names, float x, Floats* values) const {
    values->clear();
    const JointRunner* const runner = FindOrMake(names);
    if (runner == nullptr) return base::Internal("no joint runner");
    tensor::TensorList inputs;
    inputs.storage().tensors = {Vector<float>({x})};
    std::vector<tensor::TensorList> results;
    MILLPOND_RETURN_IF_ERROR(runner->Run(Named(names), inputs, &results));
    for (tensor::TensorList& result : results) {
      values->emplace_back();
      for (const auto& tensor : result.storage().tensors)
        values->back().push_back(tensor.flat<float>()(0));
    }
    return {};
  }

  std::unique_ptr<tensorflow::Session> session_;
  tensor::SignatureMap signatures_;
  tensorflow::GraphDef graph_;
  std::atomic<int> made_count_{0};
  std::unique_ptr<JointRunners> joint_runners_;
};

TEST_F(JointRunnersTest, SignaturesOfTwoInputsShareOneRun) {
  for (int i = 0; i < 10; ++i) {
    Floats values;
    const Status ran = Run({"sum", "difference"}, 0, &values);
    ASSERT_TRUE(ran.ok()) << ran.message();
    ASSERT_EQ(values.size(), 2);
    ASSERT_EQ(values[0].size(), 2);
    ASSERT_EQ(values[1].size(), 1);
    EXPECT_GT(values[0][0], 0);
    EXPECT_EQ(values[0][0], -values[1][0]) << "the random number is not that of one run";
    EXPECT_EQ(values[0][1], 0);
  }
}

TEST_F(JointRunnersTest, ResultsFollowTheRequestedOrderOfOneRunner) {
  Floats values;
  ASSERT_TRUE(Run({"many2", "many1", "sum"}, 3, &values).ok());
  EXPECT_EQ(values[0], std::vector<float>{6});
  EXPECT_EQ(values[1], std::vector<float>{6});
  EXPECT_EQ(values[2].size(), 2);
  ASSERT_TRUE(Run({"sum", "many1", "many2"}, 3, &values).ok());
  EXPECT_EQ(values[0][1], 3);
  EXPECT_EQ(values[2], std::vector<float>{6});
  EXPECT_EQ(made_count_, 1);
}

TEST_F(JointRunnersTest, SignaturesOfAnySameInputAreJoined) {
  Floats values;
  ASSERT_TRUE(Run({"sum", "same"}, 3, &values).ok());
  EXPECT_EQ(values[0][0], values[1][0]);
  EXPECT_GT(values[0][0], 3);
  // A single signature has nothing to be joined with.
  EXPECT_EQ(FindOrMake({"of_sum"}), nullptr);
}

TEST_F(JointRunnersTest, AnInputThatTheGraphComputesIsNotJoinedWithAnother) {
  EXPECT_EQ(FindOrMake({"sum", "of_sum"}), nullptr);
  EXPECT_EQ(FindOrMake({"difference", "of_sum"}), nullptr);
  EXPECT_EQ(made_count_, 0);
}

TEST_F(JointRunnersTest, ASignatureThatCannotBeRunIsTriedOnce) {
  EXPECT_EQ(FindOrMake({"sum", "bad"}), nullptr);
  EXPECT_EQ(FindOrMake({"bad", "sum"}), nullptr);
  EXPECT_EQ(made_count_, 1);
  Floats values;
  EXPECT_TRUE(Run({"sum", "difference"}, 0, &values).ok());
}

TEST_F(JointRunnersTest, AnErrorOfOneSignatureIsTheRuns) {
  Floats values;
  ASSERT_TRUE(Run({"sum", "checked"}, 3, &values).ok());
  EXPECT_EQ(values[1], std::vector<float>{3});
  const Status failed = Run({"sum", "checked"}, NAN, &values);
  EXPECT_EQ(failed.code(), Code::kInvalidArgument);
  EXPECT_NE(failed.message().find("c is checked"), std::string::npos) << failed.message();
}

TEST_F(JointRunnersTest, ARunEndsAtItsDeadlineAndByCancellation) {
  Floats values;
  ASSERT_NE(FindOrMake({"sum", "difference"}), nullptr);
  tensor::RunContext expired;
  expired.deadline_ns = 1;
  {
    const RunScope scope(expired);
    EXPECT_EQ(Run({"sum", "difference"}, 0, &values).code(), Code::kDeadlineExceeded);
  }
  const std::atomic<bool> is_cancelled{true};
  tensor::RunContext cancelled;
  cancelled.is_cancelled = &is_cancelled;
  const RunScope scope(cancelled);
  EXPECT_EQ(Run({"sum", "difference"}, 0, &values).code(), Code::kCancelled);
}

TEST_F(JointRunnersTest, BeyondTheLimitNoneIsMade) {
  for (int i = 1; i < kManyCount; ++i) {
    const bool is_kept = FindOrMake({"many0", "many" + std::to_string(i)}) != nullptr;
    EXPECT_EQ(is_kept, i <= static_cast<int>(JointRunners::kKeptCountMax)) << i;
  }
  EXPECT_EQ(joint_runners_->kept_count(), JointRunners::kKeptCountMax);
  EXPECT_NE(FindOrMake({"many1", "many0"}), nullptr);
  EXPECT_EQ(made_count_, static_cast<int>(JointRunners::kKeptCountMax));
}

TEST_F(JointRunnersTest, AVersionThatMayKeepNoneMakesNone) {
  Make(0);
  EXPECT_EQ(FindOrMake({"sum", "difference"}), nullptr);
  EXPECT_EQ(made_count_, 0);
}

TEST_F(JointRunnersTest, ThreadsFindNoneOrTheOneThatIsMade) {
  constexpr int kSetCount = 8;
  std::atomic<int> joined_count{0};
  testing::RunTogether(4, [&](int thread) {
    for (int i = 0; i < 80; ++i) {
      const std::string name = "many" + std::to_string(1 + (thread + i) % kSetCount);
      if (FindOrMake({"many0", name}) == nullptr) continue;
      Floats values;
      EXPECT_TRUE(Run({name, "many0"}, static_cast<float>(i), &values).ok());
      EXPECT_EQ(values, (Floats(2, {2.F * static_cast<float>(i)})));
      joined_count += 1;
    }
  });
  EXPECT_GT(joined_count, 0);
  EXPECT_EQ(static_cast<size_t>(made_count_), joint_runners_->kept_count());
  EXPECT_LE(made_count_, kSetCount);
}

}  // namespace
}  // namespace millpond::tf
