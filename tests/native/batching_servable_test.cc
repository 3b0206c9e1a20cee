#include "native/servable/batching_servable.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/servable/batch.h"
#include "tests/native/row_servable.h"
#include "tests/native/threads.h"
#include "tests/native/waiting_requests.h"

namespace millpond::servable {
namespace {

using base::Code;
using base::Status;
using testing::NumbersOf;
using testing::QueuedRequests;
using testing::RowRun;
using testing::RowServable;
using testing::Tensors;
using Values = std::vector<int64_t>;

// One request of a test, with its answer.
struct Request {
  Values x;
  int64_t width = 1;
  std::string signature = "serving_default";
  tensor::OutputSet outputs = tensor::OutputSet::All(2);
  tensor::RunContext context;
  std::shared_ptr<PreparedRun> run;
  int answer_count = 0;
  Status status;
  Tensors result;

  Values y() const { return result.empty() ? Values{} : NumbersOf<int64_t>(result[0]); }
};

Request RequestOf(Values x, int64_t width = 1) {
  Request request;
  request.x = std::move(x);
  request.width = width;
  return request;
}

Values ExpectedY(const Values& x) {
  Values y;
  for (const int64_t value : x) y.push_back(RowServable::Y(value, 7));
  return y;
}

class BatchingServableTest : public ::testing::Test {
 protected:
  BatchingServableTest() { Make({}); }

  // A run of a RowServable costs the same with any number of rows, so settings bound the batches.
  void Make(BatchSettings settings) {
    settings.run_ns_max = 0;
    auto inner = std::make_unique<RowServable>(
        ServableId{"m", 7}, [this](const RowRun& run) { return watch_ ? watch_(run) : Status(); });
    inner_ = inner.get();
    servable_ = std::make_unique<BatchingServable>(std::move(inner), std::move(settings));
    for (const auto& [name, signature] : servable_->signatures()) {
      LetRowsCostNothing(signature);
      servable_->TurnOn(signature, {});
    }
  }
  // Makes a servable whose runs seem to cost `fixed_ns` and `row_ns` for each row, up to
  // `rows_max`.
  void MakeWithCosts(int64_t fixed_ns, int64_t row_ns, int64_t rows_max = 1'024) {
    auto inner = std::make_unique<RowServable>();
    inner_ = inner.get();
    servable_ = std::make_unique<BatchingServable>(std::move(inner), BatchSettings{});
    const tensor::Signature& signature = SignatureOf("serving_default");
    // Often enough that the runs of a test, which take no time, change little.
    for (int64_t i = 0; i < 16; ++i) {
      for (int64_t rows = 1; rows <= rows_max; rows *= 2) {
        servable_->LearnCost(signature, rows, fixed_ns + rows * row_ns);
      }
    }
    servable_->TurnOn(signature, {});
  }
  // The cost of the largest run is the least: no part of a row shows.
  void LetRowsCostNothing(const tensor::Signature& signature) const {
    servable_->LearnCost(signature, 4'096, 1);
  }
  // From now on, a batch looks useless.
  void LetRunsCostOnlyTheirRows() const {
    for (int64_t i = 0; i < 128; ++i) {
      for (int64_t rows = 1; rows <= 1'024; rows *= 2) {
        servable_->LearnCost(SignatureOf("serving_default"), rows, rows * 200'000);
      }
    }
  }
  const tensor::Signature& SignatureOf(const std::string& name) const {
    return servable_->signatures().find(name)->second;
  }

  // Decodes a request.
  PreparedRun* Prepare(Request* request) const {
    request->run = std::make_shared<PreparedRun>();
    PreparedRun& run = *request->run;
    run.servable = servable_.get();
    run.signatures = {&SignatureOf(request->signature)};
    run.outputs = request->outputs;
    run.inputs = testing::RowInputs(request->x, request->width);
    run.context = request->context;
    return &run;
  }
  // Takes the results of its run for its answer.
  static void Finish(Request* request) {
    request->status = std::move(request->run->status);
    request->answer_count += 1;
    request->result.clear();
    if (request->status.ok()) request->result = request->run->results.at(0).storage().tensors;
  }
  void Queue(Request* request, size_t message_bytes = 0) {
    waiting_.Add(BatchKeyOf("m", request->signature),
                 {[=] { return Prepare(request); }, [=] { Finish(request); }}, message_bytes);
  }
  // Answers the first request while the others wait, and then all that were not taken into its
  // batch.
  void AnswerAll(const std::vector<Request*>& requests) {
    for (Request* request : requests) Queue(request);
    while (waiting_.AnswerNext()) {
    }
    for (const Request* request : requests) EXPECT_EQ(request->answer_count, 1);
  }
  SignatureBatching Batching(const std::string& signature = "serving_default") const {
    for (const SignatureBatching& each : servable_->Batching()) {
      if (each.signature == signature) return each;
    }
    return {"not there", false, "", {}, 0, {}};
  }
  // Answers two requests that run two signatures each.
  void ExpectBothSignaturesShareARun() {
    std::vector<PreparedRun> runs(2);
    for (size_t i = 0; i < 2; ++i) {
      waiting_.Add(BatchKeyOfSeveral("m"), {[&, i] {
                     runs[i].servable = servable_.get();
                     runs[i].signatures = {&SignatureOf("other"), &SignatureOf("serving_default")};
                     runs[i].inputs = testing::RowInputs({static_cast<int64_t>(i)});
                     return &runs[i];
                   }});
    }
    // Their cost is not known yet: two rows.
    ASSERT_TRUE(waiting_.AnswerNext());
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(runs[i].status.ok()) << runs[i].status.message();
      ASSERT_EQ(runs[i].results.size(), 2U);
      for (const tensor::TensorList& result : runs[i].results) {
        EXPECT_EQ(NumbersOf<int64_t>(result.storage().tensors[0]),
                  ExpectedY({static_cast<int64_t>(i)}));
      }
    }
    EXPECT_EQ(inner_->run_rows(), (Values{2, 2}));  // a signature each
    EXPECT_EQ(Batching("").figures.request_count, 2);
  }
  // The runs that are counted, each of one request, or of a piece of one.
  struct Runs {
    int64_t runs;
    int64_t requests;
    int64_t rows;
  };
  void ExpectRuns(const Runs& expected) const {
    const BatchFigures figures = Batching().figures;
    EXPECT_EQ(figures.run_count, expected.runs);
    EXPECT_EQ(figures.request_count, expected.requests);
    EXPECT_EQ(figures.row_count, expected.rows);
    EXPECT_EQ(figures.by_requests[0], expected.runs);
    EXPECT_EQ(std::accumulate(figures.by_wait.begin(), figures.by_wait.end(), int64_t{0}),
              expected.requests);
    EXPECT_EQ(std::accumulate(figures.by_run.begin(), figures.by_run.end(), int64_t{0}),
              expected.runs);
  }
  static void ExpectOwnRows(const Request& request) {
    EXPECT_TRUE(request.status.ok()) << request.status.message();
    EXPECT_EQ(request.y(), ExpectedY(request.x));
  }

  RowServable::Watch watch_;
  QueuedRequests waiting_;
  RowServable* inner_ = nullptr;
  std::unique_ptr<BatchingServable> servable_;
};

// --- Batches ---

TEST_F(BatchingServableTest, WaitingRequestsShareOneRunAndGetTheirOwnRows) {
  Request a = RequestOf({1, 2});
  Request b = RequestOf({3});
  Request c = RequestOf({4, 5, 6});
  AnswerAll({&a, &b, &c});
  EXPECT_EQ(inner_->run_rows(), (Values{6}));
  for (const Request* request : {&a, &b, &c}) ExpectOwnRows(*request);
  const BatchFigures figures = Batching().figures;
  EXPECT_EQ(figures.run_count, 1);
  EXPECT_EQ(figures.request_count, 3);
  EXPECT_EQ(figures.row_count, 6);
}

TEST_F(BatchingServableTest, RequestAloneRunsAtOnceOnItsOwnInputs) {
  Request a = RequestOf({1, 2});
  AnswerAll({&a});
  EXPECT_EQ(inner_->run_rows(), (Values{2}));
  ExpectOwnRows(a);
  EXPECT_EQ(waiting_.looks().size(), 1U);
}

// As a load does, for warm-up records.
TEST_F(BatchingServableTest, RunOfTheServableItselfIsNoBatch) {
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  Queue(&b);
  RunAlone(Prepare(&a));
  Finish(&a);
  EXPECT_EQ(b.answer_count, 0);
  ExpectOwnRows(a);
  EXPECT_EQ(Batching().figures.run_count, 0);
}

TEST_F(BatchingServableTest, RequestThatComesWhileTheBatchFillsJoinsIt) {
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  bool has_come = false;
  waiting_.OnLook([&] {
    if (!std::exchange(has_come, true)) Queue(&b);
  });
  AnswerAll({&a});
  EXPECT_EQ(inner_->run_rows(), (Values{2}));
  ExpectOwnRows(b);
}

TEST_F(BatchingServableTest, BatchEndsAtTheMostRows) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  std::vector<Request> requests(5, RequestOf({1, 2}));
  AnswerAll({&requests[0], &requests[1], &requests[2], &requests[3], &requests[4]});
  EXPECT_EQ(inner_->run_rows(), (Values{4, 4, 2}));
  for (const Request& request : requests) ExpectOwnRows(request);
}

// A machine that was busy while the costs were measured must not end batching for ever.
TEST_F(BatchingServableTest, TwoRequestsJoinEvenIfThatLooksUseless) {
  MakeWithCosts(0, 100'000, 8);
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{2}));
}

// A machine that was busy while the costs were measured must not cut up small requests for ever.
TEST_F(BatchingServableTest, RequestOfTwiceTheRowsRunsWhole) {
  MakeWithCosts(0, 4'000'000);
  Request large = RequestOf({1, 2, 3, 4, 5});
  AnswerAll({&large});
  EXPECT_EQ(inner_->run_rows(), (Values{2, 2, 1}));
  Request twice = RequestOf({1, 2, 3, 4});
  AnswerAll({&twice});
  EXPECT_EQ(inner_->run_rows(), (Values{2, 2, 1, 4}));
}

// A row takes 1 ms, and so does the fixed part of a run.
TEST_F(BatchingServableTest, LongRequestsJoinOnlyIfManyOthersWait) {
  for (const size_t count : {2U, 64U}) {
    MakeWithCosts(1'000'000, 1'000'000);
    // The first batch of 32 tries it whatever the costs seem to be.
    Request trial = RequestOf({0});
    AnswerAll({&trial});
    std::vector<Request> requests(count, RequestOf({1, 2, 3}));
    std::vector<Request*> asked;
    for (Request& request : requests) asked.push_back(&request);
    AnswerAll(asked);
    const int64_t first_rows = inner_->run_rows()[1];
    EXPECT_EQ(first_rows > 3, count == 64) << first_rows;
  }
}

// The fixed cost of a run is that of 4 rows.
TEST_F(BatchingServableTest, BatchStaysShortWhileAThreadIsFree) {
  for (const bool is_thread_free : {true, false}) {
    MakeWithCosts(400'000, 100'000);
    waiting_.SetFreeThread(is_thread_free);
    std::vector<Request> requests(8, RequestOf({1}));
    std::vector<Request*> pointers;
    for (Request& request : requests) pointers.push_back(&request);
    AnswerAll(pointers);
    // The runs of this test take no time, and change what the next ones look like.
    EXPECT_EQ(inner_->run_rows().front(), is_thread_free ? 4 : 8);
  }
}

TEST_F(BatchingServableTest, RequestThatDoesNotFitTheRowsBeginsTheNextBatch) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  Request a = RequestOf({1, 2, 3});
  Request b = RequestOf({4, 5});
  Request c = RequestOf({6});
  AnswerAll({&a, &b, &c});
  EXPECT_EQ(inner_->run_rows(), (Values{3, 3}));
  for (const Request* request : {&a, &b, &c}) ExpectOwnRows(*request);
}

