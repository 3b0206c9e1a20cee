#include "native/metrics/request_recorder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>

#include "native/base/status.h"
#include "tests/native/threads.h"

namespace millpond::metrics {
namespace {

using base::Code;
using Use = MethodRecorder::Use;

int64_t CountOf(const RequestSnapshot& snapshot, Code code) {
  return snapshot.count_by_code[static_cast<size_t>(code)];
}

int64_t TotalCount(const RequestSnapshot& snapshot) {
  return std::accumulate(snapshot.count_by_code.begin(), snapshot.count_by_code.end(), int64_t{0});
}

int64_t CountOverCodes(const MethodSnapshot& snapshot) {
  int64_t count = 0;
  for (const auto& [code, latency] : snapshot.by_code) count += latency.count();
  return count;
}

class MethodRecorderTest : public ::testing::TestWithParam<Use> {
 protected:
  MethodRecorder recorder_{GetParam()};
};

TEST_P(MethodRecorderTest, CountsFailuresByCodeAndTheirLatencyToo) {
  recorder_.Record(Code::kOk, PhaseTimes::OfTotal(1'000'000));
  recorder_.Record(Code::kOk, PhaseTimes::OfTotal(2'000'000));
  recorder_.Record(Code::kDeadlineExceeded, PhaseTimes::OfTotal(9'000'000));
  recorder_.Record(Code::kUnauthenticated, PhaseTimes::OfTotal(500));
  const RequestSnapshot summary = recorder_.Summary();
  EXPECT_EQ(CountOf(summary, Code::kOk), 2);
  EXPECT_EQ(CountOf(summary, Code::kDeadlineExceeded), 1);
  EXPECT_EQ(CountOf(summary, Code::kUnauthenticated), 1);
  EXPECT_EQ(TotalCount(summary), 4);
  EXPECT_EQ(summary.latency.count(), 4);
  EXPECT_EQ(summary.latency.max_ns(), 9'000'000);
}

TEST_P(MethodRecorderTest, SnapshotHasOccurredCodesAndTheirTotal) {
  recorder_.Record(Code::kOk, {{1'000, 2'000, PhaseTimes::kNone, 3'000, 4'000, 10'000}});
  recorder_.Record(Code::kNotFound, {{5'000, PhaseTimes::kNone, PhaseTimes::kNone,
                                      PhaseTimes::kNone, PhaseTimes::kNone, 6'000}});
  const MethodSnapshot snapshot = recorder_.Snapshot();
  ASSERT_EQ(snapshot.by_code.size(), 2);
  EXPECT_EQ(snapshot.by_code.at(Code::kOk).max_ns(), 10'000);
  EXPECT_EQ(snapshot.by_code.at(Code::kNotFound).max_ns(), 6'000);
  EXPECT_EQ(snapshot.count(), 2);
  EXPECT_EQ(snapshot.failed_count(), 1);
  EXPECT_EQ(snapshot.phase(Phase::kTotal).sum_ns(), 16'000);
  EXPECT_EQ(snapshot.phase(Phase::kQueue).sum_ns(), 6'000);
  EXPECT_EQ(snapshot.phase(Phase::kRun).count(), 1);
  EXPECT_EQ(snapshot.phase(Phase::kRun).sum_ns(), 3'000);
}

TEST_P(MethodRecorderTest, IsEmptyBeforeTheFirstRequest) {
  EXPECT_TRUE(recorder_.Snapshot().by_code.empty());
  EXPECT_EQ(recorder_.Snapshot().count(), 0);
  EXPECT_EQ(recorder_.Summary().latency.count(), 0);
}

// The first thread that comes makes a code's histogram.
TEST_P(MethodRecorderTest, CountsByCodeAddUpToTheLatenciesOfManyThreads) {
  testing::RunTogether(6, [&](int thread) {
    for (int record = 0; record < 5'000; ++record) {
      const auto code = static_cast<Code>((record + thread) % base::kCodeCount);
      recorder_.Record(code, {{record, record, record, record, record, 5 * record}});
      if (record % 500 != 0) continue;
      const MethodSnapshot snapshot = recorder_.Snapshot();
      EXPECT_EQ(CountOverCodes(snapshot), snapshot.count());
      EXPECT_GE(snapshot.phase(Phase::kEncode).count(), snapshot.count());
    }
  });
  const MethodSnapshot snapshot = recorder_.Snapshot();
  EXPECT_EQ(CountOverCodes(snapshot), 30'000);
  EXPECT_EQ(snapshot.by_code.size(), base::kCodeCount);
  for (const LatencySnapshot& phase : snapshot.phases) EXPECT_EQ(phase.count(), 30'000);
}

TEST_P(MethodRecorderTest, RecordsBatchesBeforeAndAfterAllocate) {
  PhaseTimes times = PhaseTimes::OfTotal(10);
  times[Phase::kBatch] = 3;
  for (const bool is_allocated : {false, true}) {
    if (is_allocated) recorder_.Allocate(/*has_batches=*/true);
    recorder_.Record(Code::kOk, times);
  }
  EXPECT_EQ(recorder_.Snapshot().phase(Phase::kBatch).count(), 2);
  EXPECT_EQ(recorder_.Snapshot().phase(Phase::kBatch).sum_ns(), 6);
}

TEST_P(MethodRecorderTest, CountsTheRowsOfSuccessfulRequestsOfManyThreads) {
  testing::RunTogether(4, [&](int /*thread*/) {
    for (int64_t rows = 1; rows <= 100; ++rows) {
      PhaseTimes times = PhaseTimes::OfTotal(10);
      times.row_count = rows;
      recorder_.Record(Code::kOk, times);
      recorder_.Record(Code::kInternal, times);
    }
  });
  EXPECT_EQ(recorder_.Snapshot().row_count, 4 * 5'050);
  MethodSnapshot sum = recorder_.Snapshot();
  sum += recorder_.Snapshot();
  EXPECT_EQ(sum.row_count, 8 * 5'050);
}

TEST_P(MethodRecorderTest, AllocatesNothingBeforeItsFirstRequest) {
  EXPECT_FALSE(recorder_.MayHaveRequests());
  EXPECT_EQ(recorder_.Snapshot().count(), 0);
  recorder_.Record(Code::kOk, PhaseTimes::OfTotal(10));
  EXPECT_TRUE(recorder_.MayHaveRequests());
}

INSTANTIATE_TEST_SUITE_P(Uses, MethodRecorderTest, ::testing::Values(Use::kHot, Use::kRare));

TEST(RequestRecorder, KeepsItsMethodsApart) {
  RequestRecorder recorder;
  recorder.Of(Method::kPredict).Record(Code::kOk, PhaseTimes::OfTotal(7));
  recorder.Of(Method::kGetModelMetadata).Record(Code::kInternal, PhaseTimes::OfTotal(8));
  EXPECT_EQ(recorder.Of(Method::kPredict).Snapshot().failed_count(), 0);
  EXPECT_EQ(recorder.Of(Method::kGetModelMetadata).Snapshot().failed_count(), 1);
}

TEST(RequestRecorder, EndsOnce) {
  RequestRecorder recorder;
  EXPECT_FALSE(recorder.ended_ns());
  recorder.MarkEnded(5);
  recorder.MarkEnded(6);
  EXPECT_EQ(recorder.ended_ns(), 5);
}

TEST(RequestRecorder, ModelRunsAreAllMethodsThatRunTheModelOnceEach) {
  RequestRecorder requests;
  int64_t method_count = 0;
  for (const Method method : AllMethods()) {
    requests.Of(method).Record(Code::kOk, PhaseTimes::OfTotal(1'000));
    requests.Of(method).Record(Code::kInternal, PhaseTimes::OfTotal(2'000));
    ++method_count;
  }
  const RequestSnapshot runs = requests.ModelRuns();
  // All methods but GetModelMetadata.
  EXPECT_EQ(runs.count_by_code[static_cast<size_t>(Code::kOk)], method_count - 1);
  EXPECT_EQ(runs.count_by_code[static_cast<size_t>(Code::kInternal)], method_count - 1);
  EXPECT_EQ(runs.latency.count(), 2 * (method_count - 1));
}

TEST(RequestSnapshot, SinceHasTheLaterRequestsOnly) {
  RequestRecorder requests;
  requests.Of(Method::kPredict).Record(Code::kInternal, PhaseTimes::OfTotal(5'000));
  const RequestSnapshot earlier = requests.ModelRuns();
  requests.Of(Method::kPredict).Record(Code::kOk, PhaseTimes::OfTotal(1'000));
  requests.Of(Method::kClassify).Record(Code::kUnavailable, PhaseTimes::OfTotal(2'000));
  const RequestSnapshot since = requests.ModelRuns().Since(earlier);
  EXPECT_EQ(since.request_count(), 2);
  EXPECT_EQ(since.failed_count(), 1);
  EXPECT_EQ(since.latency.count(), 2);
  EXPECT_EQ(since.latency.sum_ns(), 3'000);
  EXPECT_EQ(earlier.Since(earlier).request_count(), 0);
}

TEST(RequestRecorder, ModelRunsAreEmptyWithoutRequests) {
  const RequestRecorder requests;
  EXPECT_EQ(requests.ModelRuns().latency.count(), 0);
}

}  // namespace
}  // namespace millpond::metrics
