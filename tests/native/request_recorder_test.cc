#include "native/metrics/request_recorder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>

#include "native/base/status.h"
#include "tests/native/threads.h"

namespace millpond::metrics {
namespace {

using base::Code;

int64_t CountOf(const RequestSnapshot& snapshot, Code code) {
  return snapshot.count_by_code[static_cast<size_t>(code)];
}

int64_t TotalCount(const RequestSnapshot& snapshot) {
  return std::accumulate(snapshot.count_by_code.begin(), snapshot.count_by_code.end(), int64_t{0});
}

TEST(RequestRecorder, CountsFailuresByCodeAndTheirLatencyToo) {
  RequestRecorder recorder;
  recorder.Record(Code::kOk, 1'000'000);
  recorder.Record(Code::kOk, 2'000'000);
  recorder.Record(Code::kDeadlineExceeded, 9'000'000);
  recorder.Record(Code::kUnauthenticated, 500);
  const RequestSnapshot snapshot = recorder.Snapshot();
  EXPECT_EQ(CountOf(snapshot, Code::kOk), 2);
  EXPECT_EQ(CountOf(snapshot, Code::kDeadlineExceeded), 1);
  EXPECT_EQ(CountOf(snapshot, Code::kUnauthenticated), 1);
  EXPECT_EQ(TotalCount(snapshot), 4);
  EXPECT_EQ(snapshot.latency.count(), 4);
  EXPECT_EQ(snapshot.latency.max_ns(), 9'000'000);
}

TEST(RequestRecorder, CountsByCodeAddUpToTheLatenciesOfManyThreads) {
  RequestRecorder recorder;
  testing::RunTogether(6, [&](int thread) {
    for (int record = 0; record < 5'000; ++record) {
      recorder.Record(static_cast<Code>((record + thread) % base::kCodeCount), record);
      if (record % 500 == 0) {
        const RequestSnapshot snapshot = recorder.Snapshot();
        EXPECT_GE(TotalCount(snapshot), snapshot.latency.count());
      }
    }
  });
  EXPECT_EQ(TotalCount(recorder.Snapshot()), 30'000);
  EXPECT_EQ(recorder.Snapshot().latency.count(), 30'000);
}

}  // namespace
}  // namespace millpond::metrics