// A run elsewhere may change what a run seems to cost at any time.
TEST_F(BatchingServableTest, RequestJoinsByTheRoomItWasTakenFor) {
  MakeWithCosts(400'000, 100'000);
  Request a = RequestOf({1});
  Request b = RequestOf({2, 3});
  Queue(&a);
  waiting_.Add(BatchKeyOf("m", ""), {[&] {
                                       LetRunsCostOnlyTheirRows();
                                       return Prepare(&b);
                                     },
                                     [&] { Finish(&b); }});
  ASSERT_TRUE(waiting_.AnswerNext());
  EXPECT_EQ(inner_->run_rows(), (Values{3}));
  ExpectOwnRows(b);
}

TEST_F(BatchingServableTest, BatchHasNoMoreRequestsThanItMay) {
  std::vector<Request> requests(kTakenRequestsMax + 10, RequestOf({1}));
  std::vector<Request*> all;
  for (Request& request : requests) all.push_back(&request);
  AnswerAll(all);
  // The first one is not taken by a batch.
  EXPECT_EQ(inner_->run_rows(), (Values{kTakenRequestsMax + 1, 9}));
}

// A request that fails before its run takes no place in the batch. The first one has waited for
// all.
TEST_F(BatchingServableTest, FloodOfBadRequestsDoesNotHoldUpABatch) {
  size_t bad_count = 0;
  waiting_.OnLook([&] {
    if (bad_count < 1'000) waiting_.AddBad(BatchKeyOf("m", ""), [&] { bad_count += 1; });
  });
  size_t before_run_count = 0;
  watch_ = [&](const RowRun&) {
    before_run_count = bad_count;
    return Status();
  };
  Request a = RequestOf({1});
  AnswerAll({&a});
  EXPECT_EQ(before_run_count, kTakenRequestsMax);
}

TEST_F(BatchingServableTest, MessageTooLongForTheBatchIsNotTaken) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  Request a = RequestOf({1, 2});
  Request b = RequestOf({3});
  Queue(&a);
  Queue(&b, /*message_bytes=*/5'000);
  ASSERT_TRUE(waiting_.AnswerNext());
  EXPECT_EQ(b.answer_count, 0);
  // The envelope, and twice the two rows of 8 bytes that the batch still takes.
  EXPECT_EQ(waiting_.looks()[0].bytes_max, 1'024U + 2 * 2 * 8);
}

TEST_F(BatchingServableTest, OtherOutputsRunInABatchOfTheirOwn) {
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  b.outputs = tensor::OutputSet(2);
  b.outputs.Add(0);
  Request c = RequestOf({3});
  c.outputs = b.outputs;
  AnswerAll({&a, &b, &c});
  EXPECT_EQ(inner_->run_rows(), (Values{1, 2}));
  EXPECT_EQ(a.result.size(), 2U);
  EXPECT_EQ(b.result.size(), 1U);
  for (const Request* request : {&a, &b, &c}) ExpectOwnRows(*request);
}

TEST_F(BatchingServableTest, OtherShapesRunInABatchOfTheirOwn) {
  Request a = RequestOf({1});
  Request b = RequestOf({2, 3}, 2);
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{1, 1}));
  EXPECT_EQ(b.result[0].dims, (Values{1, 2}));
  ExpectOwnRows(a);
  ExpectOwnRows(b);
}

