#include "native/inference/batch_verifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/tensor/small_float.h"
#include "tests/native/plain_servable.h"
#include "tests/native/predict_messages.h"
#include "tests/native/waiting_requests.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Status;
using servable::SignatureBatching;
using tensor::RowVerdict;
using testing::FakeRun;
using testing::NumbersOf;
using testing::NumberTensor;
using testing::OpaqueTensor;
using Floats = std::vector<float>;

namespace dtype = tensor::dtype;

// The end of a reason without a look at the graph.
const std::string kNotShown =
    "; its graph does not show that rows are independent: its graph was not looked at";

// A model of one signature, x: float32[?] -> y, that computes y from x.
class BatchVerifierTest : public ::testing::Test {
 protected:
  using Model = std::function<base::StatusOr<Floats>(const Floats&)>;

  void Make(Model model) {
    Make({testing::Spec("x", dtype::kFloat, {-1})}, {testing::Spec("y", dtype::kFloat, {-1})},
         [this, model = std::move(model)](const FakeRun& run) -> Status {
           const Floats x = NumbersOf<float>(run.inputs.storage().tensors[0]);
           run_rows_.push_back(static_cast<int64_t>(x.size()));
           auto y = model(x);
           if (!y.ok()) return y.status();
           run.result->Reset(1);
           run.result->storage().tensors[0] =
               NumberTensor(dtype::kFloat, {static_cast<int64_t>(y.value().size())}, y.value());
           return {};
         });
  }
  void Make(std::vector<tensor::TensorSpec> inputs, std::vector<tensor::TensorSpec> outputs,
            testing::FakeServable::RunFunction run) {
    const std::vector<tensor::Signature> signatures = {
        {"serving_default", "", std::move(inputs), std::move(outputs)}};
    servable_ = std::make_unique<servable::BatchingServable>(
        std::make_unique<testing::FakeServable>(servable::ServableId{"m", 7}, signatures,
                                                std::move(run)),
        settings_);
    verifier_ = std::make_unique<BatchVerifier>(*servable_);
  }
  SignatureBatching Conclude(bool may_write_variables = false) {
    const Status concluded = verifier_->Conclude(may_write_variables, {});
    EXPECT_TRUE(concluded.ok()) << concluded.message();
    return servable_->Batching()[0];
  }
  void ExpectRefusal(const std::string& reason) {
    const SignatureBatching batching = Conclude();
    EXPECT_FALSE(batching.is_on);
    EXPECT_EQ(batching.refusal, reason);
  }
  // Expects a refusal by the figures of a comparison.
  void ExpectDifference(const std::string& output, int64_t rows) {
    const SignatureBatching batching = Conclude();
    EXPECT_FALSE(batching.is_on);
    EXPECT_EQ(batching.refusal.find("output '" + output + "', row "), 0U) << batching.refusal;
    const std::string where = " in a batch of " + std::to_string(rows) + " rows, ";
    EXPECT_NE(batching.refusal.find(where), std::string::npos) << batching.refusal;
  }
  // Notes what the graph shows.
  void Show(tensor::RowVerdict::Kind kind, const std::string& reason = "") {
    servable_->NoteVerdict(servable_->signatures().begin()->second, {kind, reason});
  }

  servable::BatchSettings settings_;
  std::unique_ptr<servable::BatchingServable> servable_;
  std::unique_ptr<BatchVerifier> verifier_;
  std::vector<int64_t> run_rows_;
};

base::StatusOr<Floats> Double(Floats x) {
  for (float& value : x) value *= 2;
  return x;
}

TEST_F(BatchVerifierTest, RowsThatGiveTheSameInABatchAreBatched) {
  Make(Double);
  const SignatureBatching batching = Conclude();
  EXPECT_TRUE(batching.is_on);
  EXPECT_EQ(batching.refusal, "");
  // Each size runs twice: to compare, and to learn its time.
  EXPECT_EQ(std::count(run_rows_.begin(), run_rows_.end(), 256), 2);
  EXPECT_GT(batching.joined_rows_max, 2);
}

TEST_F(BatchVerifierTest, NoBatchHasMoreRowsThanTheSettingsAllow) {
  settings_.rows_max = 16;
  Make(Double);
  EXPECT_TRUE(Conclude().is_on);
  EXPECT_EQ(*std::max_element(run_rows_.begin(), run_rows_.end()), 16);
}

