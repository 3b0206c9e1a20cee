#include "native/tf/session_callables.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/tensor/run_context.h"
#include "native/tf/servable_device.h"
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
using testing::Vector;
using Names = std::vector<std::string>;

// a, b -> difference (a - b), and sum0, sum1, ... (a + b).
constexpr int kSumCount = 80;

bool IsClientsFault(const Status& status) {
  return status.code() == Code::kInvalidArgument || status.code() == Code::kOutOfRange;
}

class SessionCallablesTest : public ::testing::Test {
 protected:
  SessionCallablesTest() {
    SavedModelFiles files;
    files.AddPlaceholder("a", DT_FLOAT, {-1});
    files.AddPlaceholder("b", DT_FLOAT, {-1});
    files.AddNode("difference", "Sub", {"a", "b"}, SetFloat);
    for (int i = 0; i < kSumCount; ++i) {
      files.AddNode("sum" + std::to_string(i), "AddV2", {"a", "b"}, SetFloat);
    }
    session_.reset(tensorflow::NewSession({}));
    EXPECT_TRUE(session_->Create(files.meta_graph().graph_def()).ok());
    callables_ = std::make_unique<SessionCallables>(session_.get());
  }

  Status Run(const servable::SessionRunNames& names, const std::vector<float>& fed,
             std::vector<float>* fetched) {
    tensor::TensorList inputs;
    for (const float value : fed) inputs.storage().tensors.push_back(Vector<float>({value}));
    tensor::TensorList result;
    const Status ran = callables_->Run(names, inputs, &result);
    fetched->clear();
    for (const auto& tensor : result.storage().tensors) fetched->push_back(tensor.flat<float>()(0));
    return ran;
  }
  void ExpectAnswer(const servable::SessionRunNames& names, const std::vector<float>& fed,
                    const std::vector<float>& expected) {
    std::vector<float> fetched;
    const Status ran = Run(names, fed, &fetched);
    EXPECT_TRUE(ran.ok()) << ran.message();
    EXPECT_EQ(fetched, expected);
  }

  std::unique_ptr<tensorflow::Session> session_;
  std::unique_ptr<SessionCallables> callables_;
};

TEST_F(SessionCallablesTest, AnyOrderOfTheSameNamesIsOneCallable) {
  ExpectAnswer({{"a:0", "b:0"}, {"difference:0", "sum0:0"}, {}}, {5, 3}, {2, 8});
  ExpectAnswer({{"b:0", "a:0"}, {"sum0:0", "difference:0"}, {}}, {3, 5}, {8, 2});
  ExpectAnswer({{"b:0", "a:0"}, {"sum0:0", "difference:0", "sum0:0"}, {}}, {3, 5}, {8, 2, 8});
  EXPECT_EQ(callables_->kept_count(), 1U);
}

TEST_F(SessionCallablesTest, TargetsRunAndGiveNothingBack) {
  ExpectAnswer({{"a:0", "b:0"}, {}, {"difference"}}, {5, 3}, {});
  ExpectAnswer({{"a:0", "b:0"}, {"sum0:0"}, {"difference"}}, {5, 3}, {8});
  EXPECT_EQ(callables_->kept_count(), 2U);
}

TEST_F(SessionCallablesTest, CacheStaysWithinItsLimitAndAnswersTheRest) {
  for (int i = 0; i < kSumCount; ++i) {
    ExpectAnswer({{"a:0", "b:0"}, {"sum" + std::to_string(i) + ":0"}, {}}, {5, 3}, {8});
  }
  EXPECT_EQ(callables_->kept_count(), SessionCallables::kKeptCountMax);
}

TEST_F(SessionCallablesTest, NamesOutsideTheGraphAreRefusedAndNotKept) {
  std::vector<float> fetched;
  EXPECT_FALSE(Run({{"a:0", "b:0"}, {"nobody:0"}, {}}, {5, 3}, &fetched).ok());
  EXPECT_FALSE(Run({{"a:0", "nobody:0"}, {"sum0:0"}, {}}, {5, 3}, &fetched).ok());
  EXPECT_EQ(callables_->kept_count(), 0U);
}

// "^a" is a's control output, which TensorFlow counts as -1.
TEST_F(SessionCallablesTest, MalformedTensorNamesAreRefused) {
  std::vector<float> fetched;
  for (const char* const name : {"^a", "^difference", "", ":0", "a:-1", "a:7", "^", "a:0:0",
                                 "a:99999999999999999999", "/device:CPU:0/a:0"}) {
    const Status fetch = Run({{"b:0"}, {name}, {}}, {3}, &fetched);
    EXPECT_TRUE(IsClientsFault(fetch)) << name << ": " << fetch.message();
    const Status feed = Run({{"b:0", name}, {"sum0:0"}, {}}, {3, 5}, &fetched);
    EXPECT_TRUE(IsClientsFault(feed)) << name << ": " << feed.message();
  }
  EXPECT_EQ(callables_->kept_count(), 0U);
}

TEST_F(SessionCallablesTest, ATensorThatIsFedAndFetchedIsRefused) {
  std::vector<float> fetched;
  const Status both = Run({{"a:0"}, {"a:0"}, {}}, {5}, &fetched);
  EXPECT_EQ(both.code(), Code::kInvalidArgument) << both.message();
}

TEST_F(SessionCallablesTest, AFeedOfAnotherDtypeIsRefused) {
  tensor::TensorList fed;
  fed.storage().tensors = {Vector<int64_t>({5}), Vector<float>({3})};
  tensor::TensorList fetched;
  const Status refused = callables_->Run({{"a:0", "b:0"}, {"sum0:0"}, {}}, fed, &fetched);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.message();
}

TEST_F(SessionCallablesTest, ARunEndsAtItsDeadline) {
  tensor::RunContext expired;
  expired.deadline_ns = 1;
  const RunScope scope(expired);
  std::vector<float> fetched;
  EXPECT_EQ(Run({{"a:0", "b:0"}, {"sum0:0"}, {}}, {5, 3}, &fetched).code(),
            Code::kDeadlineExceeded);
}

TEST_F(SessionCallablesTest, ManyThreadsAskForTheSameAndForOthers) {
  testing::RunTogether(4, [this](int thread) {
    for (int i = 0; i < 20; ++i) {
      const std::string name = "sum" + std::to_string((thread + i) % 10) + ":0";
      ExpectAnswer({{"a:0", "b:0"}, {name}, {}}, {5, 3}, {8});
    }
  });
  EXPECT_EQ(callables_->kept_count(), 10U);
}

}  // namespace
}  // namespace millpond::tf