// Each request differs from the one before it. No reply waits for a run that is not its own.
TEST_F(BatchingServableTest, ReplyDoesNotWaitForARequestThatDoesNotFit) {
  std::vector<Request> requests;
  for (int i = 0; i < 20; ++i) {
    requests.push_back(i % 2 == 0 ? RequestOf({1}) : RequestOf({2, 3}, 2));
  }
  for (Request& request : requests) Queue(&request);
  watch_ = [&](const RowRun&) {
    const size_t before_count = inner_->run_rows().size() - 1;
    for (size_t i = 0; i < before_count; ++i) EXPECT_EQ(requests[i].answer_count, 1) << i;
    return Status();
  };
  ASSERT_TRUE(waiting_.AnswerNext());
  // The thread has other things to do too.
  EXPECT_EQ(inner_->run_rows().size(), 3U);
  while (waiting_.AnswerNext()) {
  }
  for (const Request& request : requests) ExpectOwnRows(request);
}

TEST_F(BatchingServableTest, AllAnswersAreSentBeforeARequestIsOffered) {
  std::vector<Request> requests = {RequestOf({1}), RequestOf({2}), RequestOf({3})};
  std::string steps;
  for (Request& request : requests) {
    waiting_.Add(BatchKeyOf("m", request.signature),
                 {[&] { return Prepare(&request); },
                  [&] {
                    Finish(&request);
                    steps += "finish ";
                  },
                  [&] { steps += "send "; }, [&] { steps += "offer "; }});
  }
  ASSERT_TRUE(waiting_.AnswerNext());
  EXPECT_EQ(inner_->run_rows(), (Values{3}));
  EXPECT_EQ(steps, "finish finish finish send send send offer offer offer ");
}

TEST_F(BatchingServableTest, OtherSignaturesAreNotTaken) {
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  b.signature = "other";
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{1, 1}));
  EXPECT_EQ(waiting_.looks()[0].key, BatchKeyOf("m", "serving_default"));
}

// A key is a hash: a guess. A wrong one costs a batch, and no answer.
TEST_F(BatchingServableTest, RequestsOfAnotherServableWithTheSameKeyDoNotJoin) {
  auto other_inner = std::make_unique<RowServable>(ServableId{"m", 8});
  const RowServable& of_other = *other_inner;
  const BatchingServable other(std::move(other_inner), {});
  other.TurnOn(other.signatures().begin()->second, {});
  other.TurnOn(SignatureOf("serving_default"), {});
  Request a = RequestOf({1});
  PreparedRun b;
  Queue(&a);
  waiting_.Add(BatchKeyOf("m", ""), {[&] {
                 b.servable = &other;
                 b.signatures = {&other.signatures().find("serving_default")->second};
                 b.outputs = tensor::OutputSet::All(2);
                 b.inputs = testing::RowInputs({2});
                 return &b;
               }});
  ASSERT_TRUE(waiting_.AnswerNext());
  ExpectOwnRows(a);
  EXPECT_EQ(NumbersOf<int64_t>(b.results.at(0).storage().tensors[0]),
            (Values{RowServable::Y(2, 8)}));
  EXPECT_EQ(inner_->run_rows(), (Values{1}));
  EXPECT_EQ(of_other.run_rows(), (Values{1}));
}

TEST_F(BatchingServableTest, TensorsWithoutRowsRunAlone) {
  Request a = RequestOf({5});
  Request b = RequestOf({2});
  waiting_.Add(BatchKeyOf("m", ""), {[&] {
                                       PreparedRun* const run = Prepare(&a);
                                       run->inputs.storage().tensors[0].dims.clear();
                                       return run;
                                     },
                                     [&] { Finish(&a); }});
  Queue(&b);
  ASSERT_TRUE(waiting_.AnswerNext());
  ExpectOwnRows(a);
  EXPECT_EQ(b.answer_count, 0);
  ExpectRuns({/*runs=*/1, /*requests=*/1, /*rows=*/0});
}

// The first answers of a large batch do not wait for the last ones.
TEST_F(BatchingServableTest, AnswersAreSentSixteenAtATime) {
  std::vector<Request> requests(20, RequestOf({1}));
  std::string steps;
  for (Request& request : requests) {
    waiting_.Add(BatchKeyOf("m", ""), {[&] { return Prepare(&request); },
                                       [&] {
                                         Finish(&request);
                                         steps += 'f';
                                       },
                                       [&] { steps += 's'; }});
  }
  ASSERT_TRUE(waiting_.AnswerNext());
  EXPECT_EQ(steps, std::string(16, 'f') + std::string(16, 's') + "ffff" + "ssss");
}

// --- Padding ---

TEST_F(BatchingServableTest, BatchIsPaddedToTheNextAllowedSize) {
  BatchSettings settings;
  settings.allowed_rows = {4, 8};
  Make(settings);
  // The padding is a row of the batch, which the model takes. It may not take zeros: these end a
  // batch here.
  inner_->writing_x = 0;
  Request a = RequestOf({1, 2});
  Request b = RequestOf({3});
  AnswerAll({&a, &b});
  Request c = RequestOf({4});
  AnswerAll({&c});
  EXPECT_EQ(inner_->run_rows(), (Values{4, 4}));
  for (const Request* request : {&a, &b, &c}) ExpectOwnRows(*request);
  EXPECT_TRUE(Batching().is_on) << Batching().refusal;
  EXPECT_EQ(Batching().figures.row_count, 4);
  EXPECT_EQ(Batching().figures.padding_row_count, 1 + 3);
}