TEST_F(BatchVerifierTest, DifferencesOfRoundingAreNone) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    Floats y = Double(x).value();
    for (float& value : y) value *= 1 + (x.size() > 1 ? 3e-6F : 0);
    return y;
  });
  EXPECT_TRUE(Conclude().is_on);
}

TEST_F(BatchVerifierTest, ModelThatMixesRowsIsRefused) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    const float sum = std::accumulate(x.begin(), x.end(), 0.0F);
    Floats y = x;
    for (float& value : y) value += sum;
    return y;
  });
  ExpectDifference("y", 2);
}

// As batch normalization in training mode does: equal rows hide it.
TEST_F(BatchVerifierTest, ModelThatSubtractsTheMeanOfTheRowsIsRefused) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    const float mean = std::accumulate(x.begin(), x.end(), 0.0F) / static_cast<float>(x.size());
    Floats y = x;
    for (float& value : y) value -= mean;
    return y;
  });
  EXPECT_FALSE(Conclude().is_on);
}

TEST_F(BatchVerifierTest, ModelThatMixesRowsOfLargeBatchesOnlyIsRefused) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    Floats y = x;
    if (x.size() >= 128) y[127] = 0;
    return y;
  });
  ExpectDifference("y", 128);
}

// As a lookup of ids does whose rows are changed by the others'. Ids that are equal hide it.
TEST_F(BatchVerifierTest, ModelThatMixesRowsOfIntegersIsRefused) {
  for (const int x_dtype : {dtype::kInt64, dtype::kUint64}) {
    Make({testing::Spec("x", x_dtype, {-1})}, {testing::Spec("y", dtype::kInt64, {-1})},
         [](const FakeRun& run) -> Status {
           OpaqueTensor y = run.inputs.storage().tensors[0];
           const auto x = NumbersOf<int64_t>(y);
           const int64_t most = *std::max_element(x.begin(), x.end());
           run.result->Reset(1);
           run.result->storage().tensors[0] =
               NumberTensor(dtype::kInt64, y.dims, std::vector<int64_t>(x.size(), most));
           return {};
         });
    ExpectDifference("y", 2);
  }
}

// As a model does that cuts texts into words: the rows are as wide as the longest text of the run.
TEST_F(BatchVerifierTest, ModelWithRowsOfOtherWidthsIsRefused) {
  Make({testing::Spec("x", dtype::kString, {-1})}, {testing::Spec("y", dtype::kString, {-1, -1})},
       [](const FakeRun& run) -> Status {
         const OpaqueTensor& x = run.inputs.storage().tensors[0];
         size_t width = 0;
         for (const std::string& text : x.strings) width = std::max(width, text.size());
         run.result->Reset(1);
         run.result->storage().tensors[0] =
             testing::StringTensor({x.dims[0], static_cast<int64_t>(width)},
                                   std::vector<std::string>(x.strings.size() * width));
         return {};
       });
  ExpectDifference("y", 2);
}

// An id may be none of a model's.
TEST_F(BatchVerifierTest, ModelThatTakesNoOtherIntegersIsBatched) {
  Make({testing::Spec("x", dtype::kInt64, {-1})}, {testing::Spec("y", dtype::kInt64, {-1})},
       [](const FakeRun& run) -> Status {
         for (const int64_t id : NumbersOf<int64_t>(run.inputs.storage().tensors[0])) {
           if (id != 0) return base::InvalidArgument("bad id");
         }
         run.result->Reset(1);
         run.result->storage().tensors[0] = run.inputs.storage().tensors[0];
         return {};
       });
  EXPECT_TRUE(Conclude().is_on);
}

// Returns the elements of a tensor of floats of any dtype but double.
Floats FloatsOf(const OpaqueTensor& tensor) {
  if (tensor.dtype == dtype::kFloat) return NumbersOf<float>(tensor);
  Floats floats;
  for (const uint16_t bits : NumbersOf<uint16_t>(tensor)) {
    floats.push_back(tensor.dtype == dtype::kHalf ? tensor::Half::ToFloat(bits)
                                                  : tensor::Bfloat16::ToFloat(bits));
  }
  return floats;
}