TEST_F(BatchingServableTest, InputsOfOtherSizesArePaddedIfSettingsSaySo) {
  BatchSettings settings;
  settings.pads_inputs = true;
  Make(settings);
  Request a = RequestOf({1});
  Request b = RequestOf({2, 3, 4, 5}, 2);
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{3}));
  EXPECT_EQ(a.y(), ExpectedY({1, 0}));
  ExpectOwnRows(b);
}

// --- Large requests ---

TEST_F(BatchingServableTest, LargeRequestRunsInPiecesAndGetsAllItsRows) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  Request large = RequestOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  AnswerAll({&large});
  EXPECT_EQ(inner_->run_rows(), (Values{4, 4, 2}));
  ExpectOwnRows(large);
  EXPECT_EQ(Batching().figures.split_request_count, 1);
}

TEST_F(BatchingServableTest, PiecesOfALargeRequestHaveAllowedSizes) {
  BatchSettings settings;
  settings.rows_max = 8;
  settings.allowed_rows = {2, 8};
  Make(settings);
  Request large = RequestOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  AnswerAll({&large});
  EXPECT_EQ(inner_->run_rows(), (Values{8, 8}));
  ExpectOwnRows(large);
  EXPECT_EQ(Batching().figures.padding_row_count, 5);
}

TEST_F(BatchingServableTest, LargeRequestRunsWholeIfSettingsSaySo) {
  BatchSettings settings;
  settings.rows_max = 4;
  settings.splits = false;
  Make(settings);
  Request large = RequestOf({1, 2, 3, 4, 5, 6});
  Request small = RequestOf({7});
  AnswerAll({&large, &small});
  EXPECT_EQ(inner_->run_rows(), (Values{6, 1}));
  ExpectOwnRows(large);
  ExpectOwnRows(small);
}

TEST_F(BatchingServableTest, SmallRequestsHaveTheirTurnBetweenTwoPieces) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  // A piece takes a moment, and a turn is as long as the piece before it.
  watch_ = [](const RowRun& run) {
    if (run.rows > 1) base::SleepNs(2'000'000);
    return Status();
  };
  Request large = RequestOf({1, 2, 3, 4, 5, 6, 7, 8, 9});
  Request small = RequestOf({10});
  AnswerAll({&large, &small});
  EXPECT_EQ(inner_->run_rows(), (Values{4, 1, 4, 1}));
  ExpectOwnRows(large);
  ExpectOwnRows(small);
}

TEST_F(BatchingServableTest, LargeRequestWithinATurnGivesNoTurns) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  watch_ = [](const RowRun&) {
    base::SleepNs(1'000'000);
    return Status();
  };
  Request a = RequestOf({1, 2, 3, 4, 5, 6});
  Request b = RequestOf({7, 8, 9, 10, 11, 12});
  Request c = RequestOf({13});
  AnswerAll({&a, &b, &c});
  // The small request runs in the same turn if the first piece took longer than the other request.
  const Values rows = inner_->run_rows();
  EXPECT_TRUE((rows == Values{4, 4, 2, 2, 1}) || (rows == Values{4, 4, 2, 1, 2}))
      << ::testing::PrintToString(rows);
  for (const Request* request : {&a, &b, &c}) ExpectOwnRows(*request);
}

TEST_F(BatchingServableTest, PieceThatFailsFailsItsRequestOnly) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  Request large = RequestOf({1, 2, 3, 4, -5, 6});
  Request small = RequestOf({7});
  AnswerAll({&large, &small});
  EXPECT_EQ(large.status.message(), "bad id -5");
  ExpectOwnRows(small);
}

TEST_F(BatchingServableTest, PiecesOfAFailedRequestAreCounted) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  Request large = RequestOf({1, 2, 3, 4, -5, 6});
  AnswerAll({&large});
  EXPECT_EQ(large.status.message(), "bad id -5");
  ExpectRuns({/*runs=*/2, /*requests=*/1, /*rows=*/6});
}

// The pieces answered nothing.
TEST_F(BatchingServableTest, RequestThatRunsWholeAfterAPieceIsOneRun) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  inner_->widens_z = true;
  Request large = RequestOf({1, 1, 1, 1, 9, 1});
  AnswerAll({&large});
  EXPECT_EQ(inner_->run_rows(), (Values{4, 2, 6}));
  ExpectRuns({/*runs=*/1, /*requests=*/1, /*rows=*/6});
}

TEST_F(BatchingServableTest, PiecesWithoutTheirRowsAreRunAsOne) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  inner_->loses_rows = true;
  Request large = RequestOf({1, 2, 3, 4, 5, 6});
  AnswerAll({&large});
  EXPECT_EQ(inner_->run_rows(), (Values{4, 6}));
  ExpectOwnRows(large);
  EXPECT_EQ(large.result[1].dims, (Values{1, 1}));
}

// As a model does that cuts texts into words: the rows are as wide as the longest text of the run.
TEST_F(BatchingServableTest, PiecesWithRowsOfOtherWidthsAreRunAsOne) {
  for (const Values& x : {Values{1, 1, 1, 1, 9, 1}, Values{9, 1, 1, 1, 1, 1}}) {
    BatchSettings settings;
    settings.rows_max = 4;
    Make(settings);
    inner_->widens_z = true;
    Request large = RequestOf(x);
    AnswerAll({&large});
    EXPECT_EQ(inner_->run_rows(), (Values{4, 2, 6}));
    ExpectOwnRows(large);
    EXPECT_EQ(large.result[1].dims, (Values{6, 9}));
    EXPECT_EQ(Batching().refusal, "the rows of an output are wider in one batch than in another");
  }
}

// --- Memory ---

class JoinedRowsTest : public BatchingServableTest {
 protected:
  static constexpr int64_t kRows = 20'000;  // of 8 bytes each

  JoinedRowsTest() {
    BatchSettings settings;
    settings.rows_max = 4 * kRows;
    Make(settings);
  }
  Request LargeRequest(base::ByteBudget* budget) const {
    Request request = RequestOf(Values(kRows, 3));
    request.context.budget = budget;
    return request;
  }
};

// No request is charged for the rows of the others, however long its reply takes.
TEST_F(JoinedRowsTest, CountUntilTheirRunIsOver) {
  base::ByteBudget budget;
  Request a = LargeRequest(&budget);
  Request b = LargeRequest(&budget);
  int64_t in_run_bytes = 0;
  watch_ = [&](const RowRun&) {
    in_run_bytes = budget.in_use_bytes();
    return Status();
  };
  for (Request* request : {&a, &b}) {
    waiting_.Add(BatchKeyOf("m", ""), {[=] { return Prepare(request); },
                                       [=, &budget] {
                                         EXPECT_EQ(budget.in_use_bytes(), 0);
                                         Finish(request);
                                       }});
  }
  ASSERT_TRUE(waiting_.AnswerNext());
  EXPECT_EQ(inner_->run_rows(), (Values{2 * kRows}));
  EXPECT_EQ(in_run_bytes, 2 * kRows * 8);
}

TEST_F(JoinedRowsTest, RequestsRunOneByOneIfNoMemoryIsLeftForThem) {
  base::ByteBudget budget(/*limit_bytes=*/kRows * 8);
  Request a = LargeRequest(&budget);
  Request b = LargeRequest(&budget);
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{kRows, kRows}));
  ExpectOwnRows(a);
  ExpectOwnRows(b);
  EXPECT_TRUE(Batching().is_on) << Batching().refusal;
  EXPECT_EQ(budget.in_use_bytes(), 0);
}

// The results of its pieces are the request's own, and its inputs' copies are not.
TEST_F(JoinedRowsTest, PiecesCountOneAfterTheOther) {
  BatchSettings settings;
  settings.rows_max = kRows;
  Make(settings);
  base::ByteBudget budget;
  Request large = RequestOf(Values(3 * kRows, 3));
  large.context.budget = &budget;
  int64_t most_bytes = 0;
  watch_ = [&](const RowRun&) {
    most_bytes = std::max(most_bytes, budget.in_use_bytes());
    return Status();
  };
  AnswerAll({&large});
  EXPECT_EQ(inner_->run_rows(), (Values{kRows, kRows, kRows}));
  EXPECT_EQ(most_bytes, kRows * 8);
  ExpectOwnRows(large);
  EXPECT_EQ(budget.in_use_bytes(), 2 * 3 * kRows * 8);
  large.run.reset();
  EXPECT_EQ(budget.in_use_bytes(), 0);
}

// --- Requests that do not run, and failures ---

TEST_F(BatchingServableTest, CancelledRequestIsLeftOut) {
  const std::atomic<bool> is_cancelled{true};
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  b.context.is_cancelled = &is_cancelled;
  Request c = RequestOf({3});
  AnswerAll({&a, &b, &c});
  EXPECT_EQ(inner_->run_rows(), (Values{2}));
  EXPECT_EQ(b.status.code(), Code::kCancelled);
  ExpectOwnRows(a);
  ExpectOwnRows(c);
}

TEST_F(BatchingServableTest, RequestThatIsCancelledWhileTheBatchFillsIsLeftOut) {
  std::atomic<bool> is_cancelled{false};
  Request a = RequestOf({1});
  a.context.is_cancelled = &is_cancelled;
  Request b = RequestOf({2});
  waiting_.OnLook([&] { is_cancelled = true; });
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{1}));
  EXPECT_EQ(a.status.code(), Code::kCancelled);
  ExpectOwnRows(b);
}

TEST_F(BatchingServableTest, RequestWhoseDeadlineHasPassedIsLeftOut) {
  Request a = RequestOf({1});
  a.context.deadline_ns = base::MonotonicNs();
  Request b = RequestOf({2});
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{1}));
  EXPECT_EQ(a.status.code(), Code::kDeadlineExceeded);
  ExpectOwnRows(b);
}

TEST_F(BatchingServableTest, LargeRequestThatIsCancelledIsLeftOut) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  const std::atomic<bool> is_cancelled{true};
  Request large = RequestOf({1, 2, 3, 4, 5, 6});
  large.context.is_cancelled = &is_cancelled;
  AnswerAll({&large});
  EXPECT_EQ(large.status.code(), Code::kCancelled);
  EXPECT_EQ(large.status.message(), "the client cancelled the request before its batch ran");
  EXPECT_EQ(Batching().figures.split_request_count, 0);
}

TEST_F(BatchingServableTest, LargeRequestThatIsTooLateIsLeftOut) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  Request large = RequestOf({1, 2, 3, 4, 5, 6});
  large.context.deadline_ns = base::MonotonicNs();
  AnswerAll({&large});
  EXPECT_EQ(large.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(large.status.message(), "the request's deadline passed before its batch ran");
  EXPECT_EQ(Batching().figures.split_request_count, 0);
}

TEST_F(BatchingServableTest, BatchOfUnwantedRequestsDoesNotRun) {
  const std::atomic<bool> is_cancelled{true};
  Request a = RequestOf({1});
  a.context.is_cancelled = &is_cancelled;
  AnswerAll({&a});
  EXPECT_TRUE(inner_->run_rows().empty());
  EXPECT_EQ(Batching().figures.run_count, 0);
}

// All other requests of the batch still want their rows.
TEST_F(BatchingServableTest, BatchRunsUntilTheLastDeadlineAndForNoOneClient) {
  const int64_t now_ns = base::MonotonicNs();
  std::atomic<bool> is_cancelled{false};
  int64_t deadline_ns = 0;
  watch_ = [&](const RowRun& run) {
    deadline_ns = run.context.deadline_ns;
    EXPECT_EQ(run.context.is_cancelled, nullptr);
    return Status();
  };
  Request a = RequestOf({1});
  a.context.deadline_ns = now_ns + 60'000'000'000;
  a.context.is_cancelled = &is_cancelled;
  Request b = RequestOf({2});
  b.context.deadline_ns = now_ns + 90'000'000'000;
  AnswerAll({&a, &b});
  EXPECT_EQ(deadline_ns, b.context.deadline_ns);
}

TEST_F(BatchingServableTest, BadRequestFailsAloneAndTheOthersGetTheirRows) {
  Request a = RequestOf({1});
  Request b = RequestOf({-2});
  Request c = RequestOf({3});
  AnswerAll({&a, &b, &c});
  EXPECT_EQ(inner_->run_rows(), (Values{3, 1, 1, 1}));
  EXPECT_EQ(b.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(b.status.message(), "bad id -2");
  ExpectOwnRows(a);
  ExpectOwnRows(c);
  EXPECT_EQ(Batching().figures.failed_batch_count, 1);
  EXPECT_TRUE(Batching().is_on);
  ExpectRuns({/*runs=*/3, /*requests=*/3, /*rows=*/3});
}

// As on an accelerator that is busy beyond the deadlines.
TEST_F(BatchingServableTest, BatchThatIsTooLateEndsAllItsRequests) {
  watch_ = [](const RowRun&) { return Status(Code::kDeadlineExceeded, "the turn is too late"); };
  Request a = RequestOf({1});
  a.context.deadline_ns = base::MonotonicNs() + 60'000'000'000;
  Request b = RequestOf({2, 3});
  b.context.deadline_ns = a.context.deadline_ns + 1;
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{3}));
  for (const Request* request : {&a, &b}) {
    EXPECT_EQ(request->status.code(), Code::kDeadlineExceeded);
    EXPECT_EQ(request->status.message(), "the turn is too late");
  }
  EXPECT_EQ(Batching().figures.failed_batch_count, 0);
  EXPECT_TRUE(Batching().is_on);
}