// Models of x: float[?,?] -> y: float32[?], a number for each row.
class BatchVerifierOfPaddingTest : public BatchVerifierTest {
 protected:
  using RowModel = std::function<float(const Floats& row)>;

  SignatureBatching Verified(const RowModel& model, int dtype_of_x = dtype::kFloat) {
    settings_.pads_inputs = true;
    Make({testing::Spec("x", dtype_of_x, {-1, -1})}, {testing::Spec("y", dtype::kFloat, {-1})},
         [model](const FakeRun& run) -> Status {
           const OpaqueTensor& x = run.inputs.storage().tensors[0];
           const Floats values = FloatsOf(x);
           const auto width = static_cast<size_t>(x.dims[1]);
           Floats y;
           for (size_t at = 0; at + width <= values.size(); at += width) {
             const auto begin = values.begin() + static_cast<std::ptrdiff_t>(at);
             y.push_back(model({begin, begin + static_cast<std::ptrdiff_t>(width)}));
           }
           run.result->Reset(1);
           run.result->storage().tensors[0] =
               NumberTensor(dtype::kFloat, {static_cast<int64_t>(y.size())}, y);
           return {};
         });
    return Conclude();
  }
  static float Sum(const Floats& row) { return std::accumulate(row.begin(), row.end(), 1.0F); }
};

TEST_F(BatchVerifierOfPaddingTest, ModelThatIgnoresZerosIsPadded) {
  const SignatureBatching batching = Verified(Sum);
  EXPECT_TRUE(batching.is_on);
  EXPECT_EQ(batching.refusal, "");
}

TEST_F(BatchVerifierOfPaddingTest, ModelThatAveragesIsBatchedWithoutPadding) {
  const SignatureBatching batching =
      Verified([](const Floats& row) { return Sum(row) / static_cast<float>(row.size()); });
  EXPECT_TRUE(batching.is_on);
  EXPECT_EQ(batching.refusal.find("its inputs are not padded: output 'y', row 0: "), 0U)
      << batching.refusal;
}

TEST_F(BatchVerifierOfPaddingTest, ModelThatTakesAnExtremeIsBatchedWithoutPadding) {
  for (const int dtype_of_x : {dtype::kFloat, dtype::kHalf, dtype::kBfloat16}) {
    for (const bool is_max : {true, false}) {
      const auto extreme = [is_max](const Floats& row) {
        return is_max ? *std::max_element(row.begin(), row.end())
                      : *std::min_element(row.begin(), row.end());
      };
      const SignatureBatching batching = Verified(extreme, dtype_of_x);
      EXPECT_TRUE(batching.is_on);
      EXPECT_EQ(batching.refusal.find("its inputs are not padded: output 'y', row 0: "), 0U)
          << dtype_of_x << ": " << batching.refusal;
    }
  }
}

TEST_F(BatchVerifierTest, OutputWithoutTheRowsIsRefused) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    return Floats{std::accumulate(x.begin(), x.end(), 0.0F)};
  });
  ExpectRefusal("an output of a batch does not have the batch's rows" + kNotShown);
}

TEST_F(BatchVerifierTest, OutputWithMoreRowsThanTheInputsIsRefused) {
  Make([](const Floats& x) -> base::StatusOr<Floats> { return Floats(2 * x.size()); });
  ExpectRefusal("an output does not have the rows of the inputs" + kNotShown);
}

TEST_F(BatchVerifierTest, BatchThatFailsIsRefusedWithItsError) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    if (x.size() > 4) return base::Internal("five rows");
    return x;
  });
  ExpectRefusal("a batch of 8 rows fails: five rows" + kNotShown);
}

// Smaller batches have passed.
TEST_F(BatchVerifierTest, LargeBatchThatTheMachineEndsIsNoReason) {
  for (const base::Code code : {base::Code::kResourceExhausted, base::Code::kUnavailable}) {
    Make([code](const Floats& x) -> base::StatusOr<Floats> {
      if (x.size() > 4) return Status{code, "no"};
      return x;
    });
    EXPECT_TRUE(Conclude().is_on);
  }
}