// No deadline of a request ended the run, so an op of the model did, for one of them.
TEST_F(BatchingServableTest, ModelThatRunsOutOfTimeFailsOneRequest) {
  watch_ = [](const RowRun& run) {
    const bool is_slow = std::count(run.values.begin(), run.values.end(), 2) > 0;
    return is_slow ? Status(Code::kDeadlineExceeded, "no answer of a queue") : Status();
  };
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{2, 1, 1}));
  ExpectOwnRows(a);
  EXPECT_EQ(b.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(Batching().figures.failed_batch_count, 1);
}

TEST_F(BatchingServableTest, OutputWithoutTheRowsTurnsBatchingOff) {
  inner_->loses_rows = true;
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{2, 1, 1}));
  ExpectOwnRows(a);
  ExpectOwnRows(b);
  EXPECT_FALSE(Batching().is_on);
  EXPECT_EQ(Batching().refusal, "an output of a batch of 2 rows has another number of rows");
  EXPECT_TRUE(Batching("other").is_on);
}

// --- Requests that change a variable ---

// A load sees no request that writes, so the model is batched until the first one comes.
TEST_F(BatchingServableTest, RequestThatWritesChangesNoOtherRequest) {
  inner_->writing_x = 777;
  Request a = RequestOf({1});
  Request b = RequestOf({777});
  Request c = RequestOf({3});
  AnswerAll({&a, &b, &c});
  EXPECT_EQ(inner_->run_rows(), (Values{3, 1, 1, 1}));
  EXPECT_EQ(inner_->write_count(), 1);
  for (const Request* request : {&a, &b, &c}) ExpectOwnRows(*request);
  EXPECT_FALSE(Batching().is_on);
  EXPECT_EQ(Batching().refusal, "a request may change a variable");
}

TEST_F(BatchingServableTest, PieceThatWritesLetsItsRequestRunWhole) {
  BatchSettings settings;
  settings.rows_max = 4;
  Make(settings);
  inner_->writing_x = 777;
  Request large = RequestOf({1, 2, 3, 4, 777, 6});
  AnswerAll({&large});
  EXPECT_EQ(inner_->run_rows(), (Values{4, 2, 6}));
  EXPECT_EQ(inner_->write_count(), 1);
  ExpectOwnRows(large);
  EXPECT_FALSE(Batching().is_on);
}

// A client that may not write does not: such a request is repeated.
TEST_F(BatchingServableTest, RequestThatMayNotWriteFailsAlone) {
  inner_->writing_x = 777;
  Request a = RequestOf({777});
  a.context.may_write = false;
  Request b = RequestOf({2});
  AnswerAll({&a, &b});
  EXPECT_EQ(a.status.code(), Code::kPermissionDenied);
  ExpectOwnRows(b);
  EXPECT_EQ(inner_->write_count(), 0);
}

TEST_F(BatchingServableTest, RunsThatCompareDoNotWrite) {
  BatchSettings settings;
  settings.rows_max = 2;
  Make(settings);
  servable_->TurnOn(SignatureOf("serving_default"), {0, 0, true});
  std::vector<bool> may_write;
  watch_ = [&](const RowRun& run) {
    may_write.push_back(run.context.may_write);
    return Status();
  };
  for (uint64_t i = 0; i < 2 * BatchedSignature::kCheckedEvery; ++i) {
    Request a = RequestOf({1});
    Request b = RequestOf({2});
    Request large = RequestOf({1, 2, 3, 4});
    AnswerAll({&a, &b, &large});
  }
  EXPECT_GT(inner_->run_rows().size(), 2 * BatchedSignature::kCheckedEvery * 3);
  EXPECT_EQ(std::count(may_write.begin(), may_write.end(), true), 0);
}

TEST_F(BatchingServableTest, VersionWhoseAnswersMayChangeIsBatchedNoMore) {
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  inner_->changes_answers = true;
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{1, 1}));
  EXPECT_FALSE(Batching().is_on);
  EXPECT_EQ(Batching().refusal, "a request changed a variable, so the order of requests counts");
}

TEST_F(BatchingServableTest, NoSignatureIsFoundOnceAnswersMayChange) {
  Request request = RequestOf({1});
  const PreparedRun* const run = Prepare(&request);
  ASSERT_NE(servable_->FindBatched(*run), nullptr);
  inner_->changes_answers = true;
  EXPECT_EQ(servable_->FindBatched(*run), nullptr);
  EXPECT_FALSE(Batching().is_on);
}

// --- Batches that are checked ---

TEST_F(BatchingServableTest, CheckedBatchThatDiffersTurnsBatchingOff) {
  servable_->TurnOn(SignatureOf("serving_default"), {1, 1, false});
  inner_->mixes_rows = true;
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  AnswerAll({&a, &b});
  EXPECT_EQ(a.y(), (Values{RowServable::Y(1, 7) + 1}));
  EXPECT_EQ(b.y(), (Values{RowServable::Y(2, 7) + 2}));
  EXPECT_FALSE(Batching().is_on);
  const std::string alone = std::to_string(RowServable::Y(2, 7) + 2);
  const std::string batched = std::to_string(RowServable::Y(2, 7) + 3);
  EXPECT_EQ(Batching().refusal,
            "output 'y', row 0: " + batched + " in a batch of 2 rows, " + alone + " alone");
}

// A model may mix rows for rare values only.
TEST_F(BatchingServableTest, ChecksThatGoOnFindWhatTheFirstOnesDidNot) {
  servable_->TurnOn(SignatureOf("serving_default"), {0, 0, true});
  const auto answer_two = [this] {
    Request a = RequestOf({1});
    Request b = RequestOf({2});
    AnswerAll({&a, &b});
  };
  for (uint64_t i = 0; i < 2 * BatchedSignature::kCheckedEvery; ++i) answer_two();
  const Values run_rows = inner_->run_rows();
  EXPECT_EQ(std::count(run_rows.begin(), run_rows.end(), 1), 2);
  inner_->mixes_rows = true;
  for (uint64_t i = 0; i < BatchedSignature::kCheckedEvery; ++i) answer_two();
  EXPECT_FALSE(Batching().is_on);
}

TEST_F(BatchingServableTest, RequestInPiecesIsComparedIfChecksGoOn) {
  BatchSettings settings;
  settings.rows_max = 2;
  Make(settings);
  servable_->TurnOn(SignatureOf("serving_default"), {0, 0, true});
  inner_->mixes_rows = true;
  for (uint64_t i = 0; i < BatchedSignature::kCheckedEvery; ++i) {
    Request large = RequestOf({1, 2, 3, 4});
    AnswerAll({&large});
  }
  EXPECT_FALSE(Batching().is_on);
  EXPECT_EQ(Batching().refusal.substr(0, 17), "output 'y', row 0");
}

TEST_F(BatchingServableTest, OnlyTheFirstBatchesAreChecked) {
  servable_->TurnOn(SignatureOf("serving_default"), {2, 2, false});
  for (int i = 0; i < 3; ++i) {
    Request a = RequestOf({1});
    Request b = RequestOf({2});
    AnswerAll({&a, &b});
    ExpectOwnRows(a);
    ExpectOwnRows(b);
  }
  EXPECT_EQ(inner_->run_rows(), (Values{2, 1, 2, 1, 2}));
  EXPECT_TRUE(Batching().is_on);
}

// Equal rows hide that they are mixed: clients that probe, and load tests, repeat one request.
TEST_F(BatchingServableTest, EqualRequestsDoNotEndTheChecks) {
  servable_->TurnOn(SignatureOf("serving_default"), {2, 2, false});
  for (int i = 0; i < 4; ++i) {
    Request a = RequestOf({3});
    Request b = RequestOf({3});
    AnswerAll({&a, &b});
  }
  EXPECT_EQ(inner_->run_rows(), (Values{2, 1, 2, 1, 2, 2}));
  inner_->mixes_rows = true;
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  AnswerAll({&a, &b});
  EXPECT_EQ(a.y(), (Values{RowServable::Y(1, 7) + 1}));
  EXPECT_FALSE(Batching().is_on);
}

// A request that is alone in its batch, with padding, shows nothing of others.
TEST_F(BatchingServableTest, RequestsBesidePaddingDoNotEndTheChecks) {
  BatchSettings settings;
  settings.allowed_rows = {4};
  settings.rows_max = 4;
  Make(settings);
  servable_->TurnOn(SignatureOf("serving_default"), {1, 1, false});
  for (int i = 0; i < 2; ++i) {
    Request alone = RequestOf({i});
    AnswerAll({&alone});
  }
  EXPECT_EQ(inner_->run_rows(), (Values{4, 1, 4}));
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{4, 1, 4, 4, 1}));
}

// Inputs of equal sizes say nothing about how a model takes padded ones.
TEST_F(BatchingServableTest, PaddedBatchThatDiffersEndsPaddingOnly) {
  BatchSettings settings;
  settings.pads_inputs = true;
  Make(settings);
  servable_->TurnOn(SignatureOf("serving_default"), {1, 1, false});
  Request a = RequestOf({1, 1}, 2);
  Request b = RequestOf({2, 2}, 2);
  AnswerAll({&a, &b});
  inner_->widens_z = true;
  Request narrow = RequestOf({1});
  Request wide = RequestOf({2, 2}, 2);
  AnswerAll({&wide, &narrow});
  ExpectOwnRows(narrow);
  EXPECT_EQ(narrow.result[1].dims, (Values{1, 1}));
  EXPECT_TRUE(Batching().is_on);
  EXPECT_EQ(
      Batching().refusal,
      "its inputs are not padded: with padded inputs output 'y', row 0: int64[1,2] in a batch "
      "of 2 rows, int64[1,1] alone");
}

// No graph shows that padding does not matter, however many batches have passed.
TEST_F(BatchingServableTest, PaddedBatchesAreComparedWithoutEnd) {
  BatchSettings settings;
  settings.pads_inputs = true;
  Make(settings);
  servable_->TurnOn(SignatureOf("serving_default"), {0, 0, false});
  inner_->widens_z = true;
  for (uint64_t i = 0; i < BatchedSignature::kCheckedEvery; ++i) {
    Request narrow = RequestOf({1});
    Request wide = RequestOf({2, 2}, 2);
    AnswerAll({&wide, &narrow});
  }
  EXPECT_TRUE(Batching().is_on);
  EXPECT_EQ(Batching().refusal.substr(0, 26), "its inputs are not padded:");
}

TEST_F(BatchingServableTest, PaddedBatchesAreComparedBesideOthers) {
  BatchSettings settings;
  settings.pads_inputs = true;
  Make(settings);
  servable_->TurnOn(SignatureOf("serving_default"), {0, 0, true});
  inner_->widens_z = true;
  for (uint64_t i = 0; i < BatchedSignature::kCheckedEvery; ++i) {
    Request narrow = RequestOf({1});
    Request wide = RequestOf({2, 2}, 2);
    AnswerAll({&wide, &narrow});
    Request a = RequestOf({1});
    Request b = RequestOf({2});
    AnswerAll({&a, &b});
  }
  EXPECT_EQ(Batching().refusal.substr(0, 26), "its inputs are not padded:");
}

// The rest of the batch, and the requests behind it, wait for the check.
TEST_F(BatchingServableTest, CheckRunsHalfOfTheRowsAtMostTheLastFirst) {
  servable_->TurnOn(SignatureOf("serving_default"), {1, 1, false});
  Request a = RequestOf({1});
  Request b = RequestOf({2, 3});
  Request c = RequestOf({4, 5, 6});
  AnswerAll({&a, &b, &c});
  EXPECT_EQ(inner_->run_rows(), (Values{6, 3}));
}

// A client that leaves during the check says nothing about the model.
TEST_F(BatchingServableTest, RequestThatEndsWhileItsBatchIsCheckedProvesNothing) {
  servable_->TurnOn(SignatureOf("serving_default"), {1, 1, false});
  std::atomic<bool> is_cancelled{false};
  watch_ = [&](const RowRun& run) {
    if (run.rows == 2) is_cancelled = true;
    return Status();
  };
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  b.context.is_cancelled = &is_cancelled;
  AnswerAll({&a, &b});
  ExpectOwnRows(a);
  EXPECT_TRUE(Batching().is_on) << Batching().refusal;
}

// Memory pressure and a busy machine say nothing about the model either.
TEST_F(BatchingServableTest, CheckThatTheMachineEndsProvesNothing) {
  for (const Code code : {Code::kResourceExhausted, Code::kUnavailable, Code::kInternal}) {
    Make({});
    servable_->TurnOn(SignatureOf("serving_default"), {1, 1, false});
    watch_ = [&](const RowRun& run) { return run.rows == 1 ? Status{code, "no"} : Status(); };
    Request a = RequestOf({1});
    Request b = RequestOf({2});
    AnswerAll({&a, &b});
    EXPECT_EQ(Batching().is_on, code != Code::kInternal) << Batching().refusal;
  }
  EXPECT_EQ(Batching().refusal, "a request that fails alone does not fail in a batch: no");
}

// --- A model that is compiled for each number of rows ---

TEST(BatchSettings, CompiledModelHasTheNamedSizesOrPowersOfTwo) {
  BatchSettings settings;
  settings.rows_max = 12;
  const BatchSettings of_its_own = ForCompiledModel(settings);
  EXPECT_TRUE(of_its_own.is_compiled);
  EXPECT_EQ(of_its_own.allowed_rows, (Values{1, 2, 4, 8, 12}));
  settings.allowed_rows = {3, 12};
  const BatchSettings named = ForCompiledModel(settings);
  EXPECT_TRUE(named.is_compiled);
  EXPECT_EQ(named.allowed_rows, (Values{3, 12}));
}