TEST_F(BatchVerifierTest, ModelThatFailsOnMadeUpRowsIsRefused) {
  Make([](const Floats&) -> base::StatusOr<Floats> { return base::InvalidArgument("bad id"); });
  ExpectRefusal("no warm-up request shows rows that it takes, and made-up rows fail: bad id" +
                kNotShown);
}

TEST_F(BatchVerifierTest, ModelThatMayWriteVariablesIsRefusedWithoutARun) {
  Make(Double);
  const SignatureBatching batching = Conclude(/*may_write_variables=*/true);
  EXPECT_FALSE(batching.is_on);
  EXPECT_EQ(batching.refusal, "a request may change a variable");
  EXPECT_TRUE(run_rows_.empty());
}

TEST_F(BatchVerifierTest, SpecsWithoutOpenRowsAreRefusedByName) {
  const auto x = testing::Spec("x", dtype::kFloat, {-1});
  const std::string reason = ", and a batch needs numbers or strings with an open first dimension";
  Make({testing::Spec("x", dtype::kFloat, {2, 3})}, {x}, {});
  ExpectRefusal("input 'x' is float32[2,3]" + reason);
  Make({x}, {testing::Spec("y", dtype::kFloat, {})}, {});
  ExpectRefusal("output 'y' is float32[]" + reason);
  Make({testing::Spec("x", /*complex64*/ 8, {-1})}, {x}, {});
  ExpectRefusal("input 'x' is complex64[?]" + reason);
  Make({}, {x}, {});
  ExpectRefusal("it has no input");
  Make({x}, {}, {});
  ExpectRefusal("it has no output");
}

// --- What the graph shows ---

TEST_F(BatchVerifierTest, GraphThatMixesRowsIsRefusedWithoutARun) {
  Make(Double);
  Show(RowVerdict::Kind::kMixes, "node 'any' (Any) reduces over the rows");
  ExpectRefusal("its graph mixes rows: node 'any' (Any) reduces over the rows");
  EXPECT_TRUE(run_rows_.empty());
}

TEST_F(BatchVerifierTest, GraphThatMixesRowsIsComparedIfTheOwnerSaysSo) {
  settings_.may_mix_rows = true;
  Make(Double);
  Show(RowVerdict::Kind::kMixes, "node 'any' (Any) reduces over the rows");
  EXPECT_TRUE(Conclude().is_on);
  EXPECT_FALSE(run_rows_.empty());
}

// A sum of a batch may have another order: of scores near zero, little is left beside their terms.
TEST_F(BatchVerifierTest, RoundingCannotRefuseIndependentRows) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    Floats y = x;
    for (float& value : y) value += x.size() > 1 ? 0.5F : 0;
    return y;
  });
  Show(RowVerdict::Kind::kIndependent);
  EXPECT_TRUE(Conclude().is_on);
}

TEST_F(BatchVerifierTest, RowsThatDependOnOthersRefuteTheGraph) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    const float sum = std::accumulate(x.begin(), x.end(), 0.0F);
    Floats y = x;
    for (float& value : y) value += sum;
    return y;
  });
  Show(RowVerdict::Kind::kIndependent);
  ExpectDifference("y", 2);
}

TEST_F(BatchVerifierTest, IndependentRowsNeedNoRowsToCompare) {
  Make([](const Floats&) -> base::StatusOr<Floats> { return base::InvalidArgument("bad id"); });
  Show(RowVerdict::Kind::kIndependent);
  EXPECT_TRUE(Conclude().is_on);
}

// Another kernel for another number of rows may round differently, but not by the other rows.
TEST_F(BatchVerifierTest, SmallDifferencesCountIfTheOtherRowsMakeThem) {
  for (const bool is_by_rows : {false, true}) {
    Make([=](const Floats& x) -> base::StatusOr<Floats> {
      const float sum = std::accumulate(x.begin(), x.end(), 0.0F);
      Floats y = x;
      for (float& value : y) {
        if (x.size() > 1) value *= 1 + (is_by_rows ? 1e-4F * std::fmod(sum, 1.0F) : 1e-4F);
      }
      return y;
    });
    EXPECT_EQ(Conclude().is_on, !is_by_rows);
  }
}

TEST_F(BatchVerifierTest, ToleranceOfTheSettingsCounts) {
  const Model model = [](const Floats& x) -> base::StatusOr<Floats> {
    Floats y = x;
    for (float& value : y) value *= 1 + (x.size() > 1 ? 1e-2F : 0);
    return y;
  };
  Make(model);
  ExpectDifference("y", 2);
  settings_.relative_tolerance = 0.1;
  Make(model);
  EXPECT_TRUE(Conclude().is_on);
}

// --- Rows of requests ---

class BatchVerifierOfRequestsTest : public BatchVerifierTest {
 protected:
  // Answers a request with the rows `x`, as a warm-up does.
  Status Answer(const Floats& x) {
    const std::string bytes(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float));
    const testing::SegmentedBytes request(testing::PredictMessage(
        testing::ModelSpecMessage("m"), {{"x", testing::kRowsMark + bytes}}));
    return verifier_->Answer("Predict", request.reader(), VerifierLimits{}).status();
  }
};

TEST_F(BatchVerifierOfRequestsTest, ModelThatTakesNoMadeUpRowsIsProvenWithThem) {
  std::vector<Floats> runs;
  Make([&](const Floats& x) -> base::StatusOr<Floats> {
    for (const float id : x) {
      if (id != 5 && id != 9) return base::InvalidArgument("bad id");
    }
    runs.push_back(x);
    return Double(x);
  });
  ASSERT_TRUE(Answer({5, 9}).ok());
  const SignatureBatching batching = Conclude();
  EXPECT_TRUE(batching.is_on) << batching.refusal;
  EXPECT_NE(std::find(runs.begin(), runs.end(), Floats{5, 9, 5, 9}), runs.end());
}