TEST_F(BatchingServableTest, CompiledModelIsComparedInAllowedSizesOnly) {
  BatchSettings settings;
  settings.allowed_rows = {4, 8};
  settings.is_compiled = true;
  settings.rows_max = 8;
  Make(settings);
  servable_->TurnOn(SignatureOf("serving_default"), {1, 1, true});
  for (uint64_t i = 0; i < 2 * BatchedSignature::kCheckedEvery; ++i) {
    Request a = RequestOf({1, 2, 3, 4, 5});
    Request b = RequestOf({6});
    Request large = RequestOf({1, 2, 3, 4, 5, 6, 7, 8, 9});
    AnswerAll({&a, &b, &large});
    for (const Request* request : {&a, &b, &large}) ExpectOwnRows(*request);
  }
  const Values rows = inner_->run_rows();
  EXPECT_EQ(std::count(rows.begin(), rows.end(), 4) + std::count(rows.begin(), rows.end(), 8),
            static_cast<int64_t>(rows.size()))
      << ::testing::PrintToString(rows);
  EXPECT_TRUE(Batching().is_on) << Batching().refusal;
}

TEST_F(BatchingServableTest, CompiledModelThatMixesRowsIsTurnedOff) {
  BatchSettings settings;
  settings.allowed_rows = {4, 8};
  settings.is_compiled = true;
  settings.rows_max = 8;
  Make(settings);
  servable_->TurnOn(SignatureOf("serving_default"), {1, 1, true});
  inner_->mixes_rows = true;
  Request a = RequestOf({1, 2, 3, 4, 5});
  Request b = RequestOf({6});
  AnswerAll({&a, &b});
  EXPECT_FALSE(Batching().is_on);
}

// --- Several signatures in one run ---

TEST_F(BatchingServableTest, RunsOfSeveralSignaturesShareRunsToo) {
  inner_->runs_together = true;
  ExpectBothSignaturesShareARun();
}

TEST_F(BatchingServableTest, SignaturesThatCannotRunTogetherShareARunOfEach) {
  inner_->runs_together = false;
  ExpectBothSignaturesShareARun();
}

// The next version of the model runs them before it serves.
TEST_F(BatchingServableTest, BatchesThatWereRunAreListedTheHottestFirst) {
  BatchSettings settings;
  settings.rows_max = 4;
  settings.allowed_rows = {3, 4};
  Make(settings);
  tensor::OutputSet only_z(2);
  only_z.Add(1);
  for (int i = 0; i < 2; ++i) {
    Request a = RequestOf({1});
    Request b = RequestOf({2});
    a.outputs = b.outputs = only_z;
    AnswerAll({&a, &b});
  }
  Request large = RequestOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  AnswerAll({&large});
  const auto batches = servable_->ListHotBatches();
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[0].rows, 4);  // of the pieces
  EXPECT_EQ(batches[0].run_count, 3);
  EXPECT_EQ(batches[0].outputs, std::vector<std::string>{});
  EXPECT_EQ(batches[1].rows, 3);  // with its padding
  EXPECT_EQ(batches[1].run_count, 2);
  EXPECT_EQ(batches[1].outputs, std::vector<std::string>{"z"});
}

TEST_F(BatchingServableTest, RequestThatRunsAloneIsNoHotBatch) {
  Request request = RequestOf({1, 2, 3});
  AnswerAll({&request});
  EXPECT_TRUE(servable_->ListHotBatches().empty());
}

// --- On and off ---

TEST_F(BatchingServableTest, SignatureIsOffUntilItIsTurnedOn) {
  const BatchingServable fresh(std::make_unique<RowServable>(), {});
  EXPECT_FALSE(fresh.Batching()[1].is_on);
  EXPECT_EQ(fresh.Batching()[1].refusal, "its rows have not been compared yet");
  fresh.TurnOn(SignatureOf("serving_default"), {});
  EXPECT_TRUE(fresh.Batching()[1].is_on);
  fresh.TurnOn(SignatureOf("other"), {});
  fresh.Refuse(SignatureOf("other"), "a reason");
  EXPECT_EQ(fresh.Batching()[0].signature, "other");
  EXPECT_FALSE(fresh.Batching()[0].is_on);
  EXPECT_EQ(fresh.Batching()[0].refusal, "a reason");
}

TEST_F(BatchingServableTest, RefusedSignatureRunsItsRequestsAlone) {
  servable_->Refuse(SignatureOf("serving_default"), "a reason");
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  AnswerAll({&a, &b});
  EXPECT_EQ(inner_->run_rows(), (Values{1, 1}));
  EXPECT_TRUE(waiting_.looks().empty());
}

// --- Slots ---

class BatchSlotsTest : public BatchingServableTest {
 protected:
  BatchSlotsTest() {
    settings_.slots = std::make_shared<BatchSlots>(1);
    settings_.rows_max = 4;
    Make(settings_);
    watch_ = [this](const RowRun&) {
      const int now_count = ++running_count_;
      most_count_ = std::max(most_count_.load(), now_count);
      std::this_thread::yield();
      --running_count_;
      return Status();
    };
  }
  // Answers requests of `x` on several threads at once.
  void AnswerOnThreads(const Values& x) {
    testing::RunTogether(4, [&](int) {
      QueuedRequests waiting;
      for (int i = 0; i < 50; ++i) {
        Request request = RequestOf(x);
        waiting.Add(BatchKeyOf("m", request.signature),
                    {[&] { return Prepare(&request); }, [&] { Finish(&request); }});
        EXPECT_TRUE(waiting.AnswerNext());
        ExpectOwnRows(request);
      }
    });
  }

  BatchSettings settings_;
  std::atomic<int> running_count_{0};
  std::atomic<int> most_count_{0};
};

TEST_F(BatchSlotsTest, NoMoreBatchesRunThanThereAreSlots) {
  AnswerOnThreads({1, 2});
  EXPECT_EQ(most_count_, 1);
}

TEST_F(BatchSlotsTest, PiecesOfLargeRequestsTakeSlotsToo) {
  AnswerOnThreads({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(most_count_, 1);
}

TEST_F(BatchSlotsTest, WaitForASlotEndsAtTheLastDeadline) {
  ASSERT_TRUE(settings_.slots->Take(tensor::RunContext::kNoDeadline));
  Request a = RequestOf({1});
  Request b = RequestOf({2});
  a.context.deadline_ns = base::MonotonicNs();
  b.context.deadline_ns = a.context.deadline_ns + 20'000'000;
  AnswerAll({&a, &b});
  for (const Request* request : {&a, &b}) {
    EXPECT_EQ(request->status.code(), base::Code::kDeadlineExceeded);
  }
  EXPECT_GE(base::MonotonicNs(), b.context.deadline_ns);
  EXPECT_TRUE(inner_->run_rows().empty());
  settings_.slots->Give();
  Request c = RequestOf({3});
  AnswerAll({&c});
  ExpectOwnRows(c);
}

// A thread that waited for its own slot would hang.
TEST_F(BatchSlotsTest, TurnBetweenTwoPiecesFindsASlot) {
  Request large = RequestOf({1, 2, 3, 4, 5, 6});
  Request small = RequestOf({7});
  AnswerAll({&large, &small});
  ExpectOwnRows(large);
  ExpectOwnRows(small);
}

}  // namespace
}  // namespace millpond::servable