TEST_F(BatchVerifierOfRequestsTest, RowsOfRequestsShowWhatMadeUpRowsHide) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    Floats y = x;
    for (float& value : y) value += x.front() > 100 ? x.back() : 0;
    return y;
  });
  ASSERT_TRUE(Answer({1'000}).ok());
  ASSERT_TRUE(Answer({2'000}).ok());
  ExpectDifference("y", 2);
}

// The rows of one request are alone a batch already.
TEST_F(BatchVerifierOfRequestsTest, RowsWithinOneRequestMayNotMixEither) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    Floats y = x;
    if (x.size() > 1) std::rotate(y.begin(), y.begin() + 1, y.end());
    return y;
  });
  ASSERT_TRUE(Answer({1, 2, 3}).ok());
  EXPECT_FALSE(Conclude().is_on);
}

TEST_F(BatchVerifierOfRequestsTest, RequestThatFailsIsNoSample) {
  Make([](const Floats& x) -> base::StatusOr<Floats> {
    if (x.front() == 666) return base::InvalidArgument("bad id");
    return x;
  });
  EXPECT_FALSE(Answer({666}).ok());
  EXPECT_TRUE(Conclude().is_on);
}

TEST_F(BatchVerifierOfRequestsTest, ModelThatFailsLaterOnTheRowsOfARequestIsRefused) {
  int run_count = 0;
  Make([&](const Floats& x) -> base::StatusOr<Floats> {
    if (++run_count > 1) return base::Internal("once only");
    return x;
  });
  ASSERT_TRUE(Answer({1}).ok());
  ExpectRefusal("once only" + kNotShown);
}

TEST_F(BatchVerifierOfRequestsTest, FewBatchesOfLiveRequestsAreCheckedAfterwards) {
  for (const bool has_request : {false, true}) {
    run_rows_.clear();
    Make(Double);
    if (has_request) {
      ASSERT_TRUE(Answer({1}).ok());
    }
    ASSERT_TRUE(Conclude().is_on);
    // The largest run costs the least, so each batch takes what waits.
    servable_->LearnCost(servable_->signatures().begin()->second, 4'096, 1);
    run_rows_.clear();
    testing::QueuedRequests waiting;
    for (int i = 0; i < 10; ++i) {
      std::array<servable::PreparedRun, 2> runs;
      for (servable::PreparedRun& run : runs) {
        run.servable = servable_.get();
        run.signatures = {&servable_->signatures().begin()->second};
        run.outputs = tensor::OutputSet::All(1);
        run.inputs.storage().tensors = {NumberTensor<float>(dtype::kFloat, {1}, {3})};
        waiting.Add(servable::BatchKeyOf("m", ""), {[&run] { return &run; }});
      }
      ASSERT_TRUE(waiting.AnswerNext());
      for (const servable::PreparedRun& run : runs) EXPECT_TRUE(run.status.ok());
    }
    const int64_t checked_count =
        has_request ? BatchVerifier::kCheckedAfterRequests : BatchVerifier::kCheckedAfterMadeUpRows;
    EXPECT_EQ(std::count(run_rows_.begin(), run_rows_.end(), 1), checked_count);
    EXPECT_EQ(std::count(run_rows_.begin(), run_rows_.end(), 2), 10);
  }
}

// --- Cancellation ---

TEST_F(BatchVerifierTest, CancelledProofRunsNothingMore) {
  std::atomic<bool> is_cancelled{false};
  Make([&](const Floats& x) -> base::StatusOr<Floats> {
    if (x.size() == 4) is_cancelled = true;
    return x;
  });
  const VerifierLimits limits{tensor::RunContext::kNoDeadline, &is_cancelled};
  EXPECT_EQ(verifier_->Conclude(false, limits).code(), base::Code::kCancelled);
  EXPECT_EQ(run_rows_.back(), 4);
  const SignatureBatching batching = servable_->Batching()[0];
  EXPECT_FALSE(batching.is_on);
  // The model is not blamed.
  EXPECT_EQ(batching.refusal, "its rows have not been compared yet");
}

// A kernel looks at the flag: a run that lasts ends too.
TEST_F(BatchVerifierTest, RunsOfAProofSeeItsCancellation) {
  const std::atomic<bool> is_cancelled{false};
  std::vector<const std::atomic<bool>*> seen;
  const auto x = testing::Spec("x", dtype::kFloat, {-1});
  Make({x}, {x}, [&](const FakeRun& run) -> Status {
    seen.push_back(run.context.is_cancelled);
    run.result->Reset(1);
    run.result->storage().tensors[0] = run.inputs.storage().tensors[0];
    return {};
  });
  ASSERT_TRUE(verifier_->Conclude(false, {tensor::RunContext::kNoDeadline, &is_cancelled}).ok());
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(std::count(seen.begin(), seen.end(), &is_cancelled),
            static_cast<std::ptrdiff_t>(seen.size()));
}

// --- Batches of the predecessor ---

// Versions of a model of signatures "a" and "b", x: float32[?] -> y, z.
class WarmUpOfBatchesTest : public ::testing::Test {
 protected:
  struct MadeRun {
    std::vector<std::string> signatures;
    std::vector<size_t> outputs;
    int64_t rows;

    friend bool operator==(const MadeRun& a, const MadeRun& b) {
      return a.signatures == b.signatures && a.outputs == b.outputs && a.rows == b.rows;
    }
  };
  class Version final : public testing::FakeServable {
   public:
    Version(std::vector<tensor::Signature> signatures, std::vector<MadeRun>* runs, RunFunction run)
        : FakeServable({"m", 7}, std::move(signatures), std::move(run)), runs_(*runs) {}
    std::optional<Status> RunTogether(const std::vector<const tensor::Signature*>& signatures,
                                      const tensor::RunContext&, const tensor::TensorList& inputs,
                                      std::vector<tensor::TensorList>* results) const override {
      MadeRun run{{}, {}, inputs.storage().tensors[0].dims[0]};
      for (const tensor::Signature* signature : signatures) {
        run.signatures.push_back(signature->name);
        results->emplace_back();
      }
      runs_.push_back(std::move(run));
      return Status();
    }

   private:
    std::vector<MadeRun>& runs_;
  };

  explicit WarmUpOfBatchesTest() { Make({}); }
  void Make(servable::BatchSettings settings,
            const std::function<Status(const MadeRun&)>& fail = {}) {
    const auto x = testing::Spec("x", dtype::kFloat, {-1});
    const auto y = testing::Spec("y", dtype::kFloat, {-1});
    const auto z = testing::Spec("z", dtype::kFloat, {-1});
    const auto run = [this, fail](const FakeRun& of) -> Status {
      const testing::OpaqueTensor& rows = of.inputs.storage().tensors[0];
      MadeRun own{{of.signature.name}, {}, rows.dims[0]};
      for (size_t i = 0; i < 2; ++i) {
        if (of.outputs.Contains(i)) own.outputs.push_back(i);
      }
      of.result->Reset(own.outputs.size());
      for (auto& tensor : of.result->storage().tensors) tensor = rows;
      runs_.push_back(own);
      return fail ? fail(own) : Status();
    };
    verifier_ = nullptr;
    servable_ = std::make_unique<servable::BatchingServable>(
        std::make_unique<Version>(
            std::vector<tensor::Signature>{{"a", "", {x}, {y, z}}, {"b", "", {x}, {y, z}}}, &runs_,
            run),
        std::move(settings));
    verifier_ = std::make_unique<BatchVerifier>(*servable_);
    ASSERT_TRUE(verifier_->Conclude(false, {}).ok());
    runs_.clear();
  }
  int64_t WarmUp(const std::vector<servable::HotBatch>& batches,
                 const VerifierLimits& limits = {}) {
    const auto count = verifier_->WarmUp(batches, limits);
    EXPECT_TRUE(count.ok()) << count.status().message();
    return count.ok() ? count.value() : -1;
  }

  std::vector<MadeRun> runs_;
  std::unique_ptr<servable::BatchingServable> servable_;
  std::unique_ptr<BatchVerifier> verifier_;
};

TEST_F(WarmUpOfBatchesTest, BatchOfSomeOutputsRunsWithItsRows) {
  EXPECT_EQ(WarmUp({{{"b"}, {"z"}, 13, 5}}), 1);
  const MadeRun run{{"b"}, {1}, 13};
  EXPECT_EQ(runs_, (std::vector<MadeRun>{run, run}));
}

TEST_F(WarmUpOfBatchesTest, BatchOfSeveralSignaturesRunsTogether) {
  EXPECT_EQ(WarmUp({{{"b", "a"}, {}, 5, 1}}), 1);
  const MadeRun run{{"b", "a"}, {}, 5};
  EXPECT_EQ(runs_, (std::vector<MadeRun>{run, run}));
}

TEST_F(WarmUpOfBatchesTest, RowsAreThoseOfTheOwnSettings) {
  servable::BatchSettings settings;
  settings.rows_max = 20;
  settings.allowed_rows = {8, 20};
  Make(settings);
  EXPECT_EQ(WarmUp({{{"a"}, {}, 3, 1}, {{"a"}, {}, 100, 1}}), 2);
  const MadeRun small{{"a"}, {0, 1}, 8};
  const MadeRun large{{"a"}, {0, 1}, 20};
  EXPECT_EQ(runs_, (std::vector<MadeRun>{small, small, large, large}));
}

TEST_F(WarmUpOfBatchesTest, BatchThatThisVersionLacksIsLeftOut) {
  EXPECT_EQ(WarmUp({{{"c"}, {}, 3, 1}, {{"b"}, {"w"}, 3, 1}, {{"b"}, {"y"}, 3, 1}}), 1);
  EXPECT_EQ(runs_.size(), 2U);
}

TEST_F(WarmUpOfBatchesTest, BatchThatFailsDoesNotEndTheOthers) {
  Make({}, [](const MadeRun& run) { return run.rows == 3 ? base::Internal("three") : Status(); });
  EXPECT_EQ(WarmUp({{{"a"}, {}, 3, 2}, {{"a"}, {}, 5, 1}}), 1);
  EXPECT_EQ(runs_.back().rows, 5);
}

TEST_F(WarmUpOfBatchesTest, NoBatchBeginsAfterTheTimeForThem) {
  VerifierLimits limits;
  limits.warm_up_ns_max = 0;
  EXPECT_EQ(WarmUp({{{"a"}, {}, 3, 1}}, limits), 0);
  EXPECT_TRUE(runs_.empty());
}

TEST_F(WarmUpOfBatchesTest, CancellationEndsIt) {
  const std::atomic<bool> is_cancelled{true};
  VerifierLimits limits;
  limits.is_cancelled = &is_cancelled;
  const auto count = verifier_->WarmUp({{{"a"}, {}, 3, 1}}, limits);
  EXPECT_EQ(count.status().code(), base::Code::kCancelled);
  EXPECT_TRUE(runs_.empty());
}

}  // namespace
}  // namespace millpond::inference
